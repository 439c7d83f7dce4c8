"""The document that `split --one-file --json` prints."""

import msgspec

from .sharding import Sharding


class ShardingRecord(msgspec.Struct, frozen=True, kw_only=True, tag_field="format", tag="graphcut.sharding/1"):
    """A sharded model."""

    path: str  #: the .onnx file.
    mode: str  #: `exact` or `sum`.
    shares: tuple[int, ...]  #: the share of each rank.
    units: tuple[tuple[int, ...], ...]  #: for each class of axes the units that each rank has.
    weights: tuple[tuple[str, ...], ...]  #: for each class the weights that are divided in it.
    not_divided: dict[str, str]  #: the nodes that multiply by a weight and are not divided, each with the reason.
    rank_bytes: tuple[int, ...]  #: bytes of weights that each rank has for itself.
    replicated_bytes: int  #: bytes of weights that are not divided.
    product_bytes: int  #: bytes of the weights of nodes that multiply by weights.
    divided_product_bytes: int  #: how many of these are divided.
    exchanges: dict[str, int]  #: for each mode how many tensors are put together from pieces in a run.
    received_bytes: dict[str, int]  #: for each mode the bytes that a rank receives in a run, on average.


def sharding_record(sharding: Sharding) -> ShardingRecord:
    """The document of a sharded model."""
    division = sharding.division
    whole = {node: why.reason for node, why in division.alone.items() if node not in division.class_of}
    sizes = ("rank_bytes", "replicated_bytes", "product_bytes", "divided_product_bytes")
    return ShardingRecord(
        path=str(sharding.path),
        mode=division.mode,
        shares=division.shares,
        units=tuple(divided.units for divided in division.classes),
        weights=tuple(divided.axes.weights for divided in division.classes),
        not_divided={division.model.graph.nodes[node].name: reason for node, reason in whole.items()},
        exchanges={one.mode: len(one.joins) for one in sharding.modes},
        received_bytes={one.mode: one.received_bytes[0] for one in sharding.modes},
        **{name: getattr(sharding, name) for name in sizes},
    )
