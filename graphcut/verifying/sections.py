"""The error of each tensor that two models have, and how much of it the nodes right before it add by themselves.

A section is what computes a tensor that both models have from others that both have. Both models' sections run on the
same values, those of either model, so that what they differ by is their own, and nothing is inherited.
"""

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from math import inf, isfinite, log, sqrt
from typing import Any, Final

import ml_dtypes
import numpy as np
from onnx import SparseTensorProto, TensorProto, numpy_helper

from ..core.errors import RunError
from ..core.graph import Block, block_of, reached
from ..core.records import table
from ..core.tensors import BITS, UNDEFINED, Tensor
from ..loading.model import Model
from ..loading.operations import constants_in
from ..loading.repeated_definitions import is_constant
from ..loading.shape_inference import DTYPES
from ..running.providers import CPU
from ..running.stage import SessionConfig
from ..running.values import Feeds, Value, from_array, is_numeric_tensor, symbol_sizes
from .differences import Error, array_of, decibels, error_between, flatten, numpy_type
from .histograms import Histogram, histogram_of
from .matching import matched_tensors
from .numerical import proto_of, random_tensors, run_proto

ROUNDOFF: Final = {dtype: 0.5**bits for dtype, bits in table("verifying/roundoff.toml", dict[str, int]).items()}
"""The relative error of one rounding to p bits, 0.5 ** p (Higham, Accuracy and Stability of Numerical Algorithms, 2.2).

In float32 and float64 sums are rounded as well: that of n products has about sqrt(n) roundings (Higham and Mary, A New
Approach to Probabilistic Rounding Error Analysis, 2019), here 16 for 256. Kernels add numbers of fewer bits in float32.
"""

_TF32: Final = 2.0**-11  #: how accelerators round float32 before they multiply.
EXCESS: Final = 4.0  #: an error stands out from this multiple of what the types explain on.

_QUANTIZING: Final = re.compile(r"[Qq]uantize|Integer|QLinear|NBits|QAttention|QGemm|QMoE")
CODES: Final = frozenset({"int8", "uint8", "int4", "uint4", "int2", "uint2"})  #: what weights are rounded to.
CREST: Final = 4.0  #: the largest of some thousand numbers of a normal distribution, in standard deviations.
SLICE_BYTES: Final = 64 << 20  #: tensors that are held at once, of each model, besides those that are read later.
_BYTE: Final = 8
_STEPS: Final = {"float64": 2.0**-20, "float32": 2.0**-12, "float16": 2.0**-8, "bfloat16": 2.0**-6}
"""By what fraction floats are changed to see how much a section amplifies a rounding: by several of its own."""


@dataclass(frozen=True)
class TensorError:
    """The error of a tensor that both models compute, as signal-to-noise ratios in dB: infinite if there is none."""

    tensor: str  #: its name in the first model.
    other: str  #: its name in the second one.
    node: str  #: the node of the first model that writes it.
    module: str  #: the module of this node; empty if unknown.
    db: float  #: of its value in the second model, against that in the first.
    own_db: float  #: of what the second model computes for it from the values of the first.
    expected_db: float  #: of the rounding that its types explain.
    broken: int  #: how many of its numbers are finite in one model alone.
    #: how its numbers are spread in both models, if that was asked for.
    histogram: Histogram | None = field(default=None, repr=False)

    @property
    def is_equal(self) -> bool:
        """Whether all its numbers are equal in both models."""
        return self.db == inf


def _dense(sparse: SparseTensorProto, name: str) -> TensorProto:
    """A sparse tensor with all its values; the places of those that are not zero are numbers, or a row for each."""
    places, values = numpy_helper.to_array(sparse.indices), numpy_helper.to_array(sparse.values)
    array = np.zeros(tuple(sparse.dims), values.dtype)
    array.ravel()[places if places.ndim == 1 else np.ravel_multi_index(tuple(places.T), array.shape)] = values
    return numpy_helper.from_array(array, name)


class Side:
    """One of two models, and the tensors of it that both have."""

    def __init__(self, model: Model, shared: Iterable[str], config: SessionConfig) -> None:
        self.model, self.shared, self.config = model, {*shared, *model.graph.reads}, config
        graph = model.proto.graph
        self.weights = {tensor.name: tensor for tensor in graph.initializer} | constants_in(model.proto)
        sparse = {one.values.name: one for one in graph.sparse_initializer}
        given = ((node.output[0], a) for node in graph.node if is_constant(node) for a in node.attribute)
        sparse |= {name: a.sparse_tensor for name, a in given if a.name == "sparse_value"}
        self.weights |= {name: _dense(one, name) for name, one in sparse.items()}

    def section(self, targets: Sequence[str], given: Iterable[str] | None = None) -> Block:
        """What computes `targets` from tensors `given`; by default from those that both models have."""
        graph, ends = self.model.graph, self.shared if given is None else {*given, *self.model.graph.reads}
        start = [graph.producer[name] for name in targets]
        found = reached(start, lambda n: (graph.producer[r] for r in graph.nodes[n].reads if r not in ends))
        nodes = sorted(n for n in found if not graph.nodes[n].is_constant)
        reads = dict.fromkeys(read for n in nodes for read in graph.nodes[n].reads if read in ends)
        return block_of(graph, nodes, (*reads,), targets)

    def run(self, targets: Sequence[str], values: Feeds, given: Iterable[str] | None = None) -> dict[str, Value]:
        """The values of `targets`, computed from those `given` in `values`, even of a target that is itself given."""
        block = self.section(targets, given)
        proto, own = proto_of(self.model, block), {name: f"{name}@own" for name in block.reads}
        for node in proto.graph.node:
            node.output[:] = [own.get(name, name) for name in node.output]
        for value in proto.graph.output:
            value.name = own.get(value.name, value.name)
        unknown = Tensor(name="", dtype=UNDEFINED, shape=None)  # of what constant nodes compute
        types = {own.get(name, name): self.model.tensors.get(name, unknown) for name in targets}
        fed = {name: values[name] for name in block.reads if name in values}
        made = run_proto(self.model, proto, fed, list(types), self.config, types)
        return dict(zip(targets, made.values(), strict=True))

    def block_sizes(self, block: Block) -> list[int]:
        """How many numbers share a scale, in each node of a section that quantizes in blocks."""
        nodes = (self.model.proto.graph.node[n] for n in (*block.replicas, *block.nodes))
        return [a.i for node in nodes for a in node.attribute if a.name == "block_size" and a.i > 0]

    def types(self, block: Block) -> tuple[float, int | None]:
        """The relative error of one rounding of the coarsest floats in a section, and to how many bits it quantizes."""
        nodes = [self.model.graph.nodes[n] for n in (*block.replicas, *block.nodes)]
        written = [name for node in nodes for name in node.writes]
        kinds = {self.model.tensors[name].dtype for name in (*block.reads, *written) if name in self.model.tensors}
        kinds |= {DTYPES[self.weights[name].data_type] for name in block.weights if name in self.weights}
        accelerated = [_TF32] if "float32" in kinds and self.config.provider not in {None, CPU} else []
        bits = [4 if "NBits" in node.op else _BYTE for node in nodes if _QUANTIZING.search(node.op)]
        bits += [BITS[kind] for kind in kinds & CODES if bits]
        return max([ROUNDOFF.get(kind, 0.0) for kind in kinds] + accelerated, default=0.0), min(bits, default=None)


def block_crest(sizes: Iterable[int]) -> float:
    """The largest of numbers that share a scale, in standard deviations: at most sqrt(2 ln 2n) of n on average.

    This bound is for numbers of a normal distribution (Boucheron, Lugosi and Massart, Concentration Inequalities, 2.5).
    Without `sizes` of blocks all numbers of a tensor or channel share one.
    """
    return max((sqrt(2 * log(2 * size)) for size in sizes), default=CREST)


def quantization_noise(bits: int, crest: float) -> float:
    """The relative error of numbers in steps of equal size over their range.

    An error of at most half a step has a standard deviation of step / sqrt(12) (Bennett, Spectra of Quantized Signals,
    1948). `crest` is the largest value as a multiple of the root mean square.
    """
    return crest * 2.0 ** (1 - bits) / sqrt(12)


class Pair:
    """Two models, and the tensors that both have: `there` gives the name of each in the second one."""

    def __init__(
        self, model: Model, other: Model, config: SessionConfig, model_config: SessionConfig, *, has_histograms: bool
    ) -> None:
        random = random_tensors(model), random_tensors(other)

        def fits(name: str, partner: str) -> bool:
            are_alike = (name in model.graph.input_index) is (partner in other.graph.input_index)
            is_chance = name in random[0] or partner in random[1]
            return are_alike and not is_chance and _fit(model.tensors[name], other.tensors[partner])

        self.there = matched_tensors(model.graph, other.graph, fits)
        self.here, self.has_histograms = {partner: name for name, partner in self.there.items()}, has_histograms
        self.first, self.second = Side(model, self.there, model_config), Side(other, self.here, config)
        #: nodes of the first model of which an attribute, an input or a weight differs by more than rounding.
        self.changed = set[str]()
        #: the tensors that both compute, in topological order.
        self.computed = tuple(name for name in self.there if name in model.graph.producer)

    def fed(self, feeds: Feeds) -> dict[str, Any]:
        """Values of the first model as those of the second."""
        return {self.there[n]: converted(value, self.kinds(n)) for n, value in feeds.items() if n in self.there}

    def sections(self, names: Sequence[str]) -> tuple[Block, Block]:
        """What computes tensors in both models."""
        return self.first.section(names), self.second.section([self.there[name] for name in names])

    def sources(self, names: Sequence[str]) -> tuple[str, ...]:
        """What both sections of tensors read, by its name in the first model, or else in the second."""
        ours, theirs = self.sections(names)
        return tuple(dict.fromkeys((*ours.reads, *(self.here.get(name, name) for name in theirs.reads))))

    def measure(self, feeds: Feeds) -> Iterator[tuple[TensorError, Value]]:
        """The errors of all tensors that both models compute, and what the second model's sections give for them.

        The models run slice by slice, and so do their sections. Values are held for a slice, and for as long as later
        ones read them.
        """
        first, second = self.first, self.second
        ours: dict[str, Any] = dict(feeds)
        theirs: dict[str, Any] = self.fed(feeds)
        slices = [*self._slices(feeds)]
        last_use = {name: number for number, names in enumerate(slices) for name in self.sources(names)}
        for number, names in enumerate(slices):
            partners = [self.there[name] for name in names]
            ours |= first.run(names, ours, given=[name for name in ours if name not in names])
            theirs |= second.run(partners, theirs, given=[name for name in theirs if name not in partners])
            yield from self._measured(names, ours, theirs)
            for name in [name for name in self.computed if name in ours and last_use.get(name, -1) <= number]:
                del ours[name], theirs[self.there[name]]

    def _measured(self, names: Sequence[str], ours: Feeds, theirs: Feeds) -> Iterator[tuple[TensorError, Value]]:
        first, graph = self.first, self.first.model.graph
        given = {name: ours[name] for name in self.sources(names) if name in ours}
        fed = self.fed(given)
        given |= self._back(given, fed)
        inherited = {**given, **self._back(given, theirs)}
        moved = {name: _moved(value, first.model.tensors[name]) for name, value in given.items()}
        own = run_or_halve(first, names, given) if any(given[name] is not ours[name] for name in given) else ours
        others, shifted = (run_or_halve(first, names, values) for values in (inherited, moved))
        found = run_or_halve(self.second, [self.there[name] for name in names], fed)
        for name in (name for name in names if name in own and self.there[name] in found):
            partner, node, (kind, other) = self.there[name], graph.nodes[graph.producer[name]], self.kinds(name)
            most = _most(own[name], kind)
            errors = [error_of(own[name], found[partner], kind, other, most)]
            errors += [error_of(others[name], theirs[partner], kind, other, most)] if name in others else []
            change = error_of(own[name], shifted[name], kind, kind, most).relative if name in shifted else 0.0
            expected = self._expected(name, change / _STEPS.get(kind.dtype, inf), given)
            whole, least = error_of(ours[name], theirs[partner], kind, other), max(one.db for one in errors)
            arrays = array_of(ours[name], kind), array_of(theirs[partner], other)
            histogram = histogram_of(*arrays, most) if self.has_histograms else None
            ratios = whole.db, least, decibels(expected)
            yield TensorError(name, partner, node.name, node.module, *ratios, whole.broken, histogram), found[partner]

    def _back(self, names: Iterable[str], values: Feeds) -> dict[str, Any]:
        """Values of the second model as those of the first."""
        return {n: converted(values[self.there[n]], self.kinds(n)[::-1]) for n in names if n in self.there}

    def kinds(self, name: str) -> tuple[Tensor, Tensor]:
        """The types of a tensor in both models."""
        return self.first.model.tensors[name], self.second.model.tensors[self.there[name]]

    def rounding(self, name: str) -> float:
        """The relative error of one rounding of the coarsest floats in the sections of a tensor."""
        ours, theirs = self.sections([name])
        return max(self.first.types(ours)[0], self.second.types(theirs)[0])

    def _expected(self, name: str, gain: float, given: Feeds) -> float:
        """The relative error of a tensor that the roundings in its sections explain.

        That of one rounding of each source, which is amplified by `gain` as a perturbation has shown if that is a
        number, or of one for each node. A quantizer does not count if both models quantize to the same bits, and
        nothing in the section is `changed`.
        """
        ours, theirs = self.sections([name])
        (one, bits), (two, more) = self.first.types(ours), self.second.types(theirs)
        rounding = max(one, two)
        is_same = bits == more and self.changed.isdisjoint(self.first.model.graph.names(ours.nodes))
        if least := [number for number in (bits, more) if number and not is_same]:
            read = [n for n in ours.reads if n in given and min(least) == _BYTE]
            fixed = min(block_crest(self.first.block_sizes(ours)), block_crest(self.second.block_sizes(theirs)))
            crest = max(fixed, *(_crest(given[n], self.first.model.tensors[n]) for n in read), 0.0)
            rounding = max(rounding, quantization_noise(min(least), crest))
        return rounding * max(gain if isfinite(gain) else 0.0, sqrt(max(len(ours.nodes), len(theirs.nodes))))

    def _slices(self, feeds: Feeds) -> Iterator[Sequence[str]]:
        """The computed tensors in groups of at most `SLICE_BYTES`; one that is larger is alone."""
        model = self.first.model
        shapes = {name: np.shape(value) for name, value in feeds.items() if isinstance(value, np.ndarray)}
        sizes = model.with_dims({**symbol_sizes(shapes, model.tensors), **model.dims}).tensor_bytes
        held, names = 0, list[str]()
        for name in self.computed:
            if names and held + sizes[name][0] > SLICE_BYTES:
                yield names
                held, names = 0, []
            names.append(name)
            held += sizes[name][0]
        if names:
            yield names


def _fit(one: Tensor, two: Tensor) -> bool:
    """Whether tensors can be compared: floats of any two types, or numbers of one; of shapes that may be the same."""
    kinds = ["float" if tensor.dtype in ROUNDOFF else tensor.dtype for tensor in (one, two)]
    if kinds[0] != kinds[1] or kinds[0] == UNDEFINED or not is_numeric_tensor(one):
        return False
    shapes = one.shape or (), two.shape or ()
    is_known = one.shape is not None and two.shape is not None
    numbers = ((a, b) for a, b in zip(*shapes, strict=False) if isinstance(a, int) and isinstance(b, int))
    return not is_known or (len(shapes[0]) == len(shapes[1]) and all(a == b for a, b in numbers))


def run_or_halve(side: Side, targets: Sequence[str], values: Feeds) -> dict[str, Value]:
    """The values of those targets of which the sections accept `values`; if one refuses them, halves are run."""
    try:
        return side.run(targets, values, given=values)
    except RunError:
        if len(targets) == 1:
            return {}
        middle = len(targets) // 2
        return run_or_halve(side, targets[:middle], values) | run_or_halve(side, targets[middle:], values)


def error_of(a: Value, b: Value, kind: Tensor, other: Tensor, most: float = inf) -> Error:
    """The error of `b`, of the type `other`, as a value of `a`, of the type `kind`; see `error_between`."""
    return error_between(flatten(a, kind), flatten(b, other), most)


def _most(value: Value, tensor: Tensor) -> float:
    """Larger numbers are masks, beside which an error of the others would not be seen: 1000 times the median."""
    array = np.abs(array_of(value, tensor).astype(np.float64)) if tensor.dtype in ROUNDOFF else np.zeros(0)
    numbers = array[(array > 0) & (array < inf)]
    return 1000 * float(np.median(numbers)) if numbers.size else inf


def converted(value: object, kinds: tuple[Tensor, Tensor]) -> Any:  # noqa: ANN401 - a value, as it is given or converted
    """A value of the first type as one of the second, both floats or equal; finite numbers stay finite."""
    tensor, other = kinds
    if tensor.dtype == other.dtype:
        return value
    goal = numpy_type(other)
    limits: Any = ml_dtypes.finfo(goal)  # type: ignore[no-untyped-call]
    array = array_of(value, tensor).astype(np.float64 if "float64" in {tensor.dtype, other.dtype} else np.float32)
    array = np.where(np.isfinite(array), np.clip(array, float(limits.min), float(limits.max)), array)
    return from_array(np.ascontiguousarray(array.astype(goal)).reshape(array.shape), other)


def _moved(value: object, tensor: Tensor) -> Any:  # noqa: ANN401 - as above
    """A value with each float changed by a small fraction, up or down by chance; others as they are.

    Chance depends on the name: two tensors that are changed alike would keep how far they are from one another.
    """
    if tensor.dtype not in _STEPS:
        return value
    array = array_of(value, tensor)
    signs = np.random.default_rng([*tensor.name.encode()]).integers(0, 2, array.shape, np.int8) * 2 - 1
    with np.errstate(all="ignore"):
        return from_array((array + array * signs * array.dtype.type(_STEPS[tensor.dtype])).astype(array.dtype), tensor)


def _crest(value: object, tensor: Tensor) -> float:
    """The largest number of a tensor of floats as a multiple of the root mean square; 0 for other tensors."""
    array = array_of(value, tensor).astype(np.float64) if tensor.dtype in ROUNDOFF else np.zeros(1)
    array = array[np.isfinite(array)]
    mean = sqrt(np.square(array).mean()) if array.size else 0.0
    return float(np.abs(array).max() / mean) if mean else 0.0
