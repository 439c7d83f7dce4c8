"""Options of `plan`, `split` and `auto` that say what a plan is for, those that fine-tune it, and the planner."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final, Literal, get_args

import typer

from .. import Across, At, Counted, Device, Goal, Heads, Into, Limits, Measure, Recomputing, Within
from ..core.errors import UsageError, check_names
from ..core.units import count as count_of
from ..core.units import given_bytes
from .application import applying, check_applicable, given_options
from .common_options import Place, ProfileText, Texts, listed_names, names_in, numbered, output_names, parsed_profile

if TYPE_CHECKING:
    from .. import AnalysisLike, Objective, Plan, RankMode

    PlanMaker = Callable[[AnalysisLike], Plan]

GOALS: Final = ("--at-nodes", "--num-splits", "--memory", "--cluster", "--heads", "--plan")


def _cost_models() -> list[str]:
    from .. import shipped_tables

    return list(shipped_tables())


@dataclass(frozen=True)
class GoalOptions:
    """What a plan is for; the other options of a plan keep their defaults."""

    ctx: typer.Context
    num_splits: int | None = None
    memory: str | None = None
    cluster: Place = None
    objective: Literal["throughput", "interleaved", "latency", "decode", "bytes", "devices", "crossings"] = "throughput"
    at_nodes: Texts = None
    heads: str | None = None
    ranks: str | None = None
    sum_: bool = False
    count: Texts = None

    @property
    def mode(self) -> RankMode:
        return "sum" if self.sum_ else "exact"

    def planner(self, tuning: TuningOptions | None = None, plan_file: Path | None = None) -> PlanMaker:
        """The function that makes the plan of a model; the options are checked before any model is opened."""
        given = given_options(self.ctx)
        _check(given, ", --plan FILE" if tuning is None else "")
        tuning = tuning or TuningOptions()
        check_applicable(given, {"--in-flight": ["--objective decode"]}, [f"--objective {self.objective}"])
        if plan_file is not None:
            return partial(_replayed, plan_file)
        goal, limits = self._goal(tuning), tuning.limits()
        profile, tokens = parsed_profile(tuning.profile)

        def plan_of(source: AnalysisLike) -> Plan:
            from .. import analyze, default_dims, plan, read_table, shipped_tables, weigh

            analysis = analyze(source)
            costs = weigh(analysis.model, default_dims(analysis, goal, profile, tokens))
            name = tuning.cost_model
            table = None if name is None else read_table(shipped_tables().get(name, Path(name)))
            made = plan(analysis, goal, limits=limits, costs=costs, table=table, prove_s=tuning.prove or 0)
            if isinstance(goal, Across) and any(device.compiles for device in goal.cluster.devices):
                from .. import compiled  # imports ONNX Runtime

                made = compiled(analysis, made, tuning.prove or 0)
            return made

        return plan_of

    def rank_shares(self) -> int | tuple[int, ...] | None:
        """The number of ranks, or the share of each."""
        if self.ranks is None:
            return None
        numbers = tuple(int(word) if word.isdecimal() else 0 for word in self.ranks.split(":"))
        if 0 in numbers:
            raise UsageError(f"--ranks {self.ranks}: expected numbers >= 1", hint="such as --ranks 2 or --ranks 3:1")
        return numbers if len(numbers) > 1 else numbers[0]

    def _goal(self, tuning: TuningOptions) -> Goal:
        from .. import read_cluster

        counted = names_in(self.count or ())
        if self.at_nodes is not None:
            return At(names_in(self.at_nodes))
        if self.memory is not None:
            counting = _checked(counted, Literal["files", Counted])
            if "files" in counting and len(counting) > 1:
                raise UsageError(f"--count {','.join(counted)}: files are counted alone", hint="leave the others out")
            counting = () if counting == ("files",) else counting or get_args(Counted)
            return Within(given_bytes(self.memory), counting, self.num_splits)
        if self.num_splits is not None:
            if len(counted) > 1:
                raise UsageError(f"--count {','.join(counted)}: --num-splits balances one", hint="name one of them")
            return Into(self.num_splits, next(iter(_checked(counted, Measure)), "time"))
        if self.cluster is not None:
            ranks = self.rank_shares()
            if isinstance(ranks, tuple):
                what = f"--ranks {self.ranks}: shares don't apply to --cluster, whose plan finds them"
                raise UsageError(what, hint=f"for example --ranks {len(ranks)}")
            names, is_interleaved = output_names(tuning.outputs), self.objective == "interleaved"
            objective: Objective = "throughput" if self.objective == "interleaved" else self.objective
            cluster = read_cluster(self.cluster)
            return Across(cluster, objective, tuning.in_flight, is_interleaved, names, ranks, self.mode)
        return Heads(tuple(tuple(group.split("+")) for group in names_in([self.heads or ""])))


@dataclass(frozen=True)
class TuningOptions:
    """What fine-tunes a plan; its file keeps it."""

    in_flight: int = 1
    outputs: str | None = None
    pins: Texts = None
    avoid: Texts = None
    inside_layers: Literal["auto", "always", "never"] = "auto"
    recompute: Recomputing = "auto"
    boundary_dtype: Literal["float16"] | None = None
    cost_model: Annotated[str | None, {"autocompletion": _cost_models}] = None
    profile: ProfileText = None
    prove: int | None = None

    def limits(self) -> Limits:
        pins = tuple(numbered("--pin", text, "NODE=PART", "/model/norm/Mul=1") for text in self.pins or ())
        inside = {"auto": None, "always": True, "never": False}[self.inside_layers]
        return Limits(pins, names_in(self.avoid or ()), inside, self.recompute, self.boundary_dtype)


def with_devices(made: Plan, texts: Sequence[str]) -> Plan:
    """A plan whose parts have these devices, in order."""
    names = listed_names(texts)
    hint = "name the device of each part, in order; a device may have several"
    if "" in names:
        raise UsageError(f"--device {','.join(names)}: name {names.index('') + 1} is empty", hint=hint)
    if names and len(names) != len(made.parts):
        named = f"--device names {count_of(len(names), 'device')} for {count_of(len(made.parts), 'part')}"
        raise UsageError(named, hint=hint)
    return replace(made, devices=tuple(Device(name=name) for name in names))


def _replayed(path: Path, source: AnalysisLike) -> Plan:
    from .. import analyze, check_budgets, replay

    made = replay(analyze(source), path)
    check_budgets(made, [part.written_bytes for part in made.metrics])
    return made


def _check(given: Sequence[str], plan_file: str) -> None:
    goals = [option for option in GOALS if option in given]
    if len(goals) != 1 and goals != ["--num-splits", "--memory"]:
        hint = f"use one of --num-splits 4, --memory 2GB, --cluster FILE, --heads, --at-nodes NAMES{plan_file}"
        raise UsageError(f"{' and '.join(goals)} are different goals" if goals else "no cut requested", hint=hint)
    for option, owners in applying("goals").items():
        if option in given and not set(goals).intersection(owners):
            hint = f"leave {option} out, or use {owners[0]} instead of {goals[0]}"
            raise UsageError(f"{option} applies to {' or '.join(owners)}, not to {goals[0]}", hint=hint)


def _checked(names: Sequence[str], words: Any) -> tuple[Any, ...]:  # noqa: ANN401 - a Literal, and some of its words
    """Those of the words that are named, in their order."""
    check_names(names, get_args(words), "--count can't be", "it is one or more of")
    return tuple(word for word in get_args(words) if word in names)
