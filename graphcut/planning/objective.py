"""The value of a goal's objective for finished parts: with all that they recompute, send and receive."""

from collections.abc import Sequence
from math import inf

from .goals import Across, Goal, Into, Within
from .predictions import PartMetrics


def value_of(goal: Goal, metrics: Sequence[PartMetrics], planned: float) -> float:
    """What the goal minimizes; for tokens a second the seconds of a token.

    `planned` is returned where metrics don't say it: layers are counted before anything is recomputed.
    """
    busy = [part.busy_s for part in metrics]
    match goal:
        case Into(by="time") | Into(by="bytes") | Into(by="flops"):
            return max(cost_of(goal, part) for part in metrics)
        case Across(objective="throughput"):
            return max(busy)
        case Across(objective="latency" | "decode"):
            return sum(busy) if goal.objective == "latency" else max(sum(busy) / goal.in_flight, *busy)
        case Across(objective="bytes"):
            return float(sum(part.received_bytes for part in metrics))
        case Within() | Across(objective="devices"):
            return float(len(metrics))
        case _:
            return planned


def cost_of(goal: Goal, part: PartMetrics) -> float:
    """What no part should have more of than planned, in the unit of the objective; 0 if the goal does not say."""
    match goal:
        case Into(by="time") | Across(objective="throughput" | "latency" | "decode" | "devices"):
            return part.busy_s
        case Into(by="bytes"):
            return float(part.written_bytes)
        case Into(by="flops"):
            return float(part.flops)
        case _:
            return 0.0


def slack_s(goal: Goal, value: float, run_s: float) -> float:
    """Seconds that the parts of a better plan than `value` have left, in all, to repeat nodes.

    `run_s` are those to run each node once. `inf` if the objective is not a time.
    """
    match goal:
        case Into(parts=parts, by="time"):
            return parts * value - run_s
        case Across(objective="throughput"):
            return len(goal.cluster.devices) * value - run_s
        case Across(objective="latency"):
            return value - run_s
        case Across(objective="decode", in_flight=in_flight):
            return min(len(goal.cluster.devices), in_flight) * value - run_s
        case _:
            return inf
