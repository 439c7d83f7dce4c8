"""The result of a verification on the terminal."""

from __future__ import annotations

from itertools import pairwise
from math import inf
from typing import TYPE_CHECKING, Final

from rich.console import Group, RenderableType
from rich.text import Text

from ...core.manifest import Cascade
from .lanes import MAX_ROWS
from .screen import LEVELS, NO, YES, Screen

if TYPE_CHECKING:  # these load ONNX Runtime
    from ...loading.model import Model
    from ...verifying.files import FileVerification
    from ...verifying.numerical import TensorComparison
    from ...verifying.two_models import ModelComparison
    from ...verifying.verification import Verification


_NO_ERROR_DB: Final = 140.0


def draw_verification(verification: Verification, cascade: Cascade | Model, screen: Screen) -> RenderableType:
    """The answer in the first line, then what was compared."""
    proof, worst = verification.proof, verification.first_difference
    sign = "…" if proof.unread and not proof.objections else YES if proof.holds else NO
    lines = [_answer(verification, screen), screen.text(f"{sign} structure: {verification.structure_summary}")]
    lines += [screen.text(f"  {sentence}", "red") for sentence in proof.objections[:MAX_ROWS]]
    placed = verification.placement
    lines += [screen.text(f"{NO} placement: {sentence}", "red") for sentence in placed.objections[:MAX_ROWS]]
    lines += [screen.text(f"{YES} placement: {placed.held}")] if placed.held else []
    lines += [screen.text(f"… {placed.gap}")] if placed.gap else []
    if verification.runs:
        sign = NO if worst is not None or verification.failure else YES
        lines.append(screen.text(f"{sign} numbers: {verification.numbers_summary}"))
    elif verification.refusal:
        lines.append(screen.text(f"… not run: {screen.words(verification.refusal)}"))
    if verification.failure:
        said = f"  the {verification.subject} rejects inputs that the model accepts: {verification.failure}"
        lines.append(screen.text(said, "red"))
    if worst is not None:
        lines += _difference(worst, cascade, screen)
    if verification.is_random:
        lines.append(Text("  some tensors depend on random nodes: for these, only the structure was compared", "dim"))
    if verification.reason:
        lines.append(screen.text(f"  {verification.reason}", "dim"))
    return Group(*lines)


def draw_model_comparison(comparison: ModelComparison, screen: Screen) -> RenderableType:
    """The answer in the first line, then the error along the graph, the nodes that add it, and what was compared."""
    lines = [screen.text(f"  {line}") for line in comparison.lines]
    return Group(screen.verdict(comparison.answer, holds=bool(comparison)), *_error_strip(comparison, screen), *lines)


def _error_strip(comparison: ModelComparison, screen: Screen) -> list[Text]:
    """The largest error of the tensors in each column, in their order: the lower the ratio, the higher the column."""
    ratios = [error.db for error in comparison.errors]
    if len(ratios) < 2:
        return []
    columns = min(len(ratios), max(20, min(screen.width, 100) - 4))
    edges = [len(ratios) * i // columns for i in range(columns + 1)]
    lowest = [min(ratios[first:stop]) for first, stop in pairwise(edges)]
    heights = [1 - min(max(db, 0.0), _NO_ERROR_DB) / _NO_ERROR_DB for db in lowest]
    steps = (max(int(db < inf), round(h * (len(LEVELS) - 1))) for h, db in zip(heights, lowest, strict=True))
    cells = "".join(LEVELS[step] for step in steps)
    legend = f"error along the graph: full at 0 dB, empty from {_NO_ERROR_DB:.0f} dB on"
    return [screen.text(f"  {legend}", "dim"), screen.text(f"  {cells}", "blue")]


def draw_file_verification(verification: FileVerification, screen: Screen) -> RenderableType:
    """The answer in the first line, then what was compared, what differs and what could not be compared."""
    answer = f"the files are {'' if verification else 'not '}what the manifest says"
    lines = [screen.verdict(answer, holds=bool(verification)), screen.text(f"  {verification.summary}")]
    lines += [screen.text(f"  {sentence}", "red") for sentence in verification.objections[:MAX_ROWS]]
    lines += [screen.text(f"  {verification.gap}", "yellow")] if verification.gap else []
    return Group(*lines)


def _answer(verification: Verification, screen: Screen) -> Text:
    if not verification.same:
        return screen.verdict(f"the {verification.subject} does not match the model", holds=False)
    how = "runs are " + ("bit-identical" if verification.is_identical else "equal within the tolerance")
    how = "runs differ by what float16 loses" if verification.proof.halves and not verification.is_identical else how
    is_explained = any(tensor.is_explained for run in verification.runs for tensor in run)
    how = "runs have the bits of the model's nodes run part by part" if is_explained else how
    placed = verification.placement
    how = "runs on other providers are not judged" if placed.providers and not placed.computes else how
    how = how if verification.runs else "nothing was run"
    structure = "structure not compared" if verification.proof.unread else "same structure"
    return screen.verdict(f"the {verification.subject} matches the model: {structure}, {how}", holds=True)


def _difference(worst: TensorComparison, cascade: Cascade | Model, screen: Screen) -> list[Text]:
    kind = "output" if worst.is_output else "boundary tensor"
    file = cascade.parts[worst.part].file if isinstance(cascade, Cascade) else cascade.path.name
    absolute = f"max abs {worst.max_abs:.3g} (allowed {worst.allowed:.3g})"
    return [
        screen.text(f"  the first {kind} that differs: {worst.tensor!r}, from {file}", "red"),
        screen.text(f"  {absolute}, max rel {worst.max_rel:.3g}, {worst.max_ulps:,} ulps", "red"),
    ]
