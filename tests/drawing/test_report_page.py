"""The HTML page, in a real browser: what it shows, how it is used, and that it does nothing else."""

from __future__ import annotations

import json
import random
import re
from collections.abc import Callable
from dataclasses import replace

import pytest

from graphcut.core.units import duration, operations, size
from graphcut.drawing.html import html_of
from graphcut.drawing.scene import OtherPlan, Scene

from browser import Page, Show
from scenes_by_hand import (
    HOSTILE,
    KIB,
    MIB,
    card,
    data_of,
    decoder,
    hostile,
    profile,
    scene,
    tangle,
    tensor,
    uncut,
)


def texts(page: Page, selector: str) -> list[str]:
    """The text of all elements that `selector` finds."""
    found: list[str] = page.evaluate(
        f"[...document.querySelectorAll({json.dumps(selector)})].map((element) => element.textContent)"
    )
    return found


def panel(page: Page) -> dict[str, str]:
    """The words and values of the panel, and its `title`."""
    words = texts(page, "#panel dt")
    return {"title": texts(page, "#panel h2")[0], **dict(zip(words, texts(page, "#panel dd"), strict=True))}


def titles(page: Page) -> list[str]:
    """Those of the sections that have a content."""
    found: list[str] = page.evaluate(
        "[...document.querySelectorAll('section')].filter((one) => one.checkVisibility())"
        ".map((one) => one.querySelector('h2').textContent)"
    )
    return found


def rows(page: Page, section: str) -> list[list[str]]:
    """The cells of a section's first table, without its head."""
    cells = "(row) => [...row.cells].map((cell) => cell.textContent)"
    found: list[list[str]] = page.evaluate(f"[...document.querySelector('{section} tbody').rows].map({cells})")
    return found


def position_of(page: Page, node: int, nodes: int) -> tuple[float, float]:
    """The end of a node in the profile, whose margins are 74 and 12 pixels."""
    page.evaluate("document.querySelector('#profile .plot').scrollIntoView({block: 'center'})")
    left, top, width = page.evaluate(
        "(({x, y, width}) => [x, y, width])(document.querySelector('#profile .plot').getBoundingClientRect())"
    )
    return left + 74 + (node + 1) / nodes * (width - 86), top + 150


def long_decoder(parts: int, nodes: int) -> Scene:
    """A decoder of so many nodes, the weights spread evenly over them."""
    usual = decoder(parts, nodes=nodes)
    assert usual.profile is not None
    return replace(usual, profile=replace(usual.profile, weights=tuple(i * MIB for i in range(1, nodes + 1))))


# Without a browser.


def test_the_same_scene_gives_the_same_page() -> None:
    assert html_of(decoder(4)) == html_of(decoder(4))


def test_the_policy_allows_only_the_style_and_the_script() -> None:
    (config,) = re.findall(r'http-equiv="Content-Security-Policy" content="(.*?)">', html_of(decoder(4)))
    digest = r"'sha256-[\w+/]{43}='"
    assert re.fullmatch(
        f"default-src 'none'; style-src {digest}; script-src {digest} {digest}; base-uri 'none'; form-action 'none'",
        config,
    )


def test_the_page_names_no_other_file_and_no_address() -> None:
    page = html_of(decoder(4)).replace("http://www.w3.org/2000/svg", "")
    assert not re.search(r"https?:|<link|<img|@import|url\(|\ssrc=|\shref=", page)


def test_twenty_thousand_nodes_fit_into_two_megabytes() -> None:
    made = random.Random(0)  # noqa: S311 - no secret
    usual = profile(20_000, 4)
    names = tuple(
        f"/model/diffusion_model/middle_block.{i // 90}/transformer_blocks.{i // 30 % 3}/attn1/to_out/"
        f"{made.choice(['MatMul', 'Reshape', 'Transpose', 'Constant'])}_{i}_quant"
        for i in range(20_000)
    )
    sizes = tuple(made.randrange(10**8, 10**9) for _ in names)
    large = replace(usual, nodes=names, alive=sizes, tensors=(137,) * 20_000)
    page = html_of(replace(decoder(4), profile=large))
    assert sum(map(len, names)) > 1_700_000
    assert len(page.encode()) < 2_000_000


def test_names_cannot_end_the_data() -> None:
    page = html_of(hostile())
    assert data_of(page)["cards"][0]["name"] == HOSTILE
    assert page.count("<script") == 4


def test_a_name_can_look_like_a_placeholder() -> None:
    page = html_of(scene([card(0)], title="{{data}}.onnx"))
    assert "<h1>{{data}}.onnx</h1>" in page


def test_without_scripts_the_page_names_the_command() -> None:
    (words,) = re.findall(r"<noscript>(.*?)</noscript>", html_of(decoder(4)), flags=re.DOTALL)
    assert "graphcut show" in words


# In the browser.


def test_the_answer_has_figures_in_bold_and_a_badge_for_parts_over_budget(show: Show) -> None:
    page = show(replace(decoder(4), sentence="Cut into 4 parts. The largest, part-3.onnx, needs 3.3 GiB."))
    assert page.evaluate("document.querySelector('.answer').innerText") == (
        "Cut into 4 parts. The largest, part-3.onnx, needs 3.3 GiB. ✗ 1 part over budget"
    )
    assert texts(page, ".answer b") == ["4 parts", "part-3.onnx", "3.3 GiB"]


def test_parts_are_side_by_side_with_a_line_for_each_tensor(show: Show) -> None:
    page = show(decoder(4))
    assert texts(page, "#map .part b") == ["part-0", "part-1", "part-2", "part-3"]
    boxes = "[...document.querySelectorAll('#map .part')].map((part) => part.getBoundingClientRect())"
    lefts = page.evaluate(f"{boxes}.map((box) => box.x)")
    assert lefts == sorted(set(lefts))
    assert len(set(page.evaluate(f"{boxes}.map((box) => box.y)"))) == 1
    kinds = "[...document.querySelectorAll('#map [data-kind=tensor]')].map((one) => one.classList[1])"
    assert page.evaluate(kinds) == ["far"] * 3 + ["near"] * 3


def test_one_part_has_a_map_without_buses(show: Show) -> None:
    page = show(scene([card(0, content="everything")], sentence="Cut into 1 part."))
    assert titles(page) == ["Parts", "Parts and tensors between them"]
    assert rows(page, "#parts") == [["part-0.onnx · everything", "100", "3 GiB", "3 GiB"]]


def test_a_model_that_is_not_cut_shows_its_cut_points(show: Show) -> None:
    page = show(uncut())
    assert titles(page) == [
        "Cut profile: bytes alive after each node",
        "Cut points",
    ]


def test_over_budget_is_also_a_word(show: Show) -> None:
    page = show(
        scene([card(0, need_bytes=3 * MIB, budget_bytes=2 * MIB), card(1, need_bytes=MIB, budget_bytes=2 * MIB)])
    )
    assert texts(page, ".badge.bad") == ["✗ 1 part over budget"]
    assert panel(page)["of budget"] == "150 %, 1 MiB over"
    assert texts(page, "#map .part.bad span") == ["3 MiB", "over budget"]


def test_each_chart_has_a_table(show: Show) -> None:
    small = scene(
        [card(0), card(1), card(2)], [tensor("a", 0, 1, size=3 * KIB), tensor("b", 0, 2, size=5 * KIB, is_exact=False)]
    )
    page = show(replace(small, profile=profile(60, 3)))
    page.evaluate("document.querySelectorAll('details').forEach((details) => { details.open = true; })")
    page.wait_for("document.querySelector('#map tbody')")
    assert rows(page, "#map") == [
        ["a", "float16[1,512,4096]", "3 KiB", "part-0.onnx", "part-1.onnx", "sequential"],
        ["b", "float16[1,512,4096]", "≥ 5 KiB", "part-0.onnx", "part-2.onnx", "residual"],
    ]
    # cos(i / 7) is nought near i = 11, 33 and 55.
    assert texts(page, "#cut-points [data-title=number]") == ["12", "34", "56"]


def test_a_click_shows_what_a_cut_costs(show: Show) -> None:
    page = show(uncut(400))
    page.click(*position_of(page, 120, 400))
    values = panel(page)
    assert values["node"] == "121 of 400"
    assert values["a cut here sends"] == size(profile(400, 0).alive[120])
    assert texts(page, "#panel code") == ["graphcut split model.onnx --at-nodes=/model/layers.120/add"]
    page.evaluate("navigator.clipboard.writeText = (text) => { window.copied = text; return Promise.resolve(); }")
    page.evaluate("document.querySelector('#copy').click()")
    page.wait_for("document.querySelector('#copy').textContent === 'Copied'")
    assert page.evaluate("window.copied") == "graphcut split model.onnx --at-nodes=/model/layers.120/add"


def test_a_click_among_many_nodes_finds_the_cheapest_near_it(show: Show) -> None:
    page = show(uncut(20_000))
    page.click(*position_of(page, 10_000, 20_000))
    values = panel(page)
    assert values["key node"] == "yes"
    assert abs(int(values["node"].split(" of ")[0].replace(",", "")) - 10_000) < 200


def test_dragging_zooms_and_the_button_goes_back(show: Show) -> None:
    page = show(uncut(4000))
    start, height = position_of(page, 1000, 4000)
    end, _ = position_of(page, 1100, 4000)
    page.drag(start, end, height)
    page.click(*position_of(page, 50, 100))  # the middle of what is left in sight
    assert int(panel(page)["node"].split(" of ")[0].replace(",", "")) == pytest.approx(1052, abs=6)
    page.evaluate("document.querySelector('#reset').click()")
    page.click(*position_of(page, 3000, 4000))
    assert int(panel(page)["node"].split(" of ")[0].replace(",", "")) == pytest.approx(3001, abs=20)


def test_arrows_step_and_brackets_jump_to_key_nodes(show: Show) -> None:
    page = show(uncut(400))
    first, second, *_ = profile(400, 0).keys
    page.press("]")
    assert panel(page)["node"] == f"{first + 1} of 400"
    page.press("]", "]", "[")
    assert panel(page)["node"] == f"{second + 1} of 400"
    page.evaluate("document.querySelector('#profile .plot').focus()")
    page.press("ArrowRight", "ArrowRight", "ArrowLeft")
    assert panel(page)["node"] == f"{second + 2} of 400"
    spoken = page.evaluate("document.querySelector('#profile .plot').getAttribute('aria-valuetext')")
    sent = size(profile(400, 0).alive[second + 1])
    assert spoken == f"/model/layers.{second + 1}/add, Add: a cut here sends {sent}"


def test_shift_and_an_arrow_step_where_there_is_no_cut_to_move(show: Show) -> None:
    page = show(uncut(400))
    page.evaluate("document.querySelector('#profile .plot').focus()")
    for node in (1, 2):
        page.call("Input.dispatchKeyEvent", type="keyDown", key="ArrowRight", windowsVirtualKeyCode=39, modifiers=8)
        assert panel(page)["node"] == f"{node} of 400"


def test_tab_reaches_everything_and_enter_pins_it(show: Show) -> None:
    page = show(decoder(3))
    reached: list[str] = []
    while reached.count("theme") < 2 and len(reached) < 100:
        page.press("Tab")
        reached.append(page.evaluate("document.activeElement.dataset.kind ?? document.activeElement.id"))
    assert reached[:2] == ["theme", "help"]
    assert [kind for kind in reached if kind in {"card", "tensor"}] == ["card"] * 3 + ["tensor"] * 5
    assert "log" in reached


def test_what_is_pinned_stays_until_escape(show: Show) -> None:
    page = show(decoder(3))
    page.evaluate("document.querySelectorAll('#map [data-kind=card]')[1].focus()")
    page.press("Enter", "Tab")
    page.evaluate("document.activeElement.blur()")
    assert panel(page)["title"] == "part-1.onnx · layers 2-3"
    assert page.evaluate("document.querySelectorAll('#map [data-kind=card]')[1].getAttribute('aria-pressed')") == "true"
    page.press("Escape")
    assert panel(page)["title"] == "part-2.onnx · layers 4-5"
    assert page.evaluate("document.querySelectorAll('[aria-pressed=true]').length") == 0


def test_the_focused_part_has_a_ring(show: Show) -> None:
    page = show(decoder(3))
    ring = "getComputedStyle(document.activeElement).outlineWidth"
    while page.evaluate("document.activeElement.dataset.kind") != "card":
        page.press("Tab")
    assert page.evaluate(ring) == "3px"


def test_slash_searches_and_enter_goes_from_hit_to_hit(show: Show) -> None:
    page = show(uncut(400))
    page.press("/")
    assert page.evaluate("document.activeElement.id") == "search"
    page.press(*"layers.37", "Enter")
    assert texts(page, "#search + output") == ["1 of 11"]  # 37 and 370 to 379
    assert panel(page)["title"] == "/model/layers.37/add"
    page.press("Enter")
    assert panel(page)["title"] == "/model/layers.370/add"
    assert texts(page, "#search + output") == ["2 of 11"]


def test_a_question_mark_lists_the_keys(show: Show) -> None:
    page = show(uncut())
    page.press("?")
    assert page.evaluate("document.querySelector('#keys').open")
    page.press("Escape")
    assert not page.evaluate("document.querySelector('#keys').open")


def test_sentences_and_plans_have_sections(show: Show) -> None:
    others = (
        OtherPlan(period_s=0.008, latency_s=0.03, is_chosen=True),
        OtherPlan(period_s=0.01, latency_s=0.02, is_chosen=False),
    )
    shown = scene(
        [card(0)],
        recomputed=("p1 computes m.",),
        reasons=lambda: ("cut 0 after /add\n128 KiB cross here",),
        notes=("n is 1",),
        details=(("goal", "into 4"),),
        other_plans=others,
    )
    page = show(shown)
    assert texts(page, "#recomputed li") == ["p1 computes m."]
    assert texts(page, "#reasons li div") == ["cut 0 after /add", "128 KiB cross here"]
    assert texts(page, "header .notes li") == ["n is 1"]
    assert texts(page, "#details :is(dt, dd)") == ["goal", "into 4"]
    assert rows(page, "#other-plans") == [["8 ms", "30 ms", "this plan"], ["10 ms", "20 ms", ""]]


def test_what_is_not_drawn_is_counted(show: Show) -> None:
    page = show(tangle(20))  # 190 pairs and 18 that go to all
    assert page.evaluate("document.querySelectorAll('#map [data-kind=bus]').length") == 40
    assert texts(page, "#map .chart > .lead")[0].startswith("and 168 more tensors, ")
    page.evaluate("document.querySelectorAll('details').forEach((details) => { details.open = true; })")
    page.wait_for("document.querySelector('#map tbody')")
    assert len(rows(page, "#map")) == 208


def test_a_cut_point_leads_to_its_node_in_the_profile(show: Show) -> None:
    page = show(decoder(4))
    page.evaluate("document.querySelector('#cut-points button.link').click()")
    assert panel(page)["title"] == page.evaluate("document.querySelector('#cut-points button.link').title")
    assert page.evaluate("document.activeElement.className") == "plot"


def test_twenty_thousand_nodes_are_searched_at_once(show: Show, record_property: Callable[[str, object], None]) -> None:
    page = show(long_decoder(4, 20_000))
    spent = page.evaluate("document.documentElement.dataset.milliseconds")
    record_property("script_ms", spent)
    print(f"\nscript time for 20,000 nodes: {spent} ms")  # noqa: T201 - a figure for people
    page.press("/", *"layers.19000/", "Enter")
    assert texts(page, "#search + output") == ["1 of 1"]
    assert panel(page)["title"] == "/model/layers.19000/add"


def test_a_hundred_thousand_nodes_open_and_answer(show: Show) -> None:
    page = show(long_decoder(8, 100_000))
    print(f"\nscript time for 100,000 nodes: {page.evaluate('document.documentElement.dataset.milliseconds')} ms")  # noqa: T201 - a figure for people
    page.press("]")
    assert panel(page)["node"].endswith("of 100,000")


def test_names_are_never_markup(show: Show) -> None:
    harm = "</script><img src=x onerror=\"document.title='harmed'\"><script>document.title='harmed'</script>"
    name = f"{harm}\n'{HOSTILE}"
    usual = profile(30, 2)
    nodes = tuple(f"{name}{i}" for i in range(30))
    cut_options = tuple(replace(option, node=name, module=harm) for option in usual.cut_options)
    shown = replace(
        hostile(), title=harm, sentence=harm, next_command=harm, reasons=lambda: (harm,), notes=(harm,),
        profile=replace(usual, nodes=nodes, ops=(harm,) * 30, cut_options=cut_options),
    )  # fmt: skip
    page = show(shown)
    page.evaluate("document.querySelectorAll('details').forEach((details) => { details.open = true; })")
    page.evaluate("document.querySelectorAll('[data-kind]').forEach((thing) => thing.focus())")
    page.press("]", "/", "x")
    assert page.evaluate("document.title") == f"{harm} · graphcut"
    assert page.evaluate("document.querySelectorAll('img').length") == 0
    assert page.evaluate("document.querySelectorAll('script').length") == 5
    assert texts(page, ".notes li") == [harm]


def test_the_command_to_copy_is_one_command_whatever_the_name(show: Show) -> None:
    names = ("/plain/Add_1", "it's $(rm)", "two\nlines\x1b[2J\\'", "-x", "é;👩")
    commands = (
        "/plain/Add_1",
        "'it'\"'\"'s $(rm)'",
        r"$'two\x0alines\x1b[2J\x5c\x27'",
        "-x",
        "'é;👩'",
    )
    page = show(scene([], profile=replace(profile(5, 0), nodes=names, cut_options=(), keys=())))
    page.evaluate("document.querySelector('#profile .plot').focus()")
    page.press("Home")
    for command in commands:
        assert texts(page, "#panel code") == [f"graphcut split model.onnx --at-nodes={command}"]
        page.press("ArrowRight")


def test_the_command_to_copy_names_the_path_of_the_model_and_one_node(show: Show) -> None:
    names = ("a,b", 'say "hi"', "a, \n")
    commands = ("'\"a,b\"'", '\'"say ""hi"""\'', r"""$'"a, \x0a"'""")
    page = show(
        scene([], model="my models/it's.onnx", profile=replace(profile(3, 0), nodes=names, cut_options=(), keys=()))
    )
    page.evaluate("document.querySelector('#profile .plot').focus()")
    page.press("Home")
    for command in commands:
        assert texts(page, "#panel code") == [f"""graphcut split 'my models/it'"'"'s.onnx' --at-nodes={command}"""]
        page.press("ArrowRight")


def test_dark_and_light_follow_the_system_and_the_key(show: Show) -> None:
    ground = "getComputedStyle(document.body).backgroundColor"
    page = show(decoder(4), dark=True)
    dark = page.evaluate(ground)
    page.press("t")
    light = page.evaluate(ground)
    assert sum(map(int, re.findall(r"\d+", dark))) < 100
    assert sum(map(int, re.findall(r"\d+", light))) > 600
    assert show(decoder(4)).evaluate(ground) == light


CONTRAST = """
(() => {
  const light = (colour) => {
    const parts = colour.match(/[\\d.]+/g).slice(0, 3).map((part) => part / (colour.startsWith("color") ? 1 : 255))
      .map((part) => (part <= 0.03928 ? part / 12.92 : ((part + 0.055) / 1.055) ** 2.4));
    return 0.2126 * parts[0] + 0.7152 * parts[1] + 0.0722 * parts[2];
  };
  const ground = (element) => {
    for (let at = element; at; at = at.parentElement) {
      const colour = getComputedStyle(at).backgroundColor;
      if (!/, 0\\)$/.test(colour)) return colour;
    }
  };
  const low = [];
  for (const element of document.querySelectorAll("body *")) {
    const own = [...element.childNodes].some((node) => node.nodeType === 3 && node.textContent.trim());
    if (!own || !element.getClientRects().length) continue;
    const style = getComputedStyle(element);
    const grounds = [ground(element)];
    if (element.closest("svg")) {
      const variables = getComputedStyle(document.documentElement);
      const swatch = document.createElement("i");
      document.body.append(swatch);
      for (const name of ["paper", "card", "stripe"]) {
        swatch.style.color = variables.getPropertyValue(`--${name}`);
        grounds.push(getComputedStyle(swatch).color);
      }
      swatch.remove();
    }
    const ink = light(element instanceof SVGElement ? style.fill : style.color);
    for (const paper of grounds.map(light)) {
      const ratio = (Math.max(ink, paper) + 0.05) / (Math.min(ink, paper) + 0.05);
      if (ratio < 4.5) low.push(`${ratio.toFixed(2)} ${element.tagName} ${element.textContent}`);
    }
  }
  return low;
})()
"""


@pytest.mark.parametrize("dark", [False, True])
def test_all_text_has_contrast(show: Show, *, dark: bool) -> None:
    """WCAG 2.2, success criterion 1.4.3: contrast of at least 4.5 to 1."""
    page = show(replace(decoder(4), sentence="Cut into 4 parts."), dark=dark)
    page.press("]")
    page.evaluate("document.querySelectorAll('button[aria-pressed]').forEach((button) => button.click())")
    assert page.evaluate(CONTRAST) == []


@pytest.mark.parametrize("width", [360, 800, 1320, 2400])
def test_the_page_is_never_wider_than_the_window(show: Show, width: int) -> None:
    page = show(decoder(16), width=width)
    assert page.evaluate("document.documentElement.scrollWidth") <= width


def test_on_a_phone_no_table_is_cut_off_and_no_cell_is_a_column_of_syllables(show: Show) -> None:
    usual = profile(60, 3)
    module = "model/layers.17/post_attention_layernorm/Cast"
    options = tuple(replace(option, node=f"/{module}/Mul", module=module) for option in usual.cut_options)
    page = show(replace(decoder(3), profile=replace(usual, cut_options=options)), width=390)
    page.evaluate("document.querySelectorAll('details').forEach((details) => { details.open = true; })")
    page.wait_for("document.querySelector('#map tbody')")
    fits = "(box) => box.scrollWidth <= box.clientWidth"
    assert page.evaluate(f"[...document.querySelectorAll('.scroll')].every({fits})")
    assert page.evaluate("Math.max(...[...document.querySelectorAll('td')].map((cell) => cell.clientHeight))") < 60
    before = "(cell) => getComputedStyle(cell, '::before').content"
    titles = page.evaluate(f"[...document.querySelectorAll('#cut-points td:not(.name)')].map({before})")
    assert titles[:3] == ['"module "', '"number "', '"sends "']
    roles = "[...document.querySelectorAll('#parts [role]')].map((one) => one.getAttribute('role'))"
    assert set(page.evaluate(roles)) == {"table", "rowgroup", "row", "columnheader", "cell"}


def test_every_mark_says_what_it_is(show: Show) -> None:
    page = show(decoder(3))
    assert all(page.evaluate("[...document.querySelectorAll('#map [data-kind]')].map((mark) => mark.title)"))
    assert page.evaluate("document.querySelector('#map [data-kind=tensor]').title").endswith(
        " from part-0.onnx to part-1.onnx, part-2.onnx; residual: skips a part"
    )


def test_printing_uses_the_light_theme_without_buttons_and_with_notes(show: Show) -> None:
    page = show(replace(decoder(4), notes=("n is 1",)), dark=True)
    ground = "getComputedStyle(document.querySelector('#map')).backgroundColor"
    dark = page.evaluate(ground)
    page.press("t", "t")  # dark as one has chosen
    assert page.evaluate(ground) == dark != "rgb(255, 255, 255)"
    page.call("Emulation.setEmulatedMedia", media="print")
    assert page.evaluate(ground) == "rgb(255, 255, 255)"
    assert page.evaluate("getComputedStyle(document.querySelector('#panel')).display") == "none"
    assert page.evaluate("getComputedStyle(document.querySelector('#map')).display") != "none"
    assert page.evaluate("document.querySelector('.notes li').checkVisibility({contentVisibilityAuto: true})")
    page.call("Emulation.setEmulatedMedia", media="")
    assert page.evaluate(ground) == dark


def test_the_page_writes_numbers_as_units_py(show: Show) -> None:
    made = random.Random(1)  # noqa: S311 - no secret
    numbers = [0, 1, 999, 1000, 1023, 4325376, 4 * MIB + MIB // 8, 999 * KIB + 511, *(1 << i for i in range(50))]
    numbers += [made.randrange(1 << made.randrange(1, 50)) for _ in range(300)]
    seconds = [number / 7e7 for number in numbers[1:]]
    cards = [
        card(i, weight_bytes=number, flops=number, busy_s=time)
        for i, (number, time) in enumerate(zip(numbers[1:], seconds, strict=True))
    ]
    page = show(scene(cards))
    shown = [[row[2], row[4], row[5]] for row in rows(page, "#parts")]
    assert shown == [
        [
            size(one.weight_bytes),
            f"{operations(one.flops or 0)}FLOP",
            duration(one.busy_s or 0),
        ]
        for one in cards
    ]


# The dependency maps as a matrix


def test_the_matrix_shows_what_each_part_reads_of_each_other(show: Show) -> None:
    page = show(decoder(3), width=390)
    cells = "(row) => [...row.cells].map((cell) => cell.textContent)"
    assert page.evaluate(f"[...document.querySelectorAll('#matrix tr')].map({cells})") == [
        ["part-0", "0", "4.75 MiB", "768 KiB"],
        ["part-1", "", "1", "4 MiB"],
        ["part-2", "", "", "2"],
    ]
    assert page.evaluate("document.querySelector('#matrix tr td:last-child button').ariaLabel") == (
        "part-0 → part-2: 768 KiB, 3 tensors; residual"
    )
    page.evaluate("document.querySelector('#matrix .near').focus()")
    assert panel(page)["names"].startswith("/model/Where_2_output_0, /model/rotary_emb/Cast_1_output_0, ")


def test_names_of_the_matrix_do_not_cover_its_cells_on_a_phone(show: Show) -> None:
    cards = [card(i, name=f"a-part-with-a-very-long-name-{i}.onnx") for i in range(5)]
    page = show(scene(cards, [tensor("t", 0, 1, 4)]), width=390)
    right = "[...document.querySelectorAll('#matrix .middle')].map((one) => one.getBoundingClientRect().right)"
    left = "document.querySelector('#matrix td').getBoundingClientRect().left"
    assert max(page.evaluate(right)) <= page.evaluate(left)


def test_exchanges_between_ranks_are_told_from_what_a_rank_keeps(show: Show) -> None:
    cards = [card(i, name=f"part-{i // 2}.rank-{i % 2}.onnx", device=f"rank-{i % 2}", rank=i % 2) for i in range(4)]
    tensors = [tensor("met", 0, 2, 3), tensor("own", 1, 3)]
    met, own = (replace(one, is_exchange=is_met) for one, is_met in zip(tensors, (True, False), strict=True))
    page = show(scene(cards, [met, own], profile=profile(40, 4)))
    page.evaluate("document.querySelectorAll('details').forEach((details) => { details.open = true; })")
    page.wait_for("document.querySelector('#map tbody')")
    assert [row[-1] for row in rows(page, "#map")] == ["exchange", "kept"]
    marks = "[...document.querySelectorAll('#matrix button')].map((one) => [one.className, one.title.split('; ')[1]])"
    assert page.evaluate(marks) == [["muted", "kept"], ["near", "exchange"], ["muted", "kept"]]
    assert "skip" not in page.evaluate("document.querySelector('main').textContent")
    assert page.evaluate("document.querySelectorAll('.cutting').length") == 0


# Links into the page


def test_a_link_pins_what_it_names(show: Show) -> None:
    page = show(replace(decoder(4), tensors=(tensor("a b#/%", 0, 1),)))
    for link, title in (
        ("#part=2", "part-2.onnx"),
        ("#tensor=a%20b%23%2F%25", "a b#/%"),
        ("#node=%2Fmodel%2Flayers.700%2Fadd", "/model/layers.700/add"),
        ("#node=/model/layers.9/add", "/model/layers.9/add"),
        ("#at=1234", "/model/layers.1233/add"),
    ):
        page.evaluate(f"location.hash = {link!r}")
        page.wait_for(f"document.querySelector('#panel h2').textContent.startsWith({title!r})")
    # What names nothing leaves things as they are.
    for link in ("#part=4", "#part=x", "#tensor=none", "#node=none", "#at=0", "#at=99999", "#node=%", "#other=1", "#"):
        page.evaluate(
            f"new Promise((done) => {{ onhashchange = done; location.hash = 'x'; location.hash = {link!r}; }})"
        )
        assert panel(page)["title"] == "/model/layers.1233/add"


def test_the_address_links_to_what_is_pinned(show: Show) -> None:
    nodes = ("twin", "twin", "a b#/%", "", "\ud800")
    page = show(scene([card(0), card(1)], [tensor("a b", 0, 1)], profile=replace(profile(5, 2), nodes=nodes)))
    assert page.evaluate("location.hash") == ""
    for selector, link in (("[data-kind=card]", "#part=0"), ("[data-kind=tensor]", "#tensor=a+b")):
        page.evaluate(f"document.querySelector({selector!r}).dispatchEvent(new Event('click'))")
        page.wait_for(f"location.hash === {link!r}")
    page.evaluate("document.querySelector('#profile .plot').focus()")
    page.press("Home")
    for link in ("#node=twin", "#at=2", "#node=a+b%23%2F%25", "#at=4", "#node=%EF%BF%BD"):
        page.wait_for(f"location.hash === {link!r}")
        page.press("ArrowRight")
    page.press("Escape")
    page.wait_for("location.hash === ''")


# Sizes that are not known


def test_an_address_that_is_set_while_the_page_writes_its_own_is_followed(show: Show) -> None:
    """The page writes its address some time after a change: not over one that was set meanwhile."""
    page = show(scene([], profile=profile(6, 0)))
    page.evaluate("location.hash = '#at=2'")
    page.wait_for("document.querySelector('#panel dl').textContent.includes('2 of 6')")
    # Both are due when the loop ends: the new address is set first, and the page writes before the event of it.
    late = "const end = performance.now() + 300; while (performance.now() < end);"
    page.evaluate(f"{{ setTimeout(() => {{ location.hash = '#at=5' }}); {late} }}")
    page.wait_for("document.querySelector('#panel dl').textContent.includes('5 of 6')")


def test_the_profile_marks_lower_bounds(show: Show) -> None:
    usual = profile(6, 0)
    shown = replace(usual, exact=(False, True, True, False, False, True), cut_options=())
    page = show(scene([], profile=shown))
    marks = []
    for node in range(6):
        page.evaluate(f"location.hash = '#at={node + 1}'")
        page.wait_for(f"document.querySelector('#panel dl').textContent.includes('{node + 1} of 6')")
        marks.append(panel(page)["a cut here sends"].startswith("≥ "))
    assert marks == [True, False, False, True, True, False]
    assert "≥ marks a lower bound" in texts(page, "#profile .lead")[0]
    assert "≥" not in texts(show(uncut(6)), "#profile .lead")[0]
