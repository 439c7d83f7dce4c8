"""Options of `plan` and `split` that say where to cut, and the planner that they ask for."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final, Literal, cast, get_args

import typer
from typer import Option

from ..core.errors import UsageError
from ..core.units import count as count_of
from ..core.units import parse_bytes
from ..costs.device import Counted, Device
from ..planning.goals import Across, At, Goal, Heads, Into, Limits, Measure, Objective, Recomputing, Within
from .application import given_options
from .common_options import Outputs, Profile, Texts, Tokens, listed_names, names_in, numbered, output_names
from .shard import Exact

if TYPE_CHECKING:
    from ..analysis.cut_points import AnalysisLike
    from ..planning.plans import Plan

_BALANCED: Final = ("--num-splits", "--memory", "--cluster")
_WEIGHED: Final = (*_BALANCED, "--heads")
GOALS: Final = ("--at-nodes", *_WEIGHED, "--plan")
_GOALS_OF: Final = {  #: the goals that an option applies to; with any other it would do nothing.
    "--devices": ("--at-nodes",),
    "--by": ("--num-splits",),
    "--count": ("--memory",),
    **dict.fromkeys(("--objective", "--in-flight", "--interleave", "--outputs"), ("--cluster",)),
    **dict.fromkeys(("--pin", "--avoid", "--boundary-dtype"), (*_WEIGHED, "--at-nodes")),
    **dict.fromkeys(("--inside-layers", "--prove"), _BALANCED),
    **dict.fromkeys(("--recompute", "--cost-model", "--profile", "--tokens"), _WEIGHED),
}


def _cost_models() -> list[str]:
    from ..costs.tables import shipped_tables

    return list(shipped_tables())


@dataclass(frozen=True)
class PlanOptions:
    """The options, as typer reads them."""

    ctx: typer.Context
    at_nodes: Annotated[
        Texts, Option(metavar="NAMES", help="Cut after these nodes or tensors; globs too. Comma-separated, repeatable.")
    ] = None
    devices: Annotated[Texts, Option(metavar="NAMES", help="The device of each part of --at-nodes, in order.")] = None
    num_splits: Annotated[int | None, Option(metavar="N", help="Split into N parts, minimizing the slowest.")] = None
    by: Annotated[Measure, Option(help="What --num-splits balances.")] = "time"
    memory: Annotated[str | None, Option(metavar="SIZE", help="Split into the fewest parts of at most SIZE.")] = None
    count: Annotated[
        Texts, Option(metavar="WHAT", help="Count activations, inputs or cache towards --memory, too.")
    ] = None
    cluster: Annotated[Path | None, Option(metavar="FILE", help="One part per device of a cluster file (TOML).")] = None
    objective: Annotated[Objective, Option(help="What --cluster optimizes.")] = "throughput"
    in_flight: Annotated[int, Option(metavar="M", help="Sequences decoded at once, for --objective decode.")] = 1
    interleave: Annotated[bool, Option("--interleave", help="A device of --cluster may have several parts.")] = False
    outputs: Outputs = None
    ranks: Annotated[
        int | None,
        Option(metavar="N", min=1, help="Divide layers among N ranks; with --cluster, among at most N devices."),
    ] = None
    exact: Exact = True
    heads: Annotated[str | None, Option(metavar="[A,B+C]", help="One part per output or group of outputs.")] = None
    pin: Annotated[Texts, Option(metavar="NODE=PART", help="Put a node into a part. Repeatable.")] = None
    avoid: Annotated[Texts, Option(metavar="GLOB", help="Never send these nodes' outputs. Repeatable.")] = None
    inside_layers: Annotated[
        bool | None,
        Option("--inside-layers/--whole-layers", help="Cut inside repeated layers or not; by default if it pays."),
    ] = None
    recompute: Annotated[
        Recomputing,
        Option(help="auto: recompute a tensor when that is cheaper than sending it. approximate: its bits may differ."),
    ] = "auto"
    boundary_dtype: Annotated[
        Literal["float16"] | None, Option(help="Send float32 tensors as float16: half the bytes, and less precision.")
    ] = None
    cost_model: Annotated[
        str | None,
        Option(
            metavar="FILE",
            help="A CSV of costs per module, or a name such as Phi-3.5-mini.",
            autocompletion=_cost_models,
        ),
    ] = None
    profile: Profile = "prefill"
    tokens: Tokens = 512
    prove: Annotated[
        int | None,
        Option(metavar="[SECONDS]", min=0, help="Compute a lower bound with an exact solver, for 30 s or SECONDS."),
    ] = None
    plan: Annotated[Path | None, Option(metavar="FILE", help="Replay a plan that `graphcut plan -o` saved.")] = None

    def planner(self) -> Callable[[AnalysisLike], Plan]:
        """The function that makes the plan of a model; the options are checked before any model is opened."""
        given = given_options(self.ctx)
        _check(given)
        if "--in-flight" in given and self.objective != "decode":
            raise UsageError("--in-flight applies to --objective decode", hint="add --objective decode")
        goal, avoid = self._goal(), names_in(self.avoid or ())
        pins = tuple(numbered("--pin", text, "NODE=PART", "/model/norm/Mul=1") for text in self.pin or ())
        limits = Limits(pins, avoid, self.inside_layers, self.recompute, self.boundary_dtype)
        profile = self.profile if "--profile" in given else None
        tokens = self.tokens if "--tokens" in given else None

        def plan_of(source: AnalysisLike) -> Plan:
            from ..analysis.cut_points import analyze
            from ..costs.tables import read_table, shipped_tables
            from ..costs.weighing import weigh
            from ..planning.plan_files import replay
            from ..planning.planner import default_dims, plan
            from ..planning.plans import check_budgets

            analysis = analyze(source)
            if goal is None:
                replayed = replay(analysis, cast("Path", self.plan))
                if replayed.metrics:
                    check_budgets(replayed, [part.written_bytes for part in replayed.metrics])
                return replayed
            if isinstance(goal, At):
                made, names = plan(analysis, goal, limits=limits), listed_names(self.devices or ())
                hint = "name the device of each part, in order; a device may have several"
                if "" in names:
                    raise UsageError(f"--devices {','.join(names)}: name {names.index('') + 1} is empty", hint=hint)
                if names and len(names) != len(made.parts):
                    named = f"--devices names {count_of(len(names), 'device')} for {count_of(len(made.parts), 'part')}"
                    raise UsageError(named, hint=hint)
                return replace(made, devices=tuple(Device(name=name) for name in names))
            costs = weigh(analysis.model, default_dims(analysis, goal, profile, tokens))
            name = self.cost_model
            table = None if name is None else read_table(shipped_tables().get(name, Path(name)))
            return plan(analysis, goal, limits=limits, costs=costs, table=table, prove_s=self.prove or 0)

        return plan_of

    def _goal(self) -> Goal | None:
        from ..costs.cluster import read_cluster

        if self.at_nodes is not None:
            return At(names_in(self.at_nodes))
        if self.num_splits is not None:
            return Into(self.num_splits, self.by)
        if self.memory is not None:
            return Within(parse_bytes(self.memory), _counted(self.count or ()))
        if self.cluster is not None:
            return Across(
                read_cluster(self.cluster),
                self.objective,
                self.in_flight,
                self.interleave,
                output_names(self.outputs),
                self.ranks,
                "exact" if self.exact else "sum",
            )
        if self.heads is not None:
            return Heads(tuple(tuple(group.split("+")) for group in names_in([self.heads])))
        return None


def _check(given: Sequence[str]) -> None:
    goals = [option for option in GOALS if option in given]
    if len(goals) != 1:
        raise UsageError(
            f"{' and '.join(goals)} are different goals" if goals else "no cut requested",
            hint="use one of --num-splits 4, --memory 2GB, --cluster FILE, --heads, --at-nodes NAMES, --plan FILE",
        )
    for option, owners in _GOALS_OF.items():
        if option in given and goals[0] not in owners:
            raise UsageError(
                f"{option} applies to {' or '.join(owners)}, not to {goals[0]}",
                hint=f"leave {option} out, or use {owners[0]} instead of {goals[0]}",
            )


def _counted(texts: Sequence[str]) -> tuple[Counted, ...]:
    known, names = get_args(Counted), names_in(texts)
    if unknown := next((name for name in names if name not in known), None):
        raise UsageError(f"--count {unknown}: not one of {', '.join(known)}", hint=f"for example --count {known[0]}")
    return tuple(word for word in known if word in names)
