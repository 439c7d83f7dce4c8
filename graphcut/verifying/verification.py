"""`verify`: the proof, the comparison, and what both say together."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType

from ..core.errors import CascadeError, RunError
from ..core.manifest import Cascade, CascadeLike, open_cascade
from ..core.product import Product
from ..inputs.searching import find_accepted_inputs
from ..loading.fingerprint import graph_digest
from ..loading.model import Model, ModelLike, load
from .numerical import EXACT, TensorComparison, compare, half_tolerance, run_whole
from .structural import Proof, prove


@dataclass(frozen=True, repr=False)
class Verification(Product):
    """What verifying found. True when the cascade does what its model does.

    Attributes:
        proof: the structural comparison.
        runs: for each set of inputs what was compared, in the order in which the parts make it.
        failure: what the cascade said when it refused inputs that the model takes; empty where it took them.
        refusal: why nothing was run: the model's own words; empty where something was.
        reason: why a difference is allowed; empty where bits must be equal.
    """

    proof: Proof
    runs: tuple[tuple[TensorComparison, ...], ...]
    failure: str
    refusal: str
    reason: str

    @property
    def first_difference(self) -> TensorComparison | None:
        """The first tensor, in the order in which the parts make them, that differs by more than is allowed."""
        return next((tensor for run in self.runs for tensor in run if not tensor.passes), None)

    @property
    def is_identical(self) -> bool:
        """Was everything that was compared bit-identical?"""
        return all(tensor.is_identical for run in self.runs for tensor in run)

    @property
    def is_random(self) -> bool:
        """Did tensors differ that random or stateful nodes have a part in?"""
        return any(tensor.is_random and not tensor.is_identical for run in self.runs for tensor in run)

    @property
    def same(self) -> bool:
        """Does the proof hold, and did every run end without a difference that counts?"""
        return self.proof.holds and not self.failure and self.first_difference is None

    def __bool__(self) -> bool:
        return self.same


def verify(
    model: ModelLike,
    cascade: CascadeLike,
    *,
    inputs: Sequence[Mapping[str, object]] = (),
    seed: int = 0,
    optimized: bool = False,
    structural_only: bool = False,
) -> Verification:
    """Prove that `cascade` does what `model` does.

    Args:
        model: the model that was split, or its path.
        cascade: the cascade or its path.
        inputs: sets of inputs to run both on. Without any, two sets of different sizes are generated from `seed`.
        seed: for the generated inputs.
        optimized: compare as users run it, with optimisations, against the noise that these make in the model itself.
        structural_only: prove, and run nothing.

    Raises:
        CascadeError: `cascade` was cut from another model.
        RunError: the model refuses `inputs`. (That it refuses generated ones stands in the report.)
    """
    cascade = open_cascade(cascade)
    model = model if isinstance(model, Model) else load(model, dims=cascade.manifest.dims)
    if graph_digest(model.proto) != cascade.manifest.source.graph:
        raise CascadeError(
            f"{cascade.path.parent} was not cut from {model.path}: the digest of its graph is another",
            hint="name the model it was cut from with --model, or split again",
        )
    proof = prove(model, cascade)
    if structural_only or not proof.holds:
        return Verification(proof, (), "", "", "")
    feeds, refusal = list(inputs), ""
    if not feeds:
        tried = find_accepted_inputs(
            model, lambda fed: run_whole(model, fed, model.graph.writes, config=EXACT), seed=seed, sizes=model.dims
        )
        feeds, refusal = list(tried.feeds), tried.refusal
    runs, failure = [], ""
    for fed in feeds:
        try:
            runs.append(compare(model, cascade, fed, optimized=optimized))
        except RunError as error:
            run_whole(model, fed, model.graph.writes, config=EXACT)  # raises where the model is the one that refuses
            failure = str(error)
    return Verification(proof, tuple(runs), failure, "" if feeds else refusal, _reason(model, optimized=optimized))


def find_source(cascade: Cascade, *, dims: Mapping[str, int] = MappingProxyType({})) -> Model:
    """The model that a cascade was cut from, at the path that its manifest records.

    Args:
        cascade: the cascade.
        dims: sizes of symbolic dimensions, in addition to those of the manifest.

    Raises:
        CascadeError: there is no such file. (`verify` checks that it is still the same model.)
    """
    path = cascade.source
    if not path.exists():
        raise CascadeError(f"the model that was cut is not at {path}", hint="name it with --model FILE")
    return load(path, dims={**cascade.manifest.dims, **dims})


def _reason(model: Model, *, optimized: bool) -> str:
    fraction = half_tolerance(model)
    if fraction:
        return (
            "the model computes in half precision, which ONNX Runtime rounds at a border and not inside: "
            f"differences up to {fraction:g} of a tensor's largest value are allowed"
        )
    if optimized:
        return "with optimisations on, up to 4 times what they change in the unsplit model is allowed, at least 1e-5"
    return ""
