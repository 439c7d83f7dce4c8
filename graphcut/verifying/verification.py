"""`verify`: the structural proof and the numerical check, and their result."""

import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from operator import attrgetter
from pathlib import Path
from typing import Final, cast

import onnxruntime as ort
from onnx import ModelProto

from ..core.errors import CascadeError, ModelError, RunError, UsageError
from ..core.manifest import SHARDED_FILE, Cascade, CascadeLike, is_inside, open_cascade
from ..core.product import Product
from ..core.tensors import Dims
from ..core.units import count, size
from ..loading.model import Model
from ..loading.opening import ModelLike, load
from ..loading.slices import sharding_note
from ..loading.subgraphs import callee_key, nodes_within
from ..running.in_process.looping import step_inputs
from ..running.values import Feeds
from .manifest_check import format_gap, other_text
from .numerical import (
    EXACT,
    ROUNDINGS,
    Compared,
    TensorComparison,
    accepted_inputs,
    compare,
    half_tolerance,
    not_returned,
    rounds_to_bytes,
    run_whole,
)
from .placement_check import NOT_PLACED, PlacementCheck, check_placement
from .sharded import prove_sharded
from .sharded_runs import compare_sharded, rounding
from .structural import Proof, prove

_Sets = Sequence[Feeds]  #: sets of inputs.
_HAS_MIXTURES: Final = tuple(int(number) for number in ort.__version__.split(".")[:2]) >= (1, 32)
_DEFECT: Final = (
    "a MoE without normalize_routing_weights computes from zeros where ONNX Runtime gives its output the memory of its "
    "input, which depends on the outputs that are asked for: 1.32 does not"
)
_OPTIMIZED: Final = "with graph optimizations, 4 times what they change in the unsplit model is allowed, at least 1e-5"


@dataclass(frozen=True, repr=False)
class Verification(Product):
    """The result of verifying. It is true if the structure is the model's and no run differed; `print` shows it."""

    proof: Proof  #: the structural comparison.
    #: the compared tensors for each set of inputs, in the order in which the parts write them.
    runs: tuple[Compared, ...]
    failure: str  #: the error of the cascade for inputs that the model accepts; empty if it accepts them.
    refusal: str  #: why the model runs on no generated inputs, so that nothing was run; empty if something was.
    reason: str  #: why differences are allowed; empty if bits must be equal.
    placement: PlacementCheck = NOT_PLACED  #: where the nodes of parts of devices with a provider run.
    subject: str = "cascade"  #: what was compared with the model: `cascade` or `sharded model`.

    @property
    def first_difference(self) -> TensorComparison | None:
        """The first tensor, in the order in which the parts write them, that differs by more than is allowed."""
        return next((tensor for run in self.runs for tensor in run if not tensor.passes), None)

    @property
    def is_identical(self) -> bool | None:
        """Whether all compared tensors are bit-identical; None if nothing was run."""
        return all(tensor.is_identical for run in self.runs for tensor in run) if self.runs else None

    @property
    def is_random(self) -> bool:
        """Whether a tensor differs that depends on a random or stateful node."""
        return any(tensor.is_random and not tensor.is_identical for run in self.runs for tensor in run)

    @property
    def same(self) -> bool:
        """Whether the proof holds, and every run ended without a difference beyond what is allowed.

        Where the nodes of parts could not be compared, the runs alone count, and there must be one.
        """
        is_proved = not self.proof.objections and bool(self.runs or not self.proof.unread)
        return is_proved and not (self.placement.objections or self.failure) and self.first_difference is None

    def __bool__(self) -> bool:
        return self.same

    @property
    def structure_summary(self) -> str:
        """What the structural proof compared."""
        proof = self.proof
        if proof.unread:
            return format_gap(proof.unread)
        text = f"{count(proof.nodes, 'node')} matched, {size(proof.weight_bytes)} of large weights compared"
        text += f", {count(proof.replicas, 'replica')}" if proof.replicas else ""
        text += f", {proof.approximate:,} of them approximate" if proof.approximate else ""
        text += f", {count(proof.halves, 'tensor')} sent as float16" if proof.halves else ""
        text += f", the model's weights are stored in {proof.stored_in} now" if proof.stored_in else ""
        if proof.stored_otherwise:
            text += f", {count(len(proof.stored_otherwise), 'constant')} in another field of the message now"
            text += f", such as {proof.stored_otherwise[0]!r}"
        text += f", {count(proof.given_states, 'state')} as the manifest says, not proved" if proof.given_states else ""
        return f"{text}, {', '.join(proof.texts)} not compared: none beside the model" if proof.texts else text

    @property
    def numbers_summary(self) -> str:
        """How many tensors of the runs are bit-identical; empty if nothing was run."""
        tensors = [tensor for run in self.runs for tensor in run]
        same = sum(tensor.is_identical for tensor in tensors)
        text = f"{count(len(self.runs), 'run')}, {same} of {count(len(tensors), 'tensor')} bit-identical"
        return text if self.runs else ""

    def __str__(self) -> str:
        worst, numbers = self.first_difference, [self.numbers_summary or "not run"]
        if worst is not None:
            numbers.append(f"{worst.tensor!r} differs by {worst.max_abs:.3g}, {worst.allowed:.3g} is allowed")
        numbers += filter(None, (self.failure, self.refusal, self.reason))
        answer = f"the {self.subject} {'matches' if self.same else 'does not match'} the model"
        answer += " in these runs" if self.same and self.proof.unread else ""
        structure = [self.structure_summary, *self.proof.objections, *self.placement.objections][:4]
        return f"{answer}\nstructure: {'; '.join(structure)}\nnumbers: {'; '.join(numbers)}"


def verify(
    model: ModelLike | CascadeLike,
    cascade: CascadeLike | Model | None = None,
    *,
    inputs: Sequence[Mapping[str, object]] = (),
    seed: int = 0,
    optimized: bool = False,
    structural_only: bool = False,
) -> Verification:
    """Verify that `cascade` computes what `model` computes: by structure, and by running both.

    Args:
        model: the model that was split or sharded, or its path. For a cascade of ranks the model that was sharded. May
            be left out, as in `verify(cascade)`, if it is still where the cascade says that it was.
        cascade: the cascade or its path; or a sharded model or the path of its .onnx file.
        inputs: sets of inputs to run both on; by default two sets of different sizes are generated.
        seed: seed of the generated inputs.
        optimized: run with graph optimizations, and allow for the noise that they make in the model itself.
        structural_only: run nothing.

    Raises:
        CascadeError: `cascade` was split from another model.
        RunError: the model refuses `inputs`. (If it refuses generated ones, the result says so.)
    """
    is_alone = cascade is None
    given = model if cascade is None else cascade
    is_model = isinstance(given, Model | ModelProto) or str(given).endswith(".onnx")
    cascade = load(cast("ModelLike", given)) if is_model else open_cascade(cast("CascadeLike", given))
    model = load(original_of(cascade) if is_alone else cast("ModelLike", model))
    if isinstance(cascade, Model):
        return _verify_sharded(model, cascade, inputs, seed, optimized=optimized, structural_only=structural_only)
    if cascade.parts[0].rank is not None and model.digest != cascade.manifest.source.graph:
        sharded = load(cascade.source)
        whole = _verify_sharded(model, sharded, inputs, seed, optimized=optimized, structural_only=structural_only)
        # The parts run against the sharded model, with which they share weights: if that is another model, for nothing.
        is_other = structural_only or not whole.same
        parts = verify(sharded, cascade, seed=seed, optimized=optimized, structural_only=is_other)
        return _together(whole, parts, *other_text(model, cascade))
    if model.digest != cascade.manifest.source.graph:
        message = f"{cascade.path.parent} was not cut from {model.path}: the graphs differ"
        raise CascadeError(message, hint="name the model it was cut from with `model`, or split again")
    if structural_only and cascade.converted:
        hint = "run it, without `structural_only`; `verify_files(...)` checks the files"
        raise CascadeError(f"{cascade.root}: {format_gap(cascade.converted)}", hint=hint)
    proof = prove(model, cascade)
    optimized |= bool(proof.unread)  # their format has the optimizations that were made when they were converted
    if structural_only or proof.objections:
        return Verification(proof, (), "", "", _reason(model, proof, (), optimized=optimized) if proof.halves else "")
    if gap := not_returned(model, cascade, optimized=optimized):
        return Verification(proof, (), "", "", gap)
    sizes = {**cascade.manifest.given_dims, **model.dims}
    placed = check_placement(model, cascade)
    comparing = partial(compare, model, cascade, optimized=optimized, placed=placed)
    if cascade.manifest.loop is not None and isinstance(inputs, list | tuple):  # one step is compared, the first
        known = [{name: value for name, value in feeds.items() if name in cascade.tensors} for feeds in inputs]
        inputs = [{**step_inputs(cascade, 0, own), **feeds} for own, feeds in zip(known, inputs, strict=True)]
    ran = _ran(model, inputs, seed, sizes, comparing)
    reason = _reason(model, proof, ran[0], placed, optimized=optimized)
    return Verification(proof, *ran, _with_defect(reason, model, ran[0]), placed)


def _verify_sharded(
    model: Model, sharded: Model, inputs: _Sets, seed: int, *, optimized: bool, structural_only: bool
) -> Verification:
    found = prove_sharded(model, sharded)
    ran: _Ran = ((), "", "")
    if found.proof.holds and not structural_only:
        comparing = partial(compare_sharded, model, sharded, found, optimized=optimized)
        ran = _ran(model, inputs, seed, model.dims, comparing)
    reason = rounding(model, found)[1] or (_OPTIMIZED if optimized else "")
    return Verification(found.proof, *ran, _with_defect(reason, model, ran[0]), subject="sharded model")


_Ran = tuple[tuple[Compared, ...], str, str]  #: the runs, the failure and the refusal of a `Verification`.


def _ran(model: Model, inputs: _Sets, seed: int, sizes: Dims, comparing: Callable[[Feeds], Compared]) -> _Ran:
    """Compare on each set of inputs, or on generated ones."""
    sets, refused = accepted_inputs(model, inputs, seed, sizes)
    runs, failure = [], ""
    for feeds in sets:
        try:
            runs.append(comparing(feeds))
        except RunError as error:
            run_whole(model, feeds, model.graph.writes, config=EXACT)  # raises if it is the model that refuses
            failure = str(error)
    return tuple(runs), failure, f"{refused}; {refused.hint}" if refused else ""


def _together(whole: Verification, parts: Verification, more: Iterable[str], unknown: tuple[str, ...]) -> Verification:
    """The verification of a sharded model, and of its parts, with more objections, and text files not compared."""
    objections = (*whole.proof.objections, *parts.proof.objections, *more)
    nodes, weight_bytes = whole.proof.nodes, whole.proof.weight_bytes + parts.proof.weight_bytes
    proof = replace(parts.proof, objections=objections, nodes=nodes, weight_bytes=weight_bytes, texts=unknown)
    texts = ((getattr(one, name) for one in (whole, parts)) for name in ("failure", "refusal", "reason"))
    failure, refusal, reason = (next(filter(None, pair), "") for pair in texts)
    return Verification(proof, (*whole.runs, *parts.runs), failure, refusal, reason, parts.placement)


def original_of(cascade: Cascade | Model) -> Path:
    """The path of the model that a cascade was split from, or that a sharded model or its ranks were sharded from.

    The manifest or the metadata of the sharded model say it; a UsageError if they don't. Whether it is still the same
    model is not checked.

    Raises:
        CascadeError: the model that a cascade was split from is missing.
        ModelError: the model that was sharded is missing.
    """
    if isinstance(cascade, Cascade):
        source = find_source(cascade)
        return source if cascade.parts[0].rank is None else original_of(load(source))
    if (note := sharding_note(cascade.proto)) is None:
        message = f"{cascade.path} is a model, not a cascade, and does not say which model it was sharded from"
        raise UsageError(message, hint="name that model with `model`")
    path = Path(os.path.normpath(cascade.path.parent.resolve() / note.model))
    if not path.exists():
        raise ModelError(f"the model that was sharded is not at {path}", hint="name it with `model`")
    return path


def find_source(cascade: Cascade) -> Path:
    """The path of the model that the parts are of, by the manifest; a CascadeError if there is no such file."""
    file = cascade.manifest.source.file
    if cascade.source.exists():
        return cascade.source
    if file == SHARDED_FILE or not is_inside(cascade.root, file):
        raise CascadeError(f"the model that was cut is not at {cascade.source}", hint="name it with `model`")
    hint = "`verify_files(...)` compares files, and runs need your inputs; `Automation(keep=True)` keeps it"
    raise CascadeError(f"the model that was cut, {file}, was not kept in {cascade.root}", hint=hint)


def _with_defect(reason: str, model: Model, runs: Iterable[Compared]) -> str:
    """The reason, and what an old ONNX Runtime does wrong if a tensor differs (docs/explanation/moe_in_place.py)."""
    nodes = (*model.proto.graph.node, *(node for function in model.functions.values() for node in function.node))
    mixtures = [node for node in nodes_within(nodes) if callee_key(node)[:2] == ("com.microsoft", "MoE")]
    weighs = [any(at.name == "normalize_routing_weights" and at.i for at in node.attribute) for node in mixtures]
    if _HAS_MIXTURES or all(weighs) or all(tensor.is_identical for run in runs for tensor in run):
        return reason
    return "; ".join(filter(None, (reason, _DEFECT)))


def _reason(
    model: Model, proof: Proof, runs: Sequence[Compared], placed: PlacementCheck = NOT_PLACED, *, optimized: bool
) -> str:
    """Why differences are allowed, and how numbers are judged that other providers than the CPU's computed."""
    tensors = [tensor for run in runs for tensor in run]
    worst = max(tensors, key=attrgetter("max_abs"), default=None)
    if placed.providers:
        how = f"judged by {placed.computes}, its type" if placed.computes else "not judged: its type is not known"
        if placed.computes == "float32" and rounds_to_bytes(model):
            how += ", and by 8 bits where products of 4 bits may round to these (accuracy_level 4)"
        if worst is not None and worst.max_abs:
            of = f", of {worst.allowed:.3g} allowed" if placed.computes and not proof.halves else ""
            how += f"; {worst.tensor!r} differs most: by {worst.max_abs:.3g}{of}"
        is_wrong = not all(tensor.passes for tensor in tensors)
        if given := [name for name in model.graph.reads if is_wrong and name in model.graph.weights]:
            how += f"; what is fed for {given[0]!r} may be ignored there, as it has a value: make it a constant"
        return f"parts ran on {', '.join(placed.providers)}, {how}"
    if proof.halves:
        measured = f": by at most {worst.max_abs:.3g} in these runs" if worst is not None else ""
        return f"float32 tensors are sent as float16, as asked, so that outputs differ{measured}"
    text = _OPTIMIZED if optimized else ""
    if fraction := half_tolerance(model):
        why = "the model computes in half precision, which ONNX Runtime rounds at a boundary, but not inside a part"
        allowed = f"differences up to {fraction:g} of a tensor's largest value are allowed"
        text = f"{why}: {allowed}, behind more than {ROUNDINGS} boundaries {fraction / ROUNDINGS:g} for each"
    if explained := [tensor for tensor in tensors if tensor.is_explained]:
        most = max(explained, key=attrgetter("max_abs"))
        text += f"; {most.tensor!r} differs by {most.max_abs:.3g}, with the bits of the model's nodes run part by part"
    return text
