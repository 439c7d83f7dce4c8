"""The page of a comparison of two models: one HTML file without a script.

A point of the chart is a link to what is said of its tensor, which the style shows if it is the target of the address.
"""

import re
from collections.abc import Iterator, Sequence
from html import escape
from typing import Final

from ..core.units import count
from ..core.version import __version__
from ..verifying.two_models import Culprit, ModelComparison, TensorError, ratio
from .svg.document import NARROW, WIDE, inline_svg
from .svg.error_chart import LEGEND, columns_of, draw_errors, draw_histogram, histogram_note, module_runs
from .svg.primitives import plain
from .template import filled, template

_MAX_ROWS: Final = 1000  #: of a table.
_SIDES: Final = {"removed": ("a", "\N{MINUS SIGN} only in A"), "added": ("b", "+ only in B")}


def comparison_html(found: ModelComparison, title: str) -> str:
    """A comparison as one HTML file. It has the histograms of the tensors that the chart shows, and of all culprits."""
    shown = _shown(found)
    links = {i: f"#t{i}" for i in shown}
    values = {
        "title": escape(plain(title)),
        "answer": f"{'✓' if found else '✗'} {_text(found.answer)}",
        "sections": "\n".join(_sections(found, links)),
        "tensors": "\n".join(_tensor(i, found.errors[i], is_first=i == shown[0]) for i in shown),
        "version": __version__,
    }
    return filled(template("comparison.html"), values)


def _text(text: str) -> str:
    """Text that may be hostile, with places where long names may break."""
    return re.sub(r"([/.:_])(?=[A-Za-z])", r"\1<wbr>", escape(plain(text)))


def _shown(found: ModelComparison) -> list[int]:
    """The tensors of the chart, culprits first."""
    place = {error.tensor: i for i, error in enumerate(found.errors)}
    named = [place[one.error.tensor] for one in (*found.culprits, *found.harmless)]
    return [*dict.fromkeys([*named, *columns_of(found, WIDE).worst, *columns_of(found, NARROW).worst])]


def _sections(found: ModelComparison, links: dict[int, str]) -> Iterator[str]:
    if found.errors:
        chart = "".join(
            inline_svg(draw_errors(found, width, links), "error along the graph", css)
            for css, width in (("wide", WIDE), ("narrow", NARROW))
        )
        content = f'<p class="lead">{LEGEND}</p><div class="chart">{chart}</div>'
        yield _section("Error along the graph", content)
    if found.culprits or found.harmless:
        yield _section("Nodes that add an error of their own", "".join(_culprits(found, links)))
    if found.errors:
        rows = [_module_row(name, [found.errors[i] for i in run]) for name, run in module_runs(found)]
        yield _section("Modules", _table(("module", "tensors", "error", "by itself"), rows))
        rows = [_tensor_row(error, links.get(i)) for i, error in enumerate(found.errors)]
        table = _table(("tensor", "error", "by itself", "by its types"), rows)
        yield _section("Tensors", f"<details><summary>{count(len(rows), 'tensor')}</summary>{table}</details>")
    lead = f'<p class="lead">{_text(found.lines[-1].capitalize())}.</p>'
    table = _table(("node", "where", "what"), [*_changes(found)]) if found.changes else ""
    yield _section("Graph and weights", lead + table)


def _culprits(found: ModelComparison, links: dict[int, str]) -> Iterator[str]:
    place = {error.tensor: i for i, error in enumerate(found.errors)}
    for title, css, some in (("", "", found.culprits), ("Harmless", "plain", found.harmless)):
        if some:
            items = "".join(f"<li>{_culprit(one, links[place[one.error.tensor]])}</li>" for one in some)
            yield f"{f'<h3>{title}</h3>' if title else ''}<ol class='{css}'>{items}</ol>"


def _culprit(one: Culprit, link: str) -> str:
    module = f" in {_text(one.error.module)}" if one.error.module else ""
    causes = "".join(f"<div>{_text(cause)}</div>" for cause in one.causes)
    effect = f"an output has {ratio(one.effect_db)} by it alone"
    own = f"{ratio(one.error.own_db)} by itself, {ratio(one.error.expected_db)} by its types; {effect}"
    return f'<a class="mono" href="{link}">{_text(one.node)}</a>{module}<div>{own}</div>{causes}'


def _module_row(name: str, errors: Sequence[TensorError]) -> Sequence[str]:
    worst = (ratio(min(getattr(error, pick) for error in errors)) for pick in ("db", "own_db"))
    return (f'<span class="mono">{_text(name or "(no module)")}</span>', f"{len(errors):,}", *worst)


def _tensor_row(error: TensorError, link: str | None) -> Sequence[str]:
    name = f'<span class="mono">{_names(error)}</span>'
    name = f'<a href="{link}">{name}</a>' if link else name
    return (name, *(ratio(db) for db in (error.db, error.own_db, error.expected_db)))


def _names(error: TensorError) -> str:
    both = dict.fromkeys((error.tensor, error.other))
    return " ↔ ".join(map(_text, both))


def _changes(found: ModelComparison) -> Iterator[Sequence[str]]:
    """Rows of what differs, by modules; weights that are rounded last."""
    for one in sorted(found.changes, key=lambda one: (one.is_rounding, one.module)):
        css, where = _SIDES.get(one.kind, ("", "both"))
        cells = (
            f'<span class="mono">{_text(one.node)}</span>',
            where,
            _text(one.text) + " (rounding)" * one.is_rounding,
        )
        yield tuple(f'<span class="{css}">{cell}</span>' for cell in cells)


def _tensor(index: int, error: TensorError, *, is_first: bool) -> str:
    """What is said of a tensor, with its histogram."""
    pairs = [("error", ratio(error.db)), ("by itself", ratio(error.own_db)), ("by its types", ratio(error.expected_db))]
    pairs += [("node", _text(error.node)), ("module", _text(error.module))]
    pairs += [("finite in one alone", f"{error.broken:,}")] if error.broken else []
    facts = "".join(f"<dt>{word}</dt><dd>{value}</dd>" for word, value in pairs if value)
    picture = ""
    if error.histogram is not None:
        drawn = inline_svg(draw_histogram(error.histogram, 264, 110), "histogram of the tensor in both models", "")
        picture = f'<div class="chart">{drawn}</div><p class="hint">{histogram_note(error.histogram)}</p>'
    back = '<a href="#sections">Back to the chart</a>'
    css = "tensor first" if is_first else "tensor"
    return f'<div class="{css}" id="t{index}"><h2>{_names(error)}</h2>{picture}<dl>{facts}</dl>{back}</div>'


def _section(title: str, content: str) -> str:
    return f"<section><h2>{title}</h2>{content}</section>"


def _table(titles: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A table; the first column names the row. Cells are HTML."""
    head = "".join(f"<th>{title}</th>" for title in titles)
    body = "".join(f"<tr>{_cells(titles, row)}</tr>" for row in rows[:_MAX_ROWS])
    more = f"<p>and {len(rows) - _MAX_ROWS:,} more</p>" if len(rows) > _MAX_ROWS else ""
    table = f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"
    return f'<div class="scroll" tabindex="0">{table}</div>{more}'


def _cells(titles: Sequence[str], row: Sequence[str]) -> str:
    cells = zip(("name", *[""] * len(row)), titles, row, strict=False)
    return "".join(f'<td class="{css}" data-title="{title}">{cell}</td>' for css, title, cell in cells)
