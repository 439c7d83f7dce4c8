"""The Mermaid renderer: GitHub's limits, hostile names."""

from __future__ import annotations

import re
from collections.abc import Callable

import pytest

from graphcut.drawing import mermaid
from graphcut.drawing.mermaid import MAX_CHARACTERS, MAX_EDGES, mermaid_of
from graphcut.drawing.scene import Scene

from cases import each
from scenes_by_hand import HOSTILE, KIB, card, decoder, fork, heads, hostile, scene, tangle, tensor, uncut

EDGE = re.compile(r"  [pb]\d+ (-->|-\.->|---|-\.-)(\|S\|)? [pb]\d+")
STATEMENT = re.compile(
    rf"flowchart LR|  subgraph d\d+\[S\]|  end|  (  )?p\d+\[S\]|  b\d+\(\[S\]\)|  note\[S\]|{EDGE.pattern}"
    r"|  linkStyle [\d,]+ stroke:#[0-9a-f]{6}(,stroke-dasharray:6 4)?"
)


def outside_strings(text: str) -> list[str]:
    return re.sub('"[^"]*"', "S", text).splitlines()


def edges(text: str) -> list[str]:
    return [line for line in outside_strings(text) if EDGE.fullmatch(line)]


def shown(text: str) -> list[str]:
    """The quoted strings, as Mermaid shows them; a line break as `|`."""
    found = [inner.replace("<br/>", "|") for inner in re.findall('"([^"]*)"', text)]
    return [re.sub(r"#(\d+);", lambda match: chr(int(match[1])), inner) for inner in found]


@each(
    "make",
    [lambda: decoder(1), lambda: decoder(20), fork, heads, hostile, uncut, lambda: tangle(64), lambda: scene(())],
)
def test_the_text_is_mermaid(make: Callable[[], Scene]) -> None:
    assert [line for line in outside_strings(mermaid_of(make())) if not STATEMENT.fullmatch(line)] == []


def test_the_text_for_three_parts() -> None:
    cards = [
        card(0, need_bytes=5 * KIB, content="embedding", device="phone"),
        card(1, need_bytes=9 * KIB, budget_bytes=8 * KIB, device="phone"),
        card(2, need_bytes=1),
    ]
    tensors = [
        tensor("a", 0, 1, size=2 * KIB),
        tensor("b", 0, 1, size=KIB, is_exact=False),
        tensor("m", 0, 1, 2, size=7),
    ]
    assert mermaid_of(scene(cards, tensors)).splitlines() == [
        "flowchart LR",
        '  subgraph d0["phone"]',
        '    p0["part-0.onnx<br/>embedding<br/>weights and graph 5 KiB"]',
        '    p1["part-1.onnx<br/>weights and graph 9 KiB of 8 KiB, over"]',
        "  end",
        '  p2["part-2.onnx<br/>weights and graph 1 B"]',
        '  p0 -->|"at least 3 KiB, 2 tensors"| p1',
        '  b1(["7 B, 1 tensor"])',
        "  p0 -.- b1",
        "  b1 -.-> p1",
        "  b1 -.-> p2",
        "  linkStyle 0 stroke:#1f5fbf",
        "  linkStyle 1,2,3 stroke:#b04a06,stroke-dasharray:6 4",
    ]


def test_names_are_escaped() -> None:
    text = mermaid_of(scene([card(0, name=HOSTILE[:30], content=HOSTILE[30:])]))
    seen = HOSTILE
    for letter in "\n\x00\u202e\ud800":
        seen = seen.replace(letter, "\ufffd")
    assert shown(text) == [f"{seen[:30]}|{seen[30:]}|weights and graph 3 GiB"]
    # No character with a meaning in Mermaid, Markdown or HTML.
    inner = text.split('["')[1].split('"]')[0].replace("<br/>", "")
    assert set(re.sub(r"#\d+;", "", inner)) & set("<>&\"'`#;:*[]{}()|\\%\n") == set()


@each("name", ["1. part", "- part", "style:#a;", "classDef x:#f00;", "end", "名前 é"])
def test_a_name_can_be_a_word_of_the_grammar(name: str) -> None:
    text = mermaid_of(scene([card(0, name=name)]))
    assert shown(text) == [f"{name}|weights and graph 3 GiB"]
    assert not re.search(r'"(\d+\.|-) ', text)


def test_long_names_keep_their_ends() -> None:
    assert shown(mermaid_of(scene([card(0, name="/model" * 20 + "/last")])))[0].split("|")[0].endswith("/model/last")


def test_a_picture_at_the_limit_is_not_folded() -> None:
    # A chain of 500 edges; one more is folded into pairs.
    assert len(edges(mermaid_of(chain(501)))) == MAX_EDGES
    folded = mermaid_of(chain(502))
    assert len(edges(folded)) == 250
    assert "each box is 2 parts; tensors inside a box are not drawn" in shown(folded)


def chain(parts: int) -> Scene:
    return scene([card(i) for i in range(parts)], [tensor(f"t{i}", i, i + 1) for i in range(parts - 1)])


@pytest.mark.parametrize("make", [lambda: tangle(40), lambda: tangle(64), lambda: long_names(600)])
def test_the_limits_are_kept_by_folding(make: Callable[[], Scene]) -> None:
    text = mermaid_of(make())
    assert len(edges(text)) <= MAX_EDGES
    assert len(text) <= MAX_CHARACTERS
    assert any(re.match(r"each box is \d+ parts", words) for words in shown(text))


def long_names(parts: int) -> Scene:
    return scene([card(i, name=f"{'<' * 50}{i}", content="&" * 60) for i in range(parts)])


def test_a_folded_box_has_the_largest_need_and_its_buses_are_joined(monkeypatch: pytest.MonkeyPatch) -> None:
    """Boxes of 2: tensors from 0 or 1 to 2 or 3 are one edge, tensors from 0 to 1 are none."""
    monkeypatch.setattr(mermaid, "MAX_EDGES", 5)
    tensors = [
        tensor("a", 0, 1),
        tensor("b", 0, 2, size=KIB),
        tensor("c", 1, 3, size=2 * KIB),
        tensor("d", 0, 1, 2, 4, size=7),
        tensor("e", 2, 4, size=3 * KIB, is_exact=False),
    ]
    cards = [card(i, need_bytes=(i + 1) * KIB, budget_bytes=2 * KIB, device="phone" if i < 3 else "") for i in range(5)]
    assert mermaid_of(scene(cards, tensors)).splitlines() == [
        "flowchart LR",
        '  subgraph d0["phone"]',
        '    p0["part-0.onnx to part-1.onnx<br/>weights and graph at most 2 KiB of 2 KiB"]',
        "  end",
        '  p1["part-2.onnx to part-3.onnx<br/>weights and graph at most 4 KiB of 2 KiB, over"]',
        '  p2["part-4.onnx<br/>weights and graph 5 KiB of 2 KiB, over"]',
        '  note["each box is 2 parts#59; tensors inside a box are not drawn"]',
        '  p0 -->|"3 KiB, 2 tensors"| p1',
        '  b1(["7 B, 1 tensor"])',
        "  p0 -.- b1",
        "  b1 -.-> p1",
        "  b1 -.-> p2",
        '  p1 -->|"at least 3 KiB, 1 tensor"| p2',
        "  linkStyle 0,4 stroke:#1f5fbf",
        "  linkStyle 1,2,3 stroke:#b04a06,stroke-dasharray:6 4",
    ]
