"""The SVG renderer: valid, nothing overlaps, hostile names."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from itertools import combinations, pairwise
from xml.etree import ElementTree as ET

import pytest

from graphcut.drawing.scene import Scene
from graphcut.drawing.svg.bus_lines import branches
from graphcut.drawing.svg.document import svg_of
from graphcut.drawing.svg.primitives import BODY, BOLD, CODE, FACES, fitted, fitted_names, width_of, wrapped

from cases import each
from scenes_by_hand import (
    HOSTILE,
    KIB,
    MIB,
    card,
    decoder,
    fork,
    heads,
    hostile,
    pipeline,
    profile,
    scene,
    tangle,
    tensor,
    towers,
    uncut,
    wide,
)

SCENES: dict[str, Callable[[], Scene]] = {
    "nothing": lambda: scene(()),
    "1 part": lambda: decoder(1),
    "2 parts": lambda: decoder(2),
    "4 parts": lambda: decoder(4),
    "16 parts": lambda: decoder(16),
    "64 parts": lambda: decoder(64, nodes=3000),
    "heads": heads,
    "fork": fork,
    "towers": towers,
    "tangle of 4": lambda: tangle(4),
    "tangle of 3": lambda: replace(tangle(3), sentence="word " * 200),
    "tangle of 9": lambda: tangle(9),
    "tangle of 24": lambda: tangle(24),
    "5 side by side": lambda: wide(5),
    "6 side by side": lambda: wide(6),
    "phases of a chain": lambda: pipeline(1),
    "phases of a chain with a far reader": lambda: far_reader(pipeline(1)),
    "phases in rows": lambda: pipeline(3),
    "16 side by side": lambda: wide(16),
    "hostile": hostile,
    "uncut": uncut,
    "few nodes": lambda: uncut(3),
    "many nodes": lambda: uncut(20_000),
    "no node": lambda: replace(uncut(), profile=profile(0, 0)),
}


def far_reader(drawn: Scene) -> Scene:
    """With a tensor that the last part reads, too."""
    return scene(drawn.cards, [*drawn.tensors, tensor("/far", 0, len(drawn.cards) - 1)])


every_scene = each("make", SCENES.values(), ids=SCENES)

NS = "{http://www.w3.org/2000/svg}"
SIZES = {face.css: face for face in FACES}


@dataclass(frozen=True)
class Box:
    left: float
    top: float
    right: float
    bottom: float
    what: str

    def meets(self, other: Box) -> bool:
        return (
            self.left < other.right and other.left < self.right and self.top < other.bottom and other.top < self.bottom
        )

    def holds(self, other: Box) -> bool:
        return (
            self.left <= other.left
            and other.right <= self.right
            and self.top <= other.top
            and other.bottom <= self.bottom
        )


def placed(element: ET.Element, dx: float = 0.0, dy: float = 0.0) -> Iterator[tuple[ET.Element, float, float]]:
    """Every element, and its translation."""
    move = re.fullmatch(r"translate\(([\d.]+) ([\d.]+)\)", element.get("transform", ""))
    if move is not None:
        dx, dy = dx + float(move[1]), dy + float(move[2])
    yield element, dx, dy
    for child in element:
        yield from placed(child, dx, dy)


def texts(root: ET.Element) -> list[Box]:
    """The box of each text: the height of its letters, and its estimated width."""
    found = []
    for element, dx, dy in placed(root):
        if element.tag == f"{NS}text":
            shown = "".join((element.text or "", *(child.tail or "" for child in element)))
            face = SIZES[element.get("class", "").split()[0]]
            width = width_of(shown, face)
            x, y = dx + float(element.get("x", "")), dy + float(element.get("y", ""))
            left = x - width * {None: 0, "middle": 0.5, "end": 1}[element.get("text-anchor")]
            found.append(Box(left, y - 0.76 * face.size, left + width, y + 0.24 * face.size, shown))
    return found


def cards(root: ET.Element) -> list[Box]:
    found = []
    for element, dx, dy in placed(root):
        if element.tag == f"{NS}rect" and element.get("class", "").split()[0] == "card":
            x, y, width, height = (float(element.get(name, "")) for name in ("x", "y", "width", "height"))
            found.append(Box(dx + x, dy + y, dx + x + width, dy + y + height, "card"))
    return found


Segment = tuple[float, float, float, float]


def wires(root: ET.Element) -> list[list[Segment]]:
    """The straight pieces of each line."""
    found = []
    for element, dx, dy in placed(root):
        if element.tag == f"{NS}path" and "wire" in element.get("class", "").split():
            numbers = [float(number) for number in re.findall(r"-?[\d.]+", element.get("d", ""))]
            points = [(x + dx, y + dy) for x, y in zip(numbers[::2], numbers[1::2], strict=True)]
            found.append([(*a, *b) for a, b in pairwise(points)])
    return found


def opened(drawn: Scene) -> ET.Element:
    return ET.fromstring(svg_of(drawn))  # noqa: S314 - it is our own


@every_scene
def test_texts_do_not_overlap_and_stay_inside_the_picture(make: Callable[[], Scene]) -> None:
    root = opened(make())
    found = texts(root)
    page = Box(0, 0, float(root.get("width", "")), float(root.get("height", "")), "page")
    assert [box.what for box in found if not page.holds(box)] == []
    found.sort(key=lambda box: box.top)
    for i, box in enumerate(found):
        below = (other for other in found[i + 1 :] if other.top < box.bottom)
        assert [(box.what, other.what) for other in below if box.meets(other)] == []


@every_scene
def test_text_stays_inside_its_card_and_cards_do_not_overlap(make: Callable[[], Scene]) -> None:
    drawn = make()
    root = opened(drawn)
    found = cards(root)
    assert len(found) == len(drawn.cards)
    assert not any(a.meets(b) for a, b in combinations(found, 2))
    for box in texts(root):
        assert all(frame.holds(box) for frame in found if frame.meets(box)), box.what


@every_scene
def test_no_two_lines_overlap(make: Callable[[], Scene]) -> None:
    """They may cross; an overlap would hide which is which."""
    lines = wires(opened(make()))
    for one, other in combinations(lines, 2):
        assert not any(shared(a, b) > 2.5 for a in one for b in other), (one, other)


def shared(a: Segment, b: Segment) -> float:
    """The common length of two vertical or horizontal pieces."""
    for along, across in ((0, 1), (1, 0)):
        a_level, b_level = a[across] == a[across + 2], b[across] == b[across + 2]
        if a_level and b_level and abs(a[across] - b[across]) < 1:
            lows = min(a[along], a[along + 2]), min(b[along], b[along + 2])
            highs = max(a[along], a[along + 2]), max(b[along], b[along + 2])
            return min(highs) - max(lows)
    return 0.0


@every_scene
def test_no_line_crosses_a_text(make: Callable[[], Scene]) -> None:
    root = opened(make())
    found = texts(root)
    for x0, y0, x1, y1 in (piece for one in wires(root) for piece in one):
        reach = Box(min(x0, x1) - 0.5, min(y0, y1) - 0.5, max(x0, x1) + 0.5, max(y0, y1) + 0.5, "line")
        assert [box.what for box in found if reach.meets(box)] == []


@every_scene
def test_the_same_scene_gives_the_same_file(make: Callable[[], Scene]) -> None:
    assert svg_of(make()) == svg_of(make())


def test_names_are_escaped() -> None:
    text = svg_of(hostile())
    root = ET.fromstring(text)  # noqa: S314 - it is our own
    # No element but those we draw: a name can't make one.
    tags = {element.tag.removeprefix(NS) for element in root.iter()}
    assert tags <= {"svg", "title", "desc", "style", "rect", "g", "text", "path", "circle"}
    shown = HOSTILE
    for letter in "\n\x00\u202e\ud800":
        shown = shown.replace(letter, "\ufffd")
    assert root.findtext(f"{NS}title") == shown
    tips = {title.text for title in root.iter(f"{NS}title")}
    assert shown in tips
    assert "名前" * 60 + "👩\ufffd👩\ufffd👧" in tips


def test_the_file_loads_nothing_and_runs_nothing() -> None:
    for make in (hostile, heads):
        text = svg_of(make())
        assert re.findall(r"https?://[^\"<\s]*", text) == ["http://www.w3.org/2000/svg"]
        tags = "".join(re.findall(r"<[^>]*>", text))
        assert not re.search(r"url\(|@import|href|<script|\son\w+=", tags)


def test_dark_and_light_differ_only_in_colours() -> None:
    style = re.search(r"<style>(.*)</style>", svg_of(heads()), re.DOTALL)
    assert style is not None
    light, dark = style[1].split("@media (prefers-color-scheme:dark){")
    colour = re.compile("#[0-9a-f]{6}")
    dark_rules, light_rules = (
        [colour.sub("", line.strip()) for line in part.splitlines() if colour.search(line)] for part in (dark, light)
    )
    assert dark_rules == light_rules


@pytest.mark.parametrize("theme", [0, 1], ids=["light", "dark"])
def test_text_has_contrast(theme: int) -> None:
    """WCAG 2.2: text 4.5 to 1 (1.4.3), lines and bars 3 to 1 (1.4.11)."""
    style = svg_of(heads()).split("@media (prefers-color-scheme:dark){")[theme]
    colours = dict[str, str]()
    for marks, colour in re.findall(r"(svg [^{]+)\{(?:fill|stroke):(#[0-9a-f]{6})", style):
        for mark in marks.split(","):
            colours.setdefault(mark.removeprefix("svg "), colour)
    behind = [colours[name] for name in (".paper", ".card", ".stripe")]
    assert all(contrast(colours["text"], colours[band]) >= 4.5 for band in (".even", ".odd"))
    for name in ("text", "text.muted", "text.near", "text.far", "text.over"):
        assert all(contrast(colours[name], back) >= 4.5 for back in behind)
    for name in (".near .wire", ".far .wire", ".bar", ".bar.over", ".low"):
        assert all(contrast(colours[name], back) >= 3 for back in behind)


def contrast(one: str, other: str) -> float:
    bright, dim = sorted((luminance(one), luminance(other)), reverse=True)
    return (bright + 0.05) / (dim + 0.05)


def luminance(colour: str) -> float:
    parts = [int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)]
    linear = [part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def test_the_sequential_is_solid_and_the_residual_dashed() -> None:
    """Colour alone would tell nothing in print, and to some nothing on a screen."""
    text = svg_of(decoder(4))
    assert ".far .wire{stroke-dasharray" in text
    assert ".near .wire{stroke-dasharray" not in text
    assert '<g class="far" data-kind="bus"' in text


def test_over_budget_is_also_a_word() -> None:
    over = card(0, need_bytes=3 * MIB, budget_bytes=2 * MIB)
    assert "3 MiB, over" in words_of(scene([over]))
    assert "2 MiB" in words_of(scene([replace(over, need_bytes=2 * MIB)]))


def words_of(drawn: Scene) -> list[str]:
    return [box.what for box in texts(opened(drawn))]


def test_unknown_sizes_are_lower_bounds() -> None:
    drawn = scene([card(0), card(1)], [tensor("a", 0, 1, size=5 * KIB, is_exact=False)])
    assert words_of(drawn).count("≥ 5 KiB") == 4  # the bus, the lane, the boundary, the cell


def test_a_chain_of_up_to_four_parts_is_side_by_side() -> None:
    four, five = cards(opened(decoder(4))), cards(opened(decoder(5)))
    assert len({box.top for box in four}) == 1
    assert [box.left for box in four] == sorted({box.left for box in four})
    assert len({box.left for box in five}) == 1
    assert [box.top for box in five] == sorted({box.top for box in five})


def test_parts_of_the_same_depth_share_a_row() -> None:
    trunk, first, second, third = cards(opened(fork()))
    assert trunk.bottom < first.top == second.top == third.top
    assert first.right < second.left < second.right < third.left
    *_, depth, kind, boxes = cards(opened(heads()))
    assert depth.top == kind.top == boxes.top
    assert depth.right < kind.left < kind.right < boxes.left


def test_more_parallel_parts_than_fit_get_rows_of_their_own() -> None:
    found = cards(opened(wide(16)))
    assert len({box.left for box in found}) == 1


def test_what_is_left_out_is_counted_in_the_picture() -> None:
    shown_texts = words_of(tangle(24))
    # At most 6 buses leave a part, and there are 20 tracks.
    assert any(re.match(r"\d+ smaller buses are not drawn: \d+ tensors, ≥ ", words) for words in shown_texts)
    # 276 pairs and 22 tensors that all later parts read: 298 buses, of which 59 are drawn.
    assert any(words.startswith("and 239 more tensors, ") for words in shown_texts)


def test_boundaries_have_totals_if_there_are_residual_tensors() -> None:
    # 512 + 128 + 128 KiB and 4 MiB; at the last boundary as well.
    assert words_of(replace(decoder(4), profile=None)).count("4.75 MiB") == 7
    assert words_of(replace(decoder(9), profile=None)).count("4.75 MiB crosses in total") == 8


def test_every_cut_is_marked_with_what_crosses_there() -> None:
    root = opened(
        replace(decoder(4), tensors=(tensor("a", 0, 1), tensor("b", 1, 3), tensor("c", 2, 3, size=6 * MIB)), buses=())
    )
    assert [path.get("class") for path in root.iter(f"{NS}path")].count("cut") == 3
    assert [box.what for box in texts(root)].count("10 MiB") == 2  # in the lanes and at the last cut


def test_an_analysis_shows_the_best_cut_points() -> None:
    shown_texts = words_of(uncut())
    # One in each eighth of the nodes; the profile is lowest at indices that are 11 modulo 22.
    nodes = [words for words in shown_texts if words.startswith("/model/layers.")]
    assert len(nodes) == 8
    assert all(int(re.findall(r"\d+", name)[0]) % 22 == 11 for name in nodes)


def test_recomputations_and_notes_are_below_the_pictures() -> None:
    shown_texts = words_of(scene([card(0)], recomputed=("p1 computes a mask",), notes=("n counts as 1",)))
    assert {"p1 computes a mask", "n counts as 1"} <= set(shown_texts)


WIDE_SANS = {
    False: (
        "  318 !401 \"460 #838 $636 %950 &780 '275 (390 )390 *500 +838 ,318 -361 .318 /337 0636 1636 :337 ;337"
        " <838 =838 ?531 @1000 A684 B686 C698 D770 E632 F575 G775 H752 I295 J295 K656 L557 M863 N748 O787"
        " P603 Q787 R695 S635 T611 U732 V684 W989 X685 Y611 Z685 [390 \\337 ]390 ^838 _500 `500 a613 b635 c550"
        " d635 e615 f352 g635 h634 i278 j278 k579 l278 m974 n634 o612 p635 q635 r411 s521 t392 u634 v592 w818"
        " x592 y592 z525 {636 |337 }636 ~838 ·318 …1000 →838 ≥838 ✓838 ✗838 µ636"
    ),
    True: (
        "  348 !456 \"521 #838 $696 %1002 &872 '306 (457 )457 *523 +838 ,380 -415 .380 /365 0696 1696 :400"
        " ;400 <838 =838 ?580 @1000 A774 B762 C734 D830 E683 F683 G821 H837 I372 J372 K775 L637 M995 N837"
        " O850 P733 Q850 R770 S720 T682 U812 V774 W1103 X771 Y724 Z725 [457 \\365 ]457 ^838 _500 `500 a675"
        " b716 c593 d716 e678 f435 g716 h712 i343 j343 k665 l343 m1042 n712 o687 p716 q716 r493 s595 t478"
        " u712 v652 w924 x645 y652 z582 {712 |365 }712 ~838 ·380 …1000 →838 ≥838 ✓838 ✗838 µ736"
    ),
}
"""Advance widths of DejaVu Sans and its bold, in thousandths of an em, from the fonts themselves."""


@pytest.mark.parametrize("is_bold", [False, True], ids=["plain", "bold"])
def test_no_letter_is_wider_than_assumed(is_bold: bool) -> None:  # noqa: FBT001 - a parameter of the test
    face = BOLD if is_bold else BODY
    for letter, width in re.findall(r" (.)(\d{3,4})(?= |$)", WIDE_SANS[is_bold]):
        assert width_of(letter, face) >= face.size * int(width) / 1000, letter


def test_an_accent_that_stands_apart_takes_no_room() -> None:
    assert width_of("e\u0301te\u0301", BODY) == width_of("ete", BODY) < width_of("été", BODY)


def test_letters_of_one_width_are_as_wide_as_the_widest_of_such_fonts() -> None:
    # DejaVu Sans Mono and Menlo: 1233 of 2048.
    assert width_of("abc", CODE) >= 3 * CODE.size * 1233 / 2048


def test_a_name_loses_its_middle_and_a_sentence_its_end() -> None:
    name = "/model/layers.12/self_attn/Add_1"
    room = width_of("…self_attn/Add_1", CODE)
    assert fitted_names((name,), room, CODE) == {name: "/model/…tn/Add_1"}
    for whole in ("part-0", "part-10", name):
        assert fitted_names((whole,), width_of(whole, BOLD), BOLD) == {whole: whole}
    assert fitted(name, room, CODE) == "/model/layers.1…"
    assert fitted(name, width_of(name, CODE), CODE) == name
    assert fitted(name, 1, CODE) == ""


def test_a_sentence_is_wrapped_at_its_words() -> None:
    room = width_of("the quick brown", BODY)
    assert wrapped("the quick brown fox jumps", room, BODY) == ["the quick brown", "fox jumps"]


def test_branches_do_not_overlap() -> None:
    assert branches([(0, 5), (9, 5)], [[(9, 5), (12, 5)]]) == [[(0, 5), (9, 5), (9, 5), (12, 5)]]
    both = branches([(0, 5), (9, 5)], [[(9, 1), (12, 1)], [(9, 5), (12, 5)], [(9, 8), (12, 8)]])
    assert both == [
        [(0, 5), (9, 5), (9, 8), (12, 8)],
        [(9, 5), (12, 5)],
        [(9, 5), (9, 1), (12, 1)],
    ]
    above = branches([(0, 5), (9, 5)], [[(9, 1), (12, 1)], [(9, 3), (12, 3)]])
    assert above == [[(0, 5), (9, 5), (9, 1), (12, 1)], [(9, 3), (12, 3)]]
    below = branches([(0, 5), (9, 5)], [[(9, 7), (12, 7)], [(9, 8), (12, 8)]])
    assert below == [[(0, 5), (9, 5), (9, 8), (12, 8)], [(9, 7), (12, 7)]]


def test_only_text_of_unknown_width_has_a_text_length() -> None:
    assert "textLength" not in svg_of(scene([card(0, busy_s=5e-6)], sentence="Cut. ✓ same outputs as the original."))
    assert 'textLength="' in svg_of(scene([card(0, content="名前")]))


def test_reasons_and_notes_are_below_the_pictures_in_few_words() -> None:
    """Of a reason only the cut and the explanation; alternatives are for a screen."""
    shown_texts = " ".join(
        words_of(
            scene(
                [card(0), card(1)],
                [tensor("t", 0, 1)],
                reasons=lambda: (
                    "cut 0 after a\n4 MiB cross here; p0 is the bottleneck\nnext best after b: +1.0%, 5 MiB",
                ),
                notes=("sizes count seq as 1",),
            )
        )
    )
    assert "cut 0 after a: 4 MiB cross here; p0 is the bottleneck" in shown_texts
    assert "next best" not in shown_texts
    assert "sizes count seq as 1" in shown_texts


def test_the_title_of_a_profile_tells_if_it_is_a_lower_bound() -> None:
    def title(is_exact: bool) -> list[str]:  # noqa: FBT001 - a claim, and nothing else
        shown = scene((), profile=replace(profile(9, 0), exact=(True,) * 8 + (is_exact,)))
        return [shown_texts for shown_texts in words_of(shown) if shown_texts.startswith("Cut profile")]

    assert title(is_exact=True) == ["Cut profile: bytes alive after each node"]
    assert title(is_exact=False) == ["Cut profile: lower bound of the bytes alive after each node"]


def test_readers_of_a_bus_are_a_range() -> None:
    shown_texts = words_of(wide(8))
    assert any(text.endswith("part-1 to part-6") for text in shown_texts)


def ranked(ranks: int, rounds: int) -> Scene:
    """Parts of ranks, each of which reads what all ranks computed in the round before, and what the first one made."""
    parts = [(number, rank) for number in range(rounds) for rank in range(ranks)]
    cards = [card(i, device=f"{HOSTILE} {rank}", rank=rank) for i, (_, rank) in enumerate(parts)]
    readers = [[ranks * (number + 1) + other for other in range(ranks)] for number, _ in parts if number + 1 < rounds]
    ends = [*enumerate(readers), (0, [len(parts) - 1])]
    tensors = [tensor(f"t{i}", source, *found) for i, (source, found) in enumerate(ends)]
    return scene(cards, [replace(one, is_exchange=True) for one in tensors])


@pytest.mark.parametrize(("ranks", "rounds"), [(2, 3), (4, 40)])
def test_ranks_are_rows_and_lines_are_exchanges_between_them(ranks: int, rounds: int) -> None:
    shown = ranked(ranks, rounds)
    drawn = ET.fromstring(svg_of(shown))  # noqa: S314 - it is our own
    groups = {kind: drawn.findall(f".//{{*}}g[@data-kind='{kind}']") for kind in ("card", "bus")}
    boxes = [one.find("{*}rect") for one in groups["card"]]
    places = [(float(box.get("x", "")), float(box.get("y", ""))) for box in boxes if box is not None]
    rows = [places[rank::ranks] for rank in range(ranks)]
    assert sorted({y for _, y in places}) == [row[0][1] for row in rows]
    assert all(len({y for _, y in row}) == 1 for row in rows)
    assert all([x for x, _ in row] == sorted({x for x, _ in places}) for row in rows)
    lines = [path.get("d", "") for one in groups["bus"][: len(shown.buses)] for path in one.findall("{*}path")]
    assert len(lines) == (rounds - 1) * ranks * (ranks - 1) + 1
    for path in lines:
        (x0, y0), (x1, y1) = (map(float, point.split()) for point in path.removeprefix("M").split("L"))
        assert x0 < x1
        assert y0 != y1
