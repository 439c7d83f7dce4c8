"""What `plan` and `split` can be asked: from the words of a command line to a goal and its limits."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from inspect import signature
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final, Literal, NamedTuple

import typer

from ..core.errors import UsageError

if TYPE_CHECKING:
    from ..planning.goals import Counted, Goal, Limits


class PlanRequest(NamedTuple):
    """What the words of a command line ask of a cut."""

    goal: Goal | None
    replayed: Path | None
    limits: Limits
    table: Path | None
    profile: Literal["prefill", "decode"] | None
    tokens: int | None
    prove_s: int


def _wish(
    at_nodes: Annotated[
        list[str] | None,
        typer.Option(metavar="NAMES", help="Cut after these nodes or tensors; globs too. Commas between, or repeated."),
    ] = None,
    num_splits: Annotated[
        int | None, typer.Option(metavar="N", help="Into so many parts, the heaviest as light as can be.")
    ] = None,
    by: Annotated[
        Literal["time", "layers", "bytes", "flops"] | None, typer.Option(help="What --num-splits balances.")
    ] = None,
    memory: Annotated[
        str | None, typer.Option(metavar="SIZE", help="No part over this, such as 2GB or 512MiB; the fewest parts.")
    ] = None,
    count: Annotated[
        list[str] | None,
        typer.Option(metavar="WHAT", help="What --memory counts besides files: activations, inputs, cache."),
    ] = None,
    cluster: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Across the devices that a TOML file describes.")
    ] = None,
    objective: Annotated[
        Literal["throughput", "latency", "decode", "bytes", "devices"] | None,
        typer.Option(help="What --cluster is to be best in; throughput without it."),
    ] = None,
    in_flight: Annotated[
        int | None, typer.Option(metavar="M", help="Sequences decoded at the same time, for --objective decode.")
    ] = None,
    heads: Annotated[
        str | None,
        typer.Option(metavar="[A,B+C]", help="One part for each output or group of outputs, and their trunk."),
    ] = None,
    pin: Annotated[
        list[str] | None, typer.Option(metavar="NODE=PART", help="A node that must stand in that part. Repeatable.")
    ] = None,
    avoid: Annotated[
        list[str] | None, typer.Option(metavar="GLOB", help="Nothing that these nodes write may cross. Repeatable.")
    ] = None,
    inside_layers: Annotated[
        bool, typer.Option("--inside-layers", help="Layers that the model repeats may be cut, too.")
    ] = False,
    recompute: Annotated[
        Literal["auto", "never"] | None,
        typer.Option(help="auto, as without it: what is cheaper to compute again than to send is."),
    ] = None,
    cost_model: Annotated[
        str | None,
        typer.Option(
            metavar="FILE", help="A CSV with what modules weigh, or the name of one that graphcut ships (Phi-3.5-mini)."
        ),
    ] = None,
    profile: Annotated[
        Literal["prefill", "decode"] | None, typer.Option(help="For a decoder: plan for a prompt, or for one token.")
    ] = None,
    tokens: Annotated[
        int | None,
        typer.Option(metavar="N", min=1, help="Length of the prompt, or of what the cache holds; 512 without it."),
    ] = None,
    prove: Annotated[
        int | None,
        typer.Option(metavar="[SECONDS]", min=0, help="Let an exact solver say how good the plan is; 30 s at most."),
    ] = None,
    plan_file: Annotated[
        Path | None, typer.Option("--plan", metavar="FILE", help="A plan that `graphcut plan -o` saved.")
    ] = None,
) -> PlanRequest:
    """Both `plan` and `split` ask with these words."""
    from ..planning.goals import Limits

    goals = {
        "--at-nodes": at_nodes,
        "--num-splits": num_splits,
        "--memory": memory,
        "--cluster": cluster,
        "--heads": heads,
        "--plan": plan_file,
    }
    options = {
        "--by": by,
        "--count": count,
        "--objective": objective,
        "--in-flight": in_flight,
        "--pin": pin,
        "--avoid": avoid,
        "--inside-layers": inside_layers or None,
        "--recompute": recompute,
        "--cost-model": cost_model,
        "--profile": profile,
        "--tokens": tokens,
        "--prove": prove,
    }
    _check_words([n for n, v in goals.items() if v is not None], [n for n, v in options.items() if v is not None])
    if in_flight is not None and objective != "decode":
        raise UsageError("--in-flight says something about --objective decode", hint="add --objective decode")
    goal = _goal(at_nodes, num_splits, by, memory, count, cluster, objective, in_flight, heads)
    limits = Limits(tuple(map(_pinned, pin or ())), _names(avoid or ()), inside_layers, recompute or "auto")
    return PlanRequest(goal, plan_file, limits, _cost_model(cost_model), profile, tokens, prove or 0)


_CHOOSING: Final = ("--num-splits", "--memory", "--cluster")
_WEIGHING: Final = (*_CHOOSING, "--heads")
_MEANT_FOR: Final[dict[str, tuple[str, ...]]] = {
    "--by": ("--num-splits",),
    "--count": ("--memory",),
    "--objective": ("--cluster",),
    "--in-flight": ("--cluster",),
    "--pin": (*_WEIGHING, "--at-nodes"),
    "--avoid": (*_WEIGHING, "--at-nodes"),
    "--inside-layers": _CHOOSING,
    "--recompute": _WEIGHING,
    "--cost-model": _WEIGHING,
    "--profile": _WEIGHING,
    "--tokens": _WEIGHING,
    "--prove": _CHOOSING,
}
"""The goals that an option says something about; with another it would do nothing."""


def _check_words(goals: Sequence[str], options: Sequence[str]) -> None:
    if len(goals) != 1:
        raise UsageError(
            f"{' and '.join(goals)} are different goals" if goals else "nothing says where to cut",
            hint="use one of --num-splits 4, --memory 2GB, --cluster FILE, --heads, --at-nodes NAMES, --plan FILE",
        )
    for option in options:
        owners = _MEANT_FOR[option]
        if goals[0] not in owners:
            raise UsageError(
                f"{option} says something about {' or '.join(owners)}, which is not asked for",
                hint=f"leave {option} out, or use it with {owners[0]} instead of {goals[0]}",
            )


def _goal(
    at_nodes: list[str] | None,
    num_splits: int | None,
    by: Literal["time", "layers", "bytes", "flops"] | None,
    memory: str | None,
    counted: list[str] | None,
    cluster: Path | None,
    objective: Literal["throughput", "latency", "decode", "bytes", "devices"] | None,
    in_flight: int | None,
    heads: str | None,
) -> Goal | None:
    from ..core.units import parse_bytes
    from ..planning.cluster import read_cluster
    from ..planning.goals import Across, At, Heads, Into, Within

    if at_nodes is not None:
        return At(_names(at_nodes))
    if num_splits is not None:
        return Into(num_splits, by or "time")
    if memory is not None:
        return Within(parse_bytes(memory), _counted(counted or ()))
    if cluster is not None:
        return Across(read_cluster(cluster), objective or "throughput", 1 if in_flight is None else in_flight)
    if heads is not None:
        return Heads(tuple(tuple(group.split("+")) for group in _names([heads])))
    return None


def _counted(texts: Sequence[str]) -> tuple[Counted, ...]:
    from typing import get_args

    from ..planning.goals import Counted

    words = get_args(Counted)
    names = _names(texts)
    if stranger := next((name for name in names if name not in words), None):
        raise UsageError(f"--count does not know {stranger!r}", hint=f"it knows {', '.join(words)}")
    return tuple(word for word in words if word in names)


def _pinned(text: str) -> tuple[str, int]:
    name, found, part = text.rpartition("=")
    if not (found and name and part.isascii() and part.isdigit()):
        raise UsageError(f"--pin {text} does not say NODE=PART", hint="write it like --pin /model/norm/Mul=1")
    return name, int(part)


def _cost_model(name: str | None) -> Path | None:
    """A file, or one of the tables that graphcut ships, by its name."""
    from ..costs.tables import shipped_tables

    return None if name is None else shipped_tables().get(name, Path(name))


def asking(command: Callable[..., None]) -> Callable[..., None]:
    """`command`, whose first argument is a `PlanRequest`, with the words of `_wish` as options of its own."""
    own, shared = signature(command, eval_str=True), signature(_wish, eval_str=True)

    def asked(**words: Any) -> None:  # noqa: ANN401 - typer has checked them
        wish = _wish(**{name: words.pop(name) for name in shared.parameters})
        command(wish, **words)

    _, model, *rest = own.parameters.values()
    both = [model, *shared.parameters.values(), *rest]
    asked.__signature__ = own.replace(  # type: ignore[attr-defined]
        parameters=[parameter.replace(kind=parameter.KEYWORD_ONLY) for parameter in both]
    )
    asked.__annotations__ = {parameter.name: parameter.annotation for parameter in both}
    asked.__doc__, asked.__name__ = command.__doc__, command.__name__
    return asked


def _names(texts: Sequence[str]) -> tuple[str, ...]:
    """Names, repeated or with commas between; a name with commas of its own stands in double quotes."""
    import csv

    return tuple(name.strip() for row in csv.reader(texts, skipinitialspace=True) for name in row if name.strip())
