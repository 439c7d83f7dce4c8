"""The HTML page: one file that shows everything in a scene and makes no request.

The words are here; the script in `page/` draws the rest. The data is compressed.
"""

import json
import re
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from html import escape
from itertools import cycle
from pathlib import PurePath
from typing import Any, Final

from msgspec import to_builtins

from ..core.units import count
from ..core.version import __version__
from .dependency_matrix import matrix_legend, matrix_of
from .profile_builder import best_options
from .scene import KINDS, LEGENDS, Scene
from .svg.bus_lines import CSS
from .svg.matrix_chart import MAX_ROWS
from .svg.style import filled
from .template import packed, template

_LINES: Final = ("Red", "Orange", "Purple")  #: the lines of layers over the profile; the script has these colours.
# In ASCII, since half a surrogate pair can't be encoded otherwise.
_json: Final = partial(json.dumps, separators=(",", ":"))
_INVISIBLE: Final = re.compile(r"[\x00-\x09\x0b-\x1f\x7f-\x9f\u2028-\u202e\u2066-\u2069\ud800-\udfff]")


def html_of(scene: Scene) -> str:
    """`scene` as one HTML file; the same scene gives the same bytes.

    The page makes no request: its content security policy allows only the style and the script it holds, by their
    digests. Names come from models and may be anything: in the markup they are escaped, and the script sets them as
    text only.
    """
    # Without the folders of absolute paths: readers of a page need not know those of this machine.
    name = PurePath(scene.model).name if scene.model.startswith("/") else scene.model
    command = re.sub(r"^(graphcut verify '?)/.*/", r"\1", scene.next_command.replace(scene.model or "\0", name))
    scene = replace(scene, model=name, next_command=command)
    edges = LEGENDS["edges of ranks" if scene.is_ranked else "edges"]
    values = {
        "title": escape(scene.title),
        "facts": escape(" · ".join(scene.fact_texts)),
        "answer": _answer(scene),
        "notes": "".join(f"<li>{escape(note)}</li>" for note in scene.notes),
        "recomputed": "".join(f"<li>{escape(text)}</li>" for text in scene.recomputed),
        "details": "".join(f"<dt>{escape(word)}</dt><dd>{escape(value)}</dd>" for word, value in scene.details),
        "matrix_legend": matrix_legend(scene),
        "legend": escape(" ".join(filter(None, _legend(scene)))),
        "edges": edges if scene.cards or scene.cut_model() else "",
        "next": f"Next: <code>{escape(scene.next_command)}</code><br>" if scene.next_command else "",
        "version": __version__,
        "data": packed(_json(_record(scene))),
        "graph": packed(_json(scene.graph())) if scene.graph else "",
    }
    return _INVISIBLE.sub("\N{REPLACEMENT CHARACTER}", filled(template(), values))


def _legend(scene: Scene) -> Iterator[str]:
    """What the cut profile shows, in sentences."""
    if (profile := scene.profile) is None:
        return
    yield "A cut after a node sends the bytes that are alive there. Click to see what a cut there sends."
    yield "Within a pixel, the dark line is the lowest value, the pale area the highest."
    yield f"{count(len(profile.keys), 'key node')} (dots and ticks)." * bool(profile.keys)
    yield "Lines are cuts, with what crosses there." * bool(profile.cuts)
    yield from (f"{name} line: {layer.legend}" for name, layer in zip(cycle(_LINES), scene.layers, strict=False))
    replicas = any(card.replicas for card in scene.cards)
    yield "Recomputed tensors count as alive here, but are not sent at the cuts." * replicas
    yield "Some sizes are unknown: ≥ marks a lower bound." * (not all(profile.exact))


def _answer(scene: Scene) -> str:
    """The sentence with figures and parts in bold, and a badge if parts are over budget."""
    text = re.sub(r"(\d[\d.,]*\d|\d)( (?:parts?|B|KiB|MiB|GiB|TiB)\b)", r"<b>\1\2</b>", escape(scene.sentence))
    for name in (card.name for card in scene.cards):
        for end in " ,.":
            text = text.replace(escape(f" {name}{end}"), f" <b>{escape(name)}</b>{end}")
    over = sum(card.is_over for card in scene.cards)
    return f'{text} <span class="badge bad">✗ {count(over, "part")} over budget</span>' if over else text


def _record(scene: Scene) -> dict[str, object]:
    """What the script reads; it adds nothing but what follows from it."""
    shown = replace(scene, segments=(), segment_tensors=(), graph=None)
    record: dict[str, Any] = to_builtins(shown, enc_hook=lambda make: make()) | {
        "matrix": to_builtins(matrix_of(scene, MAX_ROWS)),
        "kinds": {kind: (text, CSS[kind]) for kind, text in KINDS.items()},
    }
    if scene.profile is not None:
        best = [option.nodes_before for option in best_options(scene.profile)]
        for option in record["profile"]["cut_options"]:
            option["tensors"] = len(option.pop("boundary_tensors"))
        record["profile"] |= {"cuts": scene.cuts, "best": best, "modules": None}
    return record
