"""The HTML page: one file that shows everything in a scene and makes no request.

The map and the lane chart are those of the SVG renderer. The script in `page/` adds the rest: details on hover
and focus, links into the page, the zoomable profile, tables, the search for nodes. The data is compressed.
"""

import json
import re
from dataclasses import replace
from functools import partial
from html import escape
from pathlib import PurePath
from typing import Any, Final

from msgspec import to_builtins

from ..core.units import count
from ..core.version import __version__
from .dependency_matrix import matrix_legend, matrix_of
from .profile_builder import best_options
from .scene import KINDS, Scene
from .svg.bus_lines import CSS
from .svg.document import LANES, MAP, NARROW, SCHEDULE, WIDE, inline_svg, map_and_lanes, schedule_panel
from .svg.matrix_chart import MAX_ROWS
from .svg.style import filled
from .template import packed, template

_PICTURES: Final = {"map": MAP, "lanes": LANES, "schedule": SCHEDULE}  #: their places in the template.
# In ASCII, since half a surrogate pair can't be encoded otherwise.
_json: Final = partial(json.dumps, separators=(",", ":"))
_INVISIBLE: Final = re.compile(r"[\x00-\x09\x0b-\x1f\x7f-\x9f\u2028-\u202e\u2066-\u2069\ud800-\udfff]")


def html_of(scene: Scene, *, has_pictures: bool = True) -> str:
    """`scene` as one HTML file; the same scene gives the same bytes.

    `has_pictures` is whether it has pictures of parts for readers without scripts. The script draws its own if one can
    cut in the page.

    The page makes no request: its content security policy allows only the style and the script it holds, by their
    digests. Names come from models and may be anything: in the markup they are escaped, and the script sets them as
    text only.
    """
    # Without the folders of absolute paths: readers of a page need not know those of this machine.
    name = PurePath(scene.model).name if scene.model.startswith("/") else scene.model
    command = re.sub(r"^(graphcut verify '?)/.*/", r"\1", scene.next_command.replace(scene.model or "\0", name))
    scene = replace(scene, model=name, next_command=command)
    pictures = _pictures(scene) if has_pictures else {}
    values = {
        "title": escape(scene.title),
        "facts": "".join(f"<span>{escape(fact)}</span>" for fact in scene.fact_texts),
        "answer": _answer(scene),
        "notes": "".join(f"<li>{escape(note)}</li>" for note in scene.notes),
        **{word: pictures.get(title, "") for word, title in _PICTURES.items()},
        "recomputed": "".join(f"<li>{escape(text)}</li>" for text in scene.recomputed),
        "details": "".join(f"<dt>{escape(word)}</dt><dd>{escape(value)}</dd>" for word, value in scene.details),
        "matrix_legend": matrix_legend(scene),
        "next": f"Next: <code>{escape(scene.next_command)}</code><br>" if scene.next_command else "",
        "version": __version__,
        "data": packed(_json(_record(scene))),
        "graph": packed(_json(scene.graph())) if scene.graph else "",
    }
    return _INVISIBLE.sub("\N{REPLACEMENT CHARACTER}", filled(template(), values))


def _pictures(scene: Scene) -> dict[str, str]:
    """Each picture for wide and for narrow windows; the style shows the one that fits.

    Where one can cut, the script draws the map and the lanes. These are for readers without it, for wide windows alone.
    """
    found: dict[str, str] = {}
    for css, width in (("wide", WIDE), ("narrow", NARROW)):
        drawn = {} if scene.cut_model and css == "narrow" else map_and_lanes(scene, width)
        for title, panel in {**drawn, **schedule_panel(scene, width)}.items():
            scaling = "" if panel.width <= 1.45 * width else " scrolls"  # a wider one scrolls instead of shrinking
            found[title] = found.get(title, "") + inline_svg(panel, title, css + scaling)
    return found


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
