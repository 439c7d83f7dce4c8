"""The page: one HTML file that shows everything a scene holds, asks the network for nothing, and needs no other file.

The drawing is done by the script in `report.html`. Here the scene becomes its data, made small: a name keeps only what
it does not share with the name before, running sums become steps.
"""

from __future__ import annotations

import base64
import hashlib
import json
import re
from collections.abc import Iterable, Sequence
from functools import cache
from html import escape
from importlib import resources
from itertools import groupby, pairwise
from typing import Any, Final

from ..core.version import __version__
from .scene import Bus, Card, CutOption, CutProfile, Lane, Scene
from .scenes import best_places

_VERDICT: Final = re.compile(r"\s+(?=[✓✗])")
_UNSEEN: Final = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069\ud800-\udfff]")
_FIGURE: Final = re.compile(r"(\d[\d.,]*\d|\d)( (?:parts?|B|KiB|MiB|GiB|TiB)\b)")


def html_of(scene: Scene) -> str:
    """`scene` as one HTML file: the same text for the same scene.

    The file makes no request: its policy allows the style and the script that it holds, each by its digest, and nothing
    else. Names come from models and may be anything: in the head of the page they are escaped, in the data `<` is spelt
    out, and the script sets them as text only.
    """
    template = _template()
    words = {
        "policy": _policy(template),
        "title": escape(scene.title),
        "facts": "".join(f"<span>{escape(_fact(word, value))}</span>" for word, value in scene.facts),
        "answer": _answer(scene),
        "text_command": "graphcut show",
        "following": f"Next: <code>{escape(scene.following)}</code><br>" if scene.following else "",
        "version": __version__,
        "data": _data(scene),
    }
    # All in one pass: a name that looks like one of these words stays what it is.
    page = re.sub(r"\{\{(\w+)\}\}", lambda match: words[match[1]], template)
    return _UNSEEN.sub("\N{REPLACEMENT CHARACTER}", page)


@cache
def _template() -> str:
    return resources.files(__package__).joinpath("report.html").read_text(encoding="utf-8")


def _policy(template: str) -> str:
    """What the browser may load: nothing, but for the style and the script of the template."""
    (style,) = re.findall(r"<style>(.*?)</style>", template, flags=re.DOTALL)
    (script,) = re.findall(r"<script>(.*?)</script>", template, flags=re.DOTALL)
    return (
        f"default-src 'none'; style-src {_digest(style)}; script-src {_digest(script)}; base-uri 'none'; "
        "form-action 'none'"
    )


def _digest(text: str) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"


def _fact(word: str, value: str) -> str:
    """`1,491 nodes`, `7.83 TFLOP per run`, `batch=1, seq=512`."""
    return {"dims": value, "work": f"{value} per run"}.get(word, f"{value} {word}")


def _answer(scene: Scene) -> str:
    """The sentence, its figures and parts set off, and what is said of budget and sameness as badges."""
    sentence, *verdicts = _VERDICT.split(scene.sentence)
    over = sum(card.is_over for card in scene.cards)
    if over:
        verdicts.insert(0, f"✗ {over} {'part' if over == 1 else 'parts'} over budget")
    badges = [
        f'<span class="badge {"good" if verdict.startswith("✓") else "bad"}">{escape(verdict.rstrip("."))}</span>'
        for verdict in verdicts
    ]
    return " ".join([_set_off(sentence, [card.name for card in scene.cards]), *badges])


def _set_off(sentence: str, names: Sequence[str]) -> str:
    """`sentence` as HTML, with figures and `names` in bold."""
    known = {f" {name}{end}": f" <b>{escape(name)}</b>{end}" for name in names for end in " ,."}
    text = _FIGURE.sub(r"<b>\1\2</b>", escape(sentence))
    for plain, bold in known.items():
        text = text.replace(escape(plain), bold)
    return text


def _data(scene: Scene) -> str:
    """The scene as JSON that can stand inside a script element: `<` is spelt out, so nothing in it can end one."""
    record = {
        "title": scene.title,
        "model": scene.model or scene.title,
        "cards": [_card(card, scene, place) for place, card in enumerate(scene.cards)],
        "lanes": [_lane(lane) for lane in scene.lanes],
        "buses": [_bus(bus) for bus in scene.buses],
        "crossing": [
            {"bytes": total.bytes, "exact": total.is_exact, "tensors": total.tensors} for total in scene.crossing
        ],
        "profile": None if scene.profile is None else _profile(scene.profile),
        "checks": [{"what": check.what, "result": check.result, "good": check.is_good} for check in scene.checks],
        "recomputed": scene.recomputed,
        "reasons": scene.reasons,
        "notes": scene.notes,
        "details": scene.details,
        "others": [
            {"period": other.period_s, "latency": other.latency_s, "chosen": other.is_chosen} for other in scene.others
        ],
    }
    # In ASCII, so that half a surrogate pair in a name can be written too.
    return json.dumps(record, separators=(",", ":")).replace("<", "\\u003c")


def _card(card: Card, scene: Scene, place: int) -> dict[str, Any]:
    return {
        "name": card.name,
        "device": card.device,
        "content": card.content,
        "nodes": card.nodes,
        "replicas": card.replicas,
        "weight": card.weight_bytes,
        "need": card.need_bytes,
        "budget": card.budget_bytes,
        "activation": card.activation_bytes,
        "flops": card.flops,
        "busy": card.busy_s,
        "reads": card.reads,
        "writes": card.writes,
        "column": card.column,
        "over": card.is_over,
        "intensity": card.intensity,
        "last": card.last,
        "received": _amount(scene.received(place)),
        "sent": _amount(scene.sent(place)),
    }


def _lane(lane: Lane) -> dict[str, Any]:
    return {
        "tensor": lane.tensor,
        "type": lane.type,
        "bytes": lane.bytes,
        "exact": lane.is_exact,
        "source": lane.source,
        "readers": lane.readers,
        "residual": lane.is_residual,
    }


def _bus(bus: Bus) -> dict[str, Any]:
    return {
        "source": bus.source,
        "readers": bus.readers,
        "lanes": bus.lanes,
        "bytes": bus.bytes,
        "exact": bus.is_exact,
        "residual": bus.is_residual,
    }


def _valley(valley: CutOption, *, is_best: bool) -> dict[str, Any]:
    return {
        "node": valley.node,
        "position": valley.position,
        "bytes": valley.bytes,
        "exact": valley.is_exact,
        "tensors": valley.tensors,
        "before": valley.weights_before,
        "after": valley.weights_after,
        "key": valley.is_key,
        "module": valley.module,
        "best": is_best,
    }


def _amount(bytes_and_exact: tuple[int, bool]) -> dict[str, Any]:
    number, is_exact = bytes_and_exact
    return {"bytes": number, "exact": is_exact}


def _profile(profile: CutProfile) -> dict[str, Any]:
    """Columns side by side; the script undoes what makes them small."""
    heads = ["", *(_common(*pair) for pair in pairwise(profile.nodes))][: len(profile.nodes)]
    best = {valley.position for valley in best_places(profile)}
    operators = {operator: place for place, operator in enumerate(dict.fromkeys(profile.ops))}
    return {
        # As JavaScript counts: in units of UTF-16.
        "shared": [len(head.encode("utf-16-le", "surrogatepass")) // 2 for head in heads],
        "rest": [name.removeprefix(head) for name, head in zip(profile.nodes, heads, strict=True)],
        "opNames": list(operators),
        "ops": [operators[operator] for operator in profile.ops],
        "alive": profile.alive,
        "far": [alive - near for alive, near in zip(profile.alive, profile.near, strict=True)],
        "exactRuns": _runs(profile.exact),
        "nearExactRuns": _runs(profile.near_exact),
        "tensors": profile.tensors,
        "weightSteps": _steps(profile.weights),
        "keys": profile.keys,
        "cuts": profile.cuts,
        "partRuns": [(part, sum(1 for _ in run)) for part, run in groupby(profile.parts)],
        "valleys": [_valley(valley, is_best=valley.position in best) for valley in profile.valleys],
    }


def _common(before: str, after: str) -> str:
    """What both names begin with."""
    same = (i for i, (left, right) in enumerate(zip(before, after, strict=False)) if left != right)
    return after[: next(same, min(len(before), len(after)))]


def _runs(claims: Sequence[bool]) -> list[int]:
    """How many hold, how many do not, how many hold, and so on."""
    runs = [(holds, sum(1 for _ in run)) for holds, run in groupby(claims)]
    return [length for _, length in ([(True, 0), *runs] if runs and not runs[0][0] else runs)]


def _steps(sums: Iterable[int]) -> list[int]:
    return [after - before for before, after in pairwise([0, *sums])]
