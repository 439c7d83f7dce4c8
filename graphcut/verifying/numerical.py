"""The numerical comparison: the whole model against its cascade in ONNX Runtime, tensor by tensor.

With optimisations off on both sides, every output and every crossing tensor must be bit-identical. Half precision is
the exception: ONNX Runtime's CPU kernels compute fp16 and bf16 in fp32 and skip the rounding between neighbours, which
a border cannot skip; there the difference may reach a fraction of the tensor's largest value.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import onnxruntime as ort
from onnx import ModelProto, ValueInfoProto

from ..core.errors import RunError
from ..core.manifest import Cascade
from ..core.wiring import Tensor
from ..loading.model import Model
from ..running.in_process.sequential import run_sequentially
from ..running.stage import SessionConfig, external_weights_entry, ort_message, session_options
from ..running.values import NON_NUMPY_TYPES, Value, copied, is_numeric_tensor, ml_dtypes_name, to_array, to_value

Array = np.ndarray[Any, Any]

HALF_TOLERANCES: Final = {"float16": 2e-3, "bfloat16": 1.6e-2}
"""What a difference may be once a model computes in half precision: a fraction of the tensor's largest value."""

_NOISE_FACTOR: Final = 4
_SMALLEST_OPTIMIZED: Final = 1e-5

EXACT: Final = SessionConfig(optimized=False, prepacked=False, threads=1, is_checked=False)
OPTIMIZED: Final = SessionConfig(optimized=True, prepacked=False, threads=1, is_checked=False)


@dataclass(frozen=True)
class TensorComparison:
    """One tensor, in the model and in the cascade.

    Attributes:
        tensor: its name.
        part: the place of the part that made it.
        is_output: it is an output of the model; else it only crosses a border.
        is_identical: every bit is the same (any two NaNs count as the same).
        is_random: a random or stateful node has a part in it, so that two runs may differ.
        max_abs: the greatest absolute difference: the smallest `atol` that would pass; `inf` where the shape, a
            string, or what is finite differs.
        max_rel: the greatest difference relative to the model's value.
        max_ulps: the greatest difference in units in the last place; 0 where that has no meaning.
        allowed: what `max_abs` may be; at 0 the bits must be equal.
    """

    tensor: str
    part: int
    is_output: bool
    is_identical: bool
    is_random: bool
    max_abs: float
    max_rel: float
    max_ulps: int
    allowed: float

    @property
    def passes(self) -> bool:
        """Is it the same, or is the difference within what is allowed?"""
        return self.is_identical or self.is_random or (self.allowed > 0 and self.max_abs <= self.allowed)


def run_whole(
    model: Model, feeds: Mapping[str, object], wanted: Sequence[str], *, config: SessionConfig
) -> dict[str, Value]:
    """The values of `wanted`, outputs or not, when the whole model runs on `feeds`.

    Raises:
        RunError: ONNX Runtime refuses the model or the inputs.
    """
    shown = ModelProto()
    shown.CopyFrom(model.proto)
    outputs = {value.name for value in shown.graph.output}
    shown.graph.output.extend(ValueInfoProto(name=name) for name in wanted if name not in outputs)
    options = session_options(config)
    options.add_session_config_entry(*external_weights_entry(model.path.parent))
    tensors = model.tensors
    try:
        session = ort.InferenceSession(shown.SerializeToString(), options, providers=["CPUExecutionProvider"])
        fed = {name: to_value(value, tensors[name]) for name, value in feeds.items()}
        if all(is_numeric_tensor(tensors[name]) for name in (*fed, *wanted)):
            return dict(zip(wanted, session.run_with_ort_values(list(wanted), fed), strict=True))
        arrays = {name: to_array(value, tensors[name]) for name, value in fed.items()}
        return dict(zip(wanted, map(copied, session.run(list(wanted), arrays)), strict=True))
    except RunError:
        raise
    except Exception as error:
        raise RunError(
            f"ONNX Runtime refuses the whole model: {ort_message(error)}", hint="feed it with --inputs"
        ) from error


def compare(
    model: Model, cascade: Cascade, feeds: Mapping[str, object], *, optimized: bool
) -> tuple[TensorComparison, ...]:
    """Run both on `feeds` and compare tensor by tensor, in the order in which the parts make them.

    One session is alive at a time, and weights stay on disk: comparing takes no more memory than running the model.
    With `optimized` only the outputs are compared, as users run it; the allowed difference is then 4 times what
    optimising the unsplit model changes, and at least 1e-5 of its largest value.

    Raises:
        RunError: the model or the cascade refuses `feeds`.
    """
    config = OPTIMIZED if optimized else EXACT
    crossing = [] if optimized else list(cascade.wiring.boundary_tensors)
    wanted = list(dict.fromkeys((*cascade.manifest.writes, *crossing)))
    whole = run_whole(model, feeds, wanted, config=config)
    noise = run_whole(model, feeds, wanted, config=EXACT) if optimized else whole
    fraction = half_tolerance(model)
    random = random_tensors(model)
    found = []
    for part, name, value in _made(cascade, feeds, config, set(wanted)):
        tensor = cascade.tensors[name]
        reference, mine = _flat(whole[name], tensor), _flat(value, tensor)
        largest = max(map(_largest, reference), default=0.0)
        allowed = largest * fraction if any(map(_is_float, reference)) else 0.0
        if optimized:
            floor = difference(reference, _flat(noise[name], tensor))[0]
            allowed = max(allowed, _NOISE_FACTOR * floor, _SMALLEST_OPTIMIZED * largest)
        max_abs, max_rel, max_ulps = difference(reference, mine)
        found.append(
            TensorComparison(
                tensor=name,
                part=part,
                is_output=name in cascade.manifest.writes,
                is_identical=_identical(reference, mine),
                is_random=name in random,
                max_abs=max_abs,
                max_rel=max_rel,
                max_ulps=max_ulps,
                allowed=allowed,
            )
        )
    return tuple(found)


def random_tensors(model: Model) -> set[str]:
    """The tensors that a random or stateful node writes, or that depend on one."""
    found: set[str] = set()
    for i in model.graph.flow:
        node = model.graph.nodes[i]
        if node.is_stateful or not found.isdisjoint(node.reads):
            found.update(node.writes)
    return found


def half_tolerance(model: Model) -> float:
    """The fraction that a difference may reach: 0 unless the model computes in half precision."""
    computed = {model.tensors[name].dtype for i in model.graph.flow for name in model.graph.nodes[i].writes}
    return max((HALF_TOLERANCES[dtype] for dtype in computed if dtype in HALF_TOLERANCES), default=0.0)


def _made(
    cascade: Cascade, feeds: Mapping[str, object], config: SessionConfig, wanted: set[str]
) -> Iterator[tuple[int, str, Value]]:
    """Each wanted tensor when a part has made it; then the outputs that are inputs handed straight on."""
    made: set[str] = set()
    for i, held in enumerate(run_sequentially(cascade, feeds, config=config)):
        for name in cascade.parts[i - 1].writes if i else ():
            if name in wanted:
                made.add(name)
                yield i - 1, name, held[name]
    for name in sorted(wanted - made):
        yield len(cascade.parts) - 1, name, held[name]


def _flat(value: Value, tensor: Tensor) -> list[Any]:
    """The arrays, strings and numbers that a value is made of, in a fixed order."""
    plain = to_array(value, tensor)
    if plain is None:
        return []
    if isinstance(plain, dict):
        return [item for key in sorted(plain) for item in (key, *_flat(plain[key], tensor))]
    if isinstance(plain, list):
        return [len(plain), *(item for element in plain for item in _flat(element, tensor))]
    return [plain.view(_type_of_bits(tensor.dtype)) if tensor.dtype in NON_NUMPY_TYPES else plain]


def _type_of_bits(dtype: str) -> np.dtype[Any]:
    """The type of ml_dtypes, which comes with onnx, for a type that numpy lacks."""
    import ml_dtypes

    found: np.dtype[Any] = np.dtype(getattr(ml_dtypes, ml_dtypes_name(dtype)))
    return found


def _is_float(item: object) -> bool:
    # The types of ml_dtypes are of kind V, and all that come here are floats.
    return isinstance(item, np.ndarray) and item.dtype.kind in "fcV"


def _identical(ours: Sequence[Any], theirs: Sequence[Any]) -> bool:
    return len(ours) == len(theirs) and all(_identical_item(a, b) for a, b in zip(ours, theirs, strict=True))


def _identical_item(a: object, b: object) -> bool:
    if not (isinstance(a, np.ndarray) and isinstance(b, np.ndarray)):
        return bool(a == b)
    if a.shape != b.shape or a.dtype != b.dtype:
        return False
    if a.dtype.kind == "O":
        return bool(np.array_equal(a, b))
    if a.tobytes() == b.tobytes():
        return True
    if not _is_float(a):
        return False
    left, right = _wide(a), _wide(b)
    same_number = (left == right) & (np.signbit(left.real) == np.signbit(right.real))
    return bool(np.all(same_number | (np.isnan(left) & np.isnan(right))))


def _wide(array: Array) -> Array:
    """The same numbers in a type that holds them all, and in which they can be subtracted."""
    return array.astype(np.complex128 if array.dtype.kind == "c" else np.float64)


def difference(ours: Sequence[Any], theirs: Sequence[Any]) -> tuple[float, float, int]:
    """The greatest absolute and relative difference, and the greatest in units in the last place."""
    if len(ours) != len(theirs):
        return float("inf"), float("inf"), 0
    each = [_difference(a, b) for a, b in zip(ours, theirs, strict=True)]
    return (
        max((item[0] for item in each), default=0.0),
        max((item[1] for item in each), default=0.0),
        max((item[2] for item in each), default=0),
    )


def _difference(a: object, b: object) -> tuple[float, float, int]:
    if _identical_item(a, b):
        return 0.0, 0.0, 0
    a, b = np.asarray(a), np.asarray(b)
    if a.shape != b.shape or a.dtype != b.dtype or a.dtype.kind not in "fiubcV":
        return float("inf"), float("inf"), 0
    if a.dtype.kind in "iub":
        # Python's numbers: the difference of two int64 may need 65 bits, and a float64 can't tell them apart.
        gaps = [abs(int(x) - int(y)) for x, y in zip(a.ravel(), b.ravel(), strict=True)]
        ratios = (gap / abs(int(x)) if x else float("inf") for gap, x in zip(gaps, a.ravel(), strict=True) if gap)
        return float(max(gaps)), max(ratios), 0
    left, right = _wide(a), _wide(b)
    with np.errstate(all="ignore"):
        both = np.isnan(left) & np.isnan(right) | (left == right)
        gap = np.where(both, 0.0, np.abs(left - right))
        gap = np.where(np.isnan(gap), np.inf, gap)
        relative = np.where(both, 0.0, gap / np.abs(left))
    relative = np.where(np.isnan(relative), np.inf, relative)
    return float(gap.max()), float(relative.max()), _ulps(a, b)


def _ulps(a: Array, b: Array) -> int:
    """How many numbers of the type lie between the values, at most; 0 for complex numbers."""
    signed = {1: np.int8, 2: np.int16, 4: np.int32, 8: np.int64}.get(a.dtype.itemsize)
    if a.dtype.kind == "c" or signed is None:
        return 0
    lowest = -(2 ** (8 * a.dtype.itemsize - 1))
    steps_from_zero = []
    for array in (a, b):
        bits = np.ascontiguousarray(array).view(signed).astype(object if a.dtype.itemsize == 8 else np.int64)
        steps_from_zero.append(np.where(bits < 0, lowest - bits, bits))
    finite = np.isfinite(_wide(a)) & np.isfinite(_wide(b))
    gaps = np.abs(steps_from_zero[0] - steps_from_zero[1])[finite]
    return int(gaps.max()) if gaps.size else 0


def _largest(array: object) -> float:
    if not isinstance(array, np.ndarray) or array.dtype.kind not in "fiubcV" or not array.size:
        return 0.0
    finite = np.abs(_wide(array))
    finite = finite[np.isfinite(finite)]
    return float(finite.max()) if finite.size else 0.0
