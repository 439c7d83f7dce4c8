"""Small workloads, for tests, for the examples of the solver and for `scripts/benchmark`."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np
from numpy.typing import ArrayLike

from graphcut.solving.instance import Hyperedges, Workload


def workload(
    work: ArrayLike, tensors: Sequence[tuple[int, Iterable[int], int]], own_bytes: Sequence[int] | None = None
) -> Workload:
    """A workload without shared items: rows of seconds, tensors (writer, readers, bytes), bytes of groups."""
    seconds = np.array(work, dtype=np.float64)
    groups, none = np.zeros(seconds.shape[1], dtype=np.int64), np.zeros(len(tensors), dtype=np.int64)
    return Workload(
        work=seconds,
        own_bytes=groups if own_bytes is None else np.array(own_bytes, dtype=np.int64),
        inner_bytes=groups,
        writer=np.array([writer for writer, _, _ in tensors], dtype=np.int64),
        readers=Hyperedges.of([readers for _, readers, _ in tensors]),
        tensor_bytes=np.array([number for _, _, number in tensors], dtype=np.int64),
        declared_bytes=none,
        is_output=none.astype(bool),
        sharers=Hyperedges.of([]),
        shared_bytes=none[:0],
        shared_work=np.zeros((len(seconds), 0)),
    )
