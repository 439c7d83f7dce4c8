"""The page of a comparison of two models: one HTML file without a script.

A point of the chart is a link to what is said of its tensor, which the style shows if it is the target of the address.
"""

import re
from collections.abc import Iterator, Sequence
from html import escape
from typing import Final

from ..core.units import count
from ..core.version import __version__
from ..verifying.sections import TensorError
from ..verifying.two_models import ModelComparison, ratio
from .scene import LEGENDS
from .svg.document import NARROW, WIDE, inline_svg
from .svg.error_chart import columns_of, draw_errors, draw_histogram, histogram_note, module_runs
from .svg.primitives import plain
from .svg.style import filled
from .template import template

_MAX_ROWS: Final = 1000  #: of a table.
_SIDES: Final = {"removed": ("a", "\N{MINUS SIGN} only in A"), "added": ("b", "+ only in B")}


def comparison_html(found: ModelComparison, title: str) -> str:
    """A comparison as one HTML file. It has the histograms of the tensors that the chart shows, and of all culprits."""
    place = {error.tensor: i for i, error in enumerate(found.errors)}
    named = [place[one.error.tensor] for one in (*found.culprits, *found.harmless)]
    # The tensors of the chart, culprits first.
    shown = [*dict.fromkeys([*named, *columns_of(found, WIDE)[1], *columns_of(found, NARROW)[1]])]
    values = {
        "title": escape(plain(title)),
        "answer": f"{'✓' if found else '✗'} {_text(found.answer)}",
        "sections": "\n".join(_sections(found, {found.errors[i].tensor: f"#t{i}" for i in shown})),
        "tensors": "\n".join(_tensor(i, found.errors[i], "tensor first" if i == shown[0] else "tensor") for i in shown),
        "version": __version__,
    }
    return filled(template("comparison.html"), values)


def _text(text: str) -> str:
    """Text that may be hostile, with places where long names may break."""
    return re.sub(r"([/.:_])(?=[A-Za-z])", r"\1<wbr>", escape(plain(text)))


def _sections(found: ModelComparison, links: dict[str, str]) -> Iterator[str]:
    if errors := found.errors:
        drawn = (("wide", draw_errors(found, WIDE, links)), ("narrow", draw_errors(found, NARROW, links)))
        pictures = (inline_svg(panel, "error along the graph", css) for css, panel in drawn)
        chart = f'<p class="lead">{LEGENDS["errors"]}</p><div class="chart">{"".join(pictures)}</div>'
        yield _section("Error along the graph", chart)
    yield _section("What was found", f'<ul class="plain">{"".join(_lines(found, links))}</ul>')
    if errors:
        runs = ((name or "(no module)", errors[run.start : run.stop]) for name, run in module_runs(found))
        rows = [(_mono(name), f"{len(some):,}", *_worst(some, "db", "own_db")) for name, some in runs]
        yield _section("Modules", _table(("module", "tensors", "error", "by itself"), rows))
        rows = [(_link(one, links), *_worst([one], "db", "own_db", "expected_db")) for one in errors]
        table = _table(("tensor", "error", "by itself", "by its types"), rows)
        yield _section("Tensors", f"<details><summary>{count(len(rows), 'tensor')}</summary>{table}</details>")
    if found.changes:
        yield _section("Graph and weights", _table(("node", "where", "what"), [*_changes(found)]))


def _lines(found: ModelComparison, links: dict[str, str]) -> Iterator[str]:
    """The sentences of the comparison. Those of culprits and of what is harmless, in this order, are links."""
    named = iter((*found.culprits, *found.harmless))
    for line in found.lines:
        text = _text(line.strip())
        if re.match(r"\d+\. |harmless: ", line):
            text = f'<a href="{links[next(named).error.tensor]}">{text}</a>'
        yield f"<li{' class=cause' * line.startswith(' ')}>{text}</li>"


def _worst(errors: Sequence[TensorError], *picks: str) -> Sequence[str]:
    return [ratio(min(getattr(error, pick) for error in errors)) for pick in picks]


def _link(error: TensorError, links: dict[str, str]) -> str:
    name = _mono(_name(error))
    return f'<a href="{links[error.tensor]}">{name}</a>' if error.tensor in links else name


def _name(error: TensorError) -> str:
    return " ↔ ".join(dict.fromkeys((error.tensor, error.other)))


def _mono(text: str) -> str:
    return f'<span class="mono">{_text(text)}</span>'


def _changes(found: ModelComparison) -> Iterator[Sequence[str]]:
    """Rows of what differs, by modules; weights that are rounded last."""
    for one in sorted(found.changes, key=lambda one: (one.is_rounding, one.module)):
        css, where = _SIDES.get(one.kind, ("", "both"))
        yield tuple(f'<span class="{css}">{cell}</span>' for cell in (_mono(one.node), where, _text(one.text)))


def _tensor(index: int, error: TensorError, css: str) -> str:
    """What is said of a tensor, with its histogram."""
    own, expected = ratio(error.own_db), ratio(error.expected_db)
    pairs = [("error", ratio(error.db)), ("by itself", own), ("by its types", expected)]
    pairs += [("node", _text(error.node)), ("module", _text(error.module))]
    pairs += [("finite in one alone", f"{error.broken:,}")] if error.broken else []
    facts = "".join(f"<dt>{word}</dt><dd>{value}</dd>" for word, value in pairs if value)
    picture = ""
    if error.histogram is not None:
        drawn = inline_svg(draw_histogram(error.histogram, 264, 110), "histogram of the tensor in both models", "")
        picture = f'<div class="chart">{drawn}</div><p class="hint">{histogram_note(error.histogram)}</p>'
    back = '<a href="#sections">Back to the chart</a>'
    return f'<div class="{css}" id="t{index}"><h2>{_text(_name(error))}</h2>{picture}<dl>{facts}</dl>{back}</div>'


def _section(title: str, content: str) -> str:
    return f"<section><h2>{title}</h2>{content}</section>"


def _table(titles: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A table; the first column names the row. Cells are HTML."""
    classes = ("name", *[""] * len(titles))
    cell = '<td class="{}" data-title="{}">{}</td>'.format
    body = "".join(f"<tr>{''.join(map(cell, classes, titles, row))}</tr>" for row in rows[:_MAX_ROWS])
    head = "".join(f"<th>{title}</th>" for title in titles)
    more = f"<p>and {len(rows) - _MAX_ROWS:,} more</p>" if len(rows) > _MAX_ROWS else ""
    table = f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"
    return f'<div class="scroll" tabindex="0">{table}</div>{more}'
