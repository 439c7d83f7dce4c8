"""The numerical check of a sharded model: run it and the model on the same inputs, and compare the outputs.

States are cut for the ranks as the proof found, and joined again. What is allowed depends on kernels, see `rounding`.
"""

from collections.abc import Mapping
from typing import Final

import numpy as np
from msgspec.structs import replace

from ..loading.model import Model
from ..running.stage import SessionConfig
from ..running.values import Feeds, Value, to_array, to_value
from ..sharding.meanings import Piece
from .numerical import Compared, compare_tensor, half_tolerance, random_tensors, rounds_to_bytes, run_whole
from .sharded import ShardingProof

# Kernels compute columns alike only if they rearrange weights first, as they do by default.
_UNOPTIMIZED: Final = SessionConfig(optimize="none", threads=1, is_checked=False)
_OPTIMIZED: Final = SessionConfig(optimize="all", threads=1, is_checked=False)


def rounding(model: Model, found: ShardingProof) -> tuple[float, str]:
    """The allowed difference as a fraction of an output's largest value, and why; 0 if bits must be equal."""
    reasons = []
    if fraction := half_tolerance(model):
        reasons.append((fraction, "the model computes in half precision"))
    if found.has_sums:
        fraction, more = (5e-2, ", of inputs that 4-bit kernels round") if rounds_to_bytes(model) else (1e-4, "")
        reasons.append((fraction, f"partial sums are added{more}"))
    if found.rounding:
        reasons.append((1e-5, f"columns of {', '.join(sorted(found.rounding))} of two activations are divided"))
    allowed = max((fraction for fraction, _ in reasons), default=0.0)
    texts = "; ".join(text for _, text in reasons)
    return allowed, f"{texts}: differences up to {allowed:g} of a tensor's largest value" if reasons else ""


def compare_sharded(model: Model, sharded: Model, found: ShardingProof, feeds: Feeds, *, optimized: bool) -> Compared:
    """Run both on `feeds`, inputs of the model, and compare each output of the model that does not depend on chance.

    A RunError if one of them refuses the inputs.
    """
    config, fraction = _OPTIMIZED if optimized else _UNOPTIMIZED, rounding(model, found)[0]
    whole = run_whole(model, feeds, model.graph.writes, config=config)
    noisy = run_whole(model, feeds, model.graph.writes, config=_UNOPTIMIZED) if optimized else None
    given = {name: value for name, value in feeds.items() if name in sharded.graph.reads}
    for name, piece in found.pieces.items():
        if name in sharded.graph.reads and piece.tensor in feeds:
            tensor = model.tensors[piece.tensor]
            array = to_array(to_value(feeds[piece.tensor], tensor), tensor)
            given[name] = np.concatenate([array.take(range(*run), piece.axis) for run in piece.runs], piece.axis)
    values = run_whole(sharded, given, sharded.graph.writes, config=config)
    compared, random = [], random_tensors(model)
    for name in (name for name in model.graph.writes if name not in random):
        value = values[name] if name in values else _joined(name, values, sharded, found.pieces)
        compared.append(compare_tensor(model.tensors[name], whole[name], value, fraction, noisy and noisy[name]))
    return tuple(compared)


def _joined(tensor: str, values: Mapping[str, Value], sharded: Model, pieces: Mapping[str, Piece]) -> Value:
    """An output of the model, put together from the pieces that are outputs of the sharded model."""
    own = [name for name, piece in pieces.items() if piece.tensor == tensor and name in values]
    arrays = {name: to_array(values[name], sharded.tensors[name]) for name in own}
    axis = pieces[next(iter(arrays))].axis
    indices = np.concatenate([np.arange(*run) for name in arrays for run in pieces[name].runs])
    whole = np.concatenate([*arrays.values()], axis).take(np.argsort(indices), axis)
    return to_value(whole, replace(sharded.tensors[own[0]], name=tensor, shape=None))
