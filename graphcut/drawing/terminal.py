"""The terminal pen: an analysis, a cascade or a report on one screen, with rich.

Names from a model go into `Text`, never into markup: a node called `[red]` is shown as it is.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence, Sized
from itertools import pairwise
from typing import TYPE_CHECKING, Final

from rich.console import Console, Group, RenderableType
from rich.table import Table
from rich.text import Text

from ..analysis import Analysis, CutPoint
from ..cascade import Cascade
from ..model import Model
from ..units import count, size
from ..wiring import Tensor
from .glyphs import Glyphs, glyphs_for
from .lanes import MOST_ROWS, lanes, total
from .tables import table

if TYPE_CHECKING:  # these load ONNX Runtime
    from ..verifying.numerical import Compared
    from ..verifying.reports import Report

_MOST_PLACES: Final = 8


def draw_analysis(analysis: Analysis, console: Console) -> RenderableType:
    """Where a model can be cut, on one screen."""
    model = analysis.model
    signs = glyphs_for(console)
    best = spread(analysis, _MOST_PLACES)
    lines: list[RenderableType] = [_model_line(model), *(Text(f"note: {note}", style="yellow") for note in model.notes)]
    facts = Table.grid(padding=(0, 2))
    facts.add_row(Text("inputs", style="dim"), _tensor_list(model.tensors[name] for name in model.graph.reads))
    facts.add_row(Text("outputs", style="dim"), _tensor_list(model.tensors[name] for name in model.graph.writes))
    if analysis.repeat is not None:
        facts.add_row(
            Text("repeats", style="dim"), Text(str(analysis.repeat).replace("\N{MULTIPLICATION SIGN}", signs.times))
        )
    facts.add_row(Text("key nodes", style="dim"), Text(_key_line(analysis)))
    if free := _open_symbols(model):
        facts.add_row(Text("open", style="dim"), Text(f"{free} (sizes count them as 1; bind them with --dim)"))
    lines.append(facts)
    if len(analysis.profile) > 1:
        lines += [Text(), *_profile(analysis, best, console.width, signs)]
    if best:
        lines += [Text(), _cut_table(best, console.width, signs)]
    else:
        lines.append(Text("no place to cut: fewer than two nodes depend on an input"))
    return Group(*lines)


def draw_cut_points(points: Sequence[CutPoint]) -> Iterable[str]:
    """The places as tab-separated lines, for other programs: node, bytes, crossing tensors, weights, key, module."""
    yield "node\tbytes\texact\tcrossing\tweights_before\tweights_after\tkey\tmodule"
    for point in points:
        yield "\t".join(
            (
                point.node,
                str(point.bytes),
                "yes" if point.is_exact else "at least",
                ",".join(point.crossing),
                str(point.weights_before),
                str(point.weights_after),
                "yes" if point.is_key else "no",
                point.module,
            )
        )


def draw_cascade(cascade: Cascade, console: Console) -> RenderableType:
    """The parts, and which tensor goes from where to where."""
    signs = glyphs_for(console)
    rows = []
    for i, part in enumerate(cascade.parts):
        sent = [tensor for tensor, (source, _) in cascade.wiring.crossing.items() if source == i]
        numbers = f"{part.nodes:,}", size(part.weight_bytes), str(len(part.reads)), str(len(part.writes))
        rows.append((Text(part.file, style="bold"), *numbers, _sum(cascade, sent, signs) if sent else "-"))
    titles = "part", "nodes", "weights", "reads", "writes", "sends on"
    parts = table(titles, rows, width=console.width, names={0: 12})
    wiring = cascade.wiring
    sizes = {name: _sum(cascade, [name], signs) for name in wiring.crossing}
    picture = lanes(wiring, len(cascade.parts), cascade.tensors, sizes, signs, console.width)
    return Group(_cascade_line(cascade, signs), Text(), parts, Text(), *picture)


def draw_report(report: Report, cascade: Cascade, console: Console) -> RenderableType:
    """What verifying found; the answer in the first line."""
    signs = glyphs_for(console)
    proof = report.proof
    lines: list[RenderableType] = []
    if not report.same:
        lines.append(Text(f"{signs.no} the cascade does not do what the model does", style="bold red"))
    elif report.runs:
        what = "the same bits" if report.is_identical else "the same within what is allowed"
        lines.append(Text(f"{signs.yes} the cascade does what the model does: {what}", style="bold green"))
    else:
        lines.append(Text(f"{signs.yes} the parts, stitched together, are the model", style="bold green"))
    lines.append(_proof_line(report, signs))
    lines += [Text(f"  {sentence}", style="red") for sentence in proof.objections[:MOST_ROWS]]
    if report.runs:
        lines.append(_runs_line(report, signs))
    elif report.refusal:
        lines.append(Text(f"{signs.more} not run: the model itself refuses the inputs that were made up for it"))
        lines.append(Text(f"  {report.refusal}\n  feed it with --inputs FILE.npz", style="dim"))
    if report.failure:
        lines.append(Text(f"  the cascade refuses what the model takes: {report.failure}", style="red"))
    if (worst := report.first_difference) is not None:
        lines += _difference_lines(worst, cascade)
    if report.is_random:
        lines.append(Text("  random nodes have a part in some tensors: there only the proof counts", style="dim"))
    if report.reason:
        lines.append(Text(f"  {report.reason}", style="dim"))
    return Group(*lines)


def _proof_line(report: Report, signs: Glyphs) -> Text:
    proof = report.proof
    text = f"structure: {count(proof.nodes, 'node')} found again, {size(proof.weight_bytes)} of large weights compared"
    if proof.replicas:
        text += f", {count(proof.replicas, 'replica')}"
    return Text(f"{signs.yes if proof.holds else signs.no} {text}")


def _runs_line(report: Report, signs: Glyphs) -> Text:
    tensors = sum(len(run) for run in report.runs)
    same = sum(tensor.is_identical for run in report.runs for tensor in run)
    sign = signs.yes if report.first_difference is None and not report.failure else signs.no
    return Text(f"{sign} numbers: {count(len(report.runs), 'run')}, {same} of {count(tensors, 'tensor')} bit-identical")


def _difference_lines(worst: Compared, cascade: Cascade) -> list[RenderableType]:
    kind = "output" if worst.is_output else "crossing tensor"
    return [
        Text(
            f"  the first {kind} that differs: {worst.tensor!r}, made by {cascade.parts[worst.part].file}", style="red"
        ),
        Text(
            f"  max abs {worst.max_abs:.3g} (allowed {worst.allowed:.3g}), max rel {worst.max_rel:.3g}, "
            f"{worst.max_ulps:,} ulps",
            style="red",
        ),
    ]


def cheapest(points: Sequence[CutPoint], number: int) -> list[CutPoint]:
    """The `number` cheapest places, in order; of equal ones those that divide the weights most evenly."""
    ranked = sorted(points, key=lambda p: (p.bytes, abs(p.weights_before - p.weights_after), p.position))
    return sorted(ranked[:number], key=lambda p: p.position)


def spread(analysis: Analysis, number: int) -> list[CutPoint]:
    """For each of `number` equal shares of the model the cheapest place to cut; of equal ones the first.

    Nodes and weights count alike: a share of the weights alone says nothing where the nodes make them.
    """
    best: dict[int, CutPoint] = {}
    nodes, weights = len(analysis.profile), analysis.model.weight_bytes + 1
    for point in analysis.cut_points:
        share = int(number * (point.position / nodes + point.weights_before / weights) / 2)
        if share not in best or point.bytes < best[share].bytes:
            best[share] = point
    return [best[share] for share in sorted(best)]


def most_even(analysis: Analysis) -> CutPoint | None:
    """Of the places that the picture lists, the one that divides the weights most evenly."""
    places = spread(analysis, _MOST_PLACES)
    return min(places, key=lambda p: (abs(p.weights_before - p.weights_after), p.bytes), default=None)


def _model_line(model: Model) -> Text:
    line = Text(model.path.name, style="bold")
    constants = len(model.graph.nodes) - len(model.graph.flow)
    facts = count(len(model.graph.flow), "node")
    if constants:
        facts += f" and {count(constants, 'constant')}"
    line.append(f"  {facts}, {size(model.weight_bytes)} weights", style="not bold")
    if model.dims:
        line.append("  " + ", ".join(f"{name}={number}" for name, number in model.dims.items()), style="not bold dim")
    return line


def _tensor_list(tensors: Iterable[Tensor]) -> Text:
    shown = list(tensors)
    text = Text(", ".join(f"{tensor.name} {tensor}" for tensor in shown[:3]))
    if len(shown) > 3:
        text.append(f", and {len(shown) - 3} more", style="dim")
    return text


def _key_line(analysis: Analysis) -> str:
    wiring = analysis.segments.wiring
    residual = {tensor for row in wiring.residual.values() for tensors in row.values() for tensor in tensors}
    return (
        f"{count(len(analysis.key_nodes), 'key node')}, {count(len(analysis.segments.blocks), 'segment')}; "
        f"{count(len(residual), 'tensor')} {_verb('skip', residual)} over a segment"
    )


def _verb(word: str, of: Sized) -> str:
    """What one thing does, or several do: skips, crosses; skip, cross."""
    return word if len(of) != 1 else f"{word}es" if word.endswith("s") else f"{word}s"


def _open_symbols(model: Model) -> str:
    return ", ".join(symbol for symbol in model.symbols if symbol not in model.dims)


def _profile(analysis: Analysis, marks: Sequence[CutPoint], width: int, signs: Glyphs) -> list[Text]:
    """The lowest bytes alive per column, four rows high, with the the places below marked."""
    profile = analysis.profile[:-1]
    columns = min(len(profile), max(20, min(width, 120) - 12))
    edges = [len(profile) * i // columns for i in range(columns + 1)]
    lowest = [min(profile[a:b]) for a, b in pairwise(edges)]
    top = max(lowest) or 1
    steps = len(signs.levels) - 1
    rows = []
    for row in range(3, -1, -1):
        label = size(top) if row == 3 else ("" if row else "0 B")
        bars = "".join(signs.levels[max(0, min(steps, round(v / top * 4 * steps) - row * steps))] for v in lowest)
        rows.append(Text(f"{label:>10}  ", style="dim").append(bars, style="not dim blue"))
    under = {next(c for c in range(columns) if edges[c] <= p.position - 1 < edges[c + 1]) for p in marks}
    rows.append(Text(" " * 12 + "".join(signs.cut if c in under else " " for c in range(columns)), style="yellow"))
    head = Text("cut profile", style="bold").append(
        "  bytes alive, lowest per column; the places below marked", "not bold dim"
    )
    return [head, *rows]


def _cut_table(points: Sequence[CutPoint], width: int, signs: Glyphs) -> Table:
    rows = [
        (
            Text(point.node, style="bold" if point.is_key else ""),
            f"{'' if point.is_exact else signs.least}{size(point.bytes)}",
            str(len(point.crossing)),
            size(point.weights_before),
            size(point.weights_after),
            Text(point.module, style="dim"),
        )
        for point in points
    ]
    titles = "cut after", "crossing", "tensors", "weights before", "after", "module"
    return table(titles, rows, width=width, names={5: 6, 0: 12})


def _cascade_line(cascade: Cascade, signs: Glyphs) -> Text:
    manifest = cascade.manifest
    line = Text(cascade.source.name, style="bold")
    how = "beside the model's weights" if manifest.weights == "share" else "each with its own weights"
    line.append(f"  cut into {count(len(cascade.parts), 'part')}, {how}", style="not bold")
    crossing = list(cascade.wiring.crossing)
    if crossing:
        far = {tensor for row in cascade.wiring.residual.values() for names in row.values() for tensor in names}
        line.append(f"; {count(len(crossing), 'tensor')} {_verb('cross', crossing)}, {_sum(cascade, crossing, signs)}")
        line.append(f"; {len(far)} of them {_verb('skip', far)} a part" if far else "")
    return line


def _sum(cascade: Cascade, tensors: Sequence[str], signs: Glyphs) -> str:
    return total((cascade.tensors[name] for name in tensors), cascade.manifest.dims, signs)
