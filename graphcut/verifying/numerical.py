"""The numerical check: run the whole model and its cascade in ONNX Runtime on some inputs, and compare each tensor.

With graph optimizations off, every output and every boundary tensor must be bit-identical. Half precision is the
exception: ONNX Runtime's CPU kernels compute fp16 and bf16 in fp32, and round between two nodes only if there is a
boundary. There a difference of a fraction of the tensor's largest value is allowed: four roundings, or as many as there
are boundaries on the way to the tensor.

Norms amplify a rounding without a bound, and also what graph optimizations change. So a larger difference is explained
if the model's own nodes, run part by part, give the bits of the cascade.

Providers of accelerators may compute in a smaller type. There 4 times of what rounding every tensor to it changes in
the unsplit model is allowed.
"""

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from copy import deepcopy
from dataclasses import dataclass, field, replace
from functools import partial
from sys import float_info
from types import MappingProxyType
from typing import Final

from msgspec.structs import replace as replaced
from onnx import ModelProto, NodeProto, TensorProto, ValueInfoProto
from onnx.helper import make_node

from ..core.errors import GraphcutError, OpeningError, RunError, wrong_type
from ..core.graph import Block, block_between, reached
from ..core.manifest import Cascade
from ..core.tensors import NON_NUMPY_TYPES, Dims, Tensor, Tensors
from ..inputs.searching import find_accepted_inputs
from ..loading.fingerprint import head_of
from ..loading.model import Model
from ..loading.shape_inference import type_proto
from ..loading.subgraphs import add_notes
from ..running.in_process.sequential import run_sequentially
from ..running.providers import CPU, open_session
from ..running.stage import SessionConfig, explaining, external_weights_entry, opening, run_session, session_options
from ..running.values import Feeds, Value, check_fed, is_numeric_tensor, to_value
from .differences import are_identical, difference, flatten, is_float, largest, widened
from .placement_check import NOT_PLACED, PlacementCheck

HALF_TOLERANCES: Final = {"float16": 2e-3, "bfloat16": 1.6e-2, "tf32": 2e-3}
"""Allowed differences of a model that computes in half precision, as fractions of the tensor's largest value.

`tf32`, in which accelerators multiply float32, has the precision of float16.
"""

ROUNDINGS: Final = 4
"""How many roundings these are: one changes 2 ** -11 of a value at most in float16, 2 ** -8 in bfloat16."""

_SMALLEST: Final = {"float16": 2.0**-24, "bfloat16": 2.0**-133}
"""The distance of their smallest numbers: a rounding near zero changes so much, however small the tensor's numbers."""

_ROUNDED: Final = {"float16": (TensorProto.FLOAT16, 65504.0), "bfloat16": (TensorProto.BFLOAT16, 3.38953139e38)}
"""Types to which tensors are rounded, as providers compute in them, and their largest numbers."""

_SUMMED: Final = 4
"""So many times more roundings are inside a node on a provider that adds in a small type: 16, as for 256 products."""


_Written = tuple[int, str, Value]  #: the index of a part, and a tensor that it wrote.
EXACT: Final = SessionConfig(optimize="none", prepacked=False, threads=1, is_checked=False)
"""How models run so that equal nodes give equal bits: without graph optimizations, prepacked weights or threads."""

OPTIMIZED: Final = SessionConfig(optimize="all", prepacked=False, threads=1, is_checked=False)


@dataclass(frozen=True)
class TensorComparison:
    """The comparison of one tensor of the model and of the cascade."""

    tensor: str  #: its name.
    part: int = field(default=0, kw_only=True)  #: index of the part that writes it.
    is_output: bool = field(default=True, kw_only=True)  #: it is an output of the model; else a boundary tensor.
    is_identical: bool  #: all bits are the same (all NaNs count as the same).
    #: it depends on a random or stateful node, so two runs may differ.
    is_random: bool = field(default=False, kw_only=True)
    #: the largest absolute difference: the smallest `atol` that would pass. `inf` if the shape, a string, or which
    #: numbers are finite differ.
    max_abs: float
    max_rel: float  #: the largest difference relative to the model's value.
    max_ulps: int  #: the largest difference in units in the last place; 0 if the tensor has none.
    allowed: float  #: the largest allowed `max_abs`; if it is 0, bits must be equal.
    #: it differs by more, and has the bits that the model's own nodes give where they run part by part: half precision
    #: or graph optimizations make the difference.
    is_explained: bool = False

    @property
    def passes(self) -> bool:
        """Whether it is identical, random, within the allowed difference, or the difference is explained."""
        is_within = self.allowed > 0 and self.max_abs <= self.allowed
        return self.is_identical or self.is_random or is_within or self.is_explained


def run_whole(
    model: Model, feeds: Feeds, wanted: Sequence[str], *, config: SessionConfig, rounded_to: str = ""
) -> dict[str, Value]:
    """The values of `wanted`, outputs or inner tensors, when the whole model runs on `feeds`.

    With `rounded_to` every float32 tensor that a node of the main graph reads, weights too, is rounded to this type;
    what is larger than its numbers becomes the largest of them.

    A RunError if ONNX Runtime refuses the model or the inputs.
    """
    proto = deepcopy(model.proto)
    if rounded_to in HALF_TOLERANCES:
        nodes = list(_with_roundings(model, proto, *_ROUNDED.get(rounded_to, _ROUNDED["float16"])))
        del proto.graph.node[:]
        proto.graph.node.extend(nodes)
    outputs = {value.name for value in proto.graph.output}
    proto.graph.output.extend(ValueInfoProto(name=name) for name in wanted if name not in outputs)
    return run_proto(model, proto, feeds, wanted, config)


def _with_roundings(model: Model, proto: ModelProto, kind: int, most: float) -> Iterator[NodeProto]:
    """The nodes of a copy of the model, before each those that round what it reads."""
    names = {*model.tensors, *(name for node in proto.graph.node for name in (*node.input, *node.output))}
    mark = max((part for name in names for part in re.findall("@+", name)), default="") + "@"  # no name has it
    for name, value in ((f"{mark}low", -most), (f"{mark}high", most)):
        yield make_node("Constant", [], [name], value=TensorProto(data_type=TensorProto.FLOAT, float_data=[value]))
    known = {tensor.name for tensor in proto.graph.initializer if tensor.data_type == TensorProto.FLOAT}
    known |= {name for name, tensor in model.tensors.items() if tensor.dtype == "float32"}
    unread = set(known)
    for node in proto.graph.node:
        for name in unread.intersection(node.input):
            yield make_node("Max", [name, f"{mark}low"], [f"{name}{mark}raised"])
            yield make_node("Min", [f"{name}{mark}raised", f"{mark}high"], [f"{name}{mark}clipped"])
            yield make_node("Cast", [f"{name}{mark}clipped"], [f"{name}{mark}half"], to=kind)
            yield make_node("Cast", [f"{name}{mark}half"], [f"{name}{mark}rounded"], to=TensorProto.FLOAT)
        unread.difference_update(node.input)
        node.input[:] = [f"{name}{mark}rounded" if name in known else name for name in node.input]
        yield node


def _run_divided(model: Model, cascade: Cascade, feeds: Feeds, config: SessionConfig) -> Feeds:
    """What the parts write, computed by the model's own nodes: of each part alone, from what those before it gave."""
    values = dict(feeds)
    for part in cascade.parts:
        block = block_between(model.graph, part.reads, part.writes)
        given = {name: values[name] for name in block.reads if name in values}
        values |= run_proto(model, proto_of(model, block), given, part.writes, config)
    return values


def proto_of(model: Model, block: Block) -> ModelProto:
    """The nodes of a block as a model to run, with the weights that they read. Its inputs have no shapes."""
    whole, kept = model.proto.graph, {*block.reads, *block.weights}
    proto = head_of(model.proto)
    proto.functions.extend(model.proto.functions)
    proto.graph.node.extend(whole.node[i] for i in sorted((*block.nodes, *block.replicas)))
    proto.graph.initializer.extend(tensor for tensor in whole.initializer if tensor.name in kept)
    proto.graph.sparse_initializer.extend(whole.sparse_initializer)
    proto.graph.input.extend(value for value in whole.input if value.name in kept)
    inner = [replaced(model.tensors[name], shape=None) for name in block.reads if name not in model.graph.input_index]
    proto.graph.input.extend(ValueInfoProto(name=tensor.name, type=type_proto(tensor)) for tensor in inner)
    proto.graph.output.extend(ValueInfoProto(name=name) for name in block.writes)
    add_notes(proto.graph, whole.value_info, whole.quantization_annotation)
    return proto


def run_proto(
    model: Model,
    proto: ModelProto,
    feeds: Feeds,
    wanted: Sequence[str],
    config: SessionConfig,
    tensors: Tensors = MappingProxyType({}),
) -> dict[str, Value]:
    """The values of `wanted` in a model that has nodes of `model`; `tensors` are the types of those with new names."""
    options = session_options(config, external_weights_entry(model.path.parent))
    tensors = {**model.tensors, **tensors}
    provider = config.provider or CPU
    with opening():
        session, _ = open_session(proto.SerializeToString(), options, provider, config.options, may_fall_back=False)
    with explaining("ONNX Runtime refuses the whole model", "feed it with `inputs`"):
        values = {name: to_value(value, tensors[name]) for name, value in feeds.items()}
        return run_session(session, values, list(wanted), tensors)


def accepted_inputs(
    model: Model, given: Sequence[Feeds], seed: int, sizes: Dims
) -> tuple[Sequence[Feeds], RunError | None]:
    """The inputs `given`, or generated ones that the model accepts without graph optimizations; if none, the error.

    An InputError if one is given that the model does not have, or one is missing; a TypeError if `given` is no list.
    """
    if isinstance(given, str | Mapping) or not isinstance(given, Iterable):
        raise wrong_type(given, "a list of sets of inputs", hint="pass a list such as [{'x': array}]")
    needed = [name for name in model.graph.reads if name not in model.graph.weights]
    for feeds in given:
        check_fed(feeds, model.graph.reads, needed, model.tensors, {})
    if given:
        return given, None
    run = partial(run_whole, model, wanted=model.graph.writes, config=EXACT)
    try:
        found = find_accepted_inputs(model, run, seed=seed, sizes=sizes)
    except OpeningError as error:
        return (), error
    if found.feeds:
        return found.feeds, None
    return (), RunError(f"{model.title} refuses the generated inputs: {found.refusal}", hint="feed it with `inputs`")


def not_returned(model: Model, cascade: Cascade, *, optimized: bool) -> str:
    """Why ONNX Runtime can't return what is compared in the whole model; empty if it can, see `run_session`."""
    wanted = (*cascade.manifest.writes, *(() if optimized else cascade.wiring.boundary_tensors))
    tensors = [model.tensors[name] for name in (*model.graph.reads, *wanted) if name in model.tensors]
    other = next((tensor for tensor in tensors if not is_numeric_tensor(tensor)), None)
    unknown = next((one for one in tensors if one.dtype in NON_NUMPY_TYPES and one.name in wanted), None)
    if other is None or unknown is None:
        return ""
    return f"beside {other} {other.name!r}, ONNX Runtime returns no {unknown} {unknown.name!r} to Python"


Compared = tuple[TensorComparison, ...]  #: what a run compared.


def compare(
    model: Model, cascade: Cascade, feeds: Feeds, *, optimized: bool, placed: PlacementCheck = NOT_PLACED
) -> Compared:
    """Run the model and the cascade on `feeds`, and compare tensor by tensor in the order in which parts write them.

    With `optimized` (graph optimizations on) only outputs are compared. The allowed difference is then 4 times what
    the optimizations change in the unsplit model, and at least 1e-5 of the tensor's largest value. Integers, booleans
    and strings must be equal. What differs by more is explained if it has the bits of the model's own nodes, run part
    by part. A RunError if the model or the cascade refuses `feeds`.

    Parts run on the providers that `placed` names. Allowed is then 4 times, of integers too, what rounding to the type
    in which these compute changes in the unsplit model, and at least 16 roundings; or, if it is float32, what
    optimizations change, and 8 bits where the model `rounds_to_bytes`. If that type is not known, finite numbers pass.

    Memory: one session is loaded at a time, and weights stay on disk. All compared tensors of the model are held until
    the end, beside those of the cascade that later parts read. Comparing takes less than 32 MiB in addition.
    """
    config, computes = OPTIMIZED if optimized else EXACT, placed.computes
    boundary_tensors = [] if optimized else [n for n in cascade.wiring.boundary_tensors if n in model.tensors]
    is_as_sent = model.tensors.keys() >= cascade.wiring.boundary_tensors.keys()
    is_lossy = not is_as_sent or (bool(placed.providers) and not computes)
    wanted = list(dict.fromkeys((*cascade.manifest.writes, *boundary_tensors)))
    whole = run_whole(model, feeds, wanted, config=config)
    noisy = None
    if optimized or computes:
        other = config if computes in HALF_TOLERANCES else EXACT if optimized else OPTIMIZED
        other = replace(other, prepacked=computes == "float32" and rounds_to_bytes(model))  # kernels that pack do it
        with suppress(RunError):  # before opset 13 there is no bfloat16
            noisy = run_whole(model, feeds, wanted, config=other, rounded_to=computes)
    fraction = max(half_tolerance(model), _SUMMED * HALF_TOLERANCES.get(computes, 0.0))
    random = random_tensors(model)
    before = cascade.wiring.depths(len(cascade.parts))  # so many boundaries are one after another on the way to a part
    divided: Feeds = {}
    found = []
    # A compiler may crash for other optimizations than those with which nodes were placed.
    there = config if optimized else replace(config, optimize="basic")
    there = there if placed.providers else replace(config, provider=CPU)
    for part, name, value in _written(cascade, feeds, there, set(wanted)):
        allowed = fraction * max(1.0, (before[part] + 1) / ROUNDINGS)
        tensor, noise = cascade.tensors[name], noisy and noisy[name]
        compared = compare_tensor(tensor, whole[name], value, allowed, noise, is_rounded=bool(computes))
        if is_lossy:  # as planned: the difference is measured, and only what is no longer finite is refused
            compared = replace(compared, allowed=float_info.max)
        elif not (compared.passes or placed.providers) and (fraction or optimized):
            with suppress(GraphcutError):  # a rewritten replica can't be computed from what its part reads
                divided = divided or _run_divided(model, cascade, feeds, config)
                both = (flatten(one, tensor) for one in (divided[name], value))
                compared = replace(compared, is_explained=are_identical(*both))
        found.append(replace(compared, part=part, is_output=name in cascade.manifest.writes, is_random=name in random))
    return tuple(found)


def compare_tensor(
    tensor: Tensor,
    whole: Value,
    value: Value,
    fraction: float,
    unoptimized: Value | None,
    other: Tensor | None = None,
    *,
    is_rounded: bool = False,
) -> TensorComparison:
    """The comparison of an output: its value in the `whole` model, and in what is compared with it.

    `fraction` of the largest value may differ. `unoptimized` is its value in the model without optimizations, if these
    are on. `other` is its type in what is compared with the model, if that may be another one. If `is_rounded`,
    `unoptimized` is its value in the model with roundings of a smaller type, which may change integers, too.
    """
    expected, actual = flatten(whole, tensor), flatten(value, other or tensor)
    if other is not None and other.dtype != tensor.dtype:
        expected, actual = widened(expected), widened(actual)
    top = largest(expected)
    is_exact = not any(map(is_float, expected))  # integers, booleans and strings have no rounding to allow for
    allowed = 0.0 if is_exact or not fraction else max(top * fraction, _SMALLEST.get(tensor.dtype, 0.0))
    if unoptimized is not None and (is_rounded or not is_exact):
        noise = difference(expected, flatten(unoptimized, tensor))[0]
        allowed = max(allowed, 4 * noise, 0.0 if is_exact else 1e-5 * top)
    return TensorComparison(tensor.name, are_identical(expected, actual), *difference(expected, actual), allowed)


def random_tensors(model: Model) -> set[str]:
    """The tensors that a random or stateful node writes, and those that depend on them."""
    nodes, readers = model.graph.nodes, model.graph.readers
    random = (i for i in model.graph.flow if nodes[i].is_stateful)
    found = reached(random, lambda i: (reader for name in nodes[i].writes for reader in readers.get(name, ())))
    return {name for i in found for name in nodes[i].writes}


def half_tolerance(model: Model) -> float:
    """The allowed difference as a fraction of a tensor's largest value: 0 unless the model computes in fp16 or bf16."""
    computed = {model.tensors[name].dtype for i in model.graph.flow for name in model.graph.nodes[i].writes}
    return max((HALF_TOLERANCES[dtype] for dtype in computed if dtype in HALF_TOLERANCES), default=0.0)


def rounds_to_bytes(model: Model) -> bool:
    """Whether products with weights of 4 bits may round what they read to 8 bits (`accuracy_level` 4)."""
    return any((a.name, a.i) == ("accuracy_level", 4) for node in model.proto.graph.node for a in node.attribute)


def _written(cascade: Cascade, feeds: Feeds, config: SessionConfig, wanted: set[str]) -> Iterator[_Written]:
    """Each wanted tensor after a part has written it; at the end the outputs that are inputs."""
    for i, held in enumerate(run_sequentially(cascade, feeds, config=config)):
        for name in [name for name in cascade.parts[i - 1].writes if name in wanted] if i else ():
            yield i - 1, name, held[name]
    for name in sorted(wanted.difference(*(part.writes for part in cascade.parts))):
        yield len(cascade.parts) - 1, name, held[name]
