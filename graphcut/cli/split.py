"""The command `graphcut split`."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from typer import Option

from ..core.errors import UsageError
from ..core.text import shell_word
from ..core.units import parse_bytes
from .application import check_applicable, given_options
from .common_options import AsJson, Dims, Force, ModelPath, Output, States, Texts, load
from .output import print_, print_json, print_line, say, say_next, settings, writing
from .plan_options import GOALS, GoalOptions, with_devices

if TYPE_CHECKING:
    from .. import Model
    from ..core.manifest import Cascade
    from ..drawing.scene import Scene
    from ..surgery.splitting import PreparedFiles

WeightMode = Literal["copy", "share"]
PlanPath = Annotated[Path | None, Option("--plan", metavar="FILE", help="Cut as in a plan of `graphcut plan -o`.")]


def split(
    options: GoalOptions,
    model: ModelPath,
    plan: PlanPath = None,
    device: Annotated[
        Texts, Option(metavar="NAMES", help="The device of each part of --at-nodes, in order. Comma-separated.")
    ] = None,
    output: Annotated[
        Path | None, Output(metavar="DIR", help="The folder of the parts.", show_default="MODEL.parts")
    ] = None,
    weights: Annotated[
        WeightMode, Option(help="copy: each part has its weights. share: parts beside the model refer to its weights.")
    ] = "copy",
    max_shard_size: Annotated[
        str | None, Option(metavar="SIZE", help="Divide copied weights among files of at most SIZE, with an index.")
    ] = None,
    digest: Annotated[bool, Option("--digest", help="Compute digests of shared weights, too.")] = False,
    one_file: Annotated[
        bool, Option("--one-file", help="With --ranks: one ordinary model, MODEL.sharded.onnx, instead of parts.")
    ] = False,
    dim: Dims = None,
    state: States = None,
    dry_run: Annotated[bool, Option("--dry-run", "-n", help="List the files that would be written.")] = False,
    force: Force = False,
    as_json: AsJson = False,
) -> None:
    """Split a model into parts: ONNX files and a manifest.

    The inputs and outputs of the parts are the boundary tensors. With --ranks layers are divided as well: there is a
    part for each phase and rank; with a number of splits each of these has ranks of its own. On a cluster the
    planner says which layers are divided among which devices.
    """
    from ..drawing.json_records import cascade_record
    from ..drawing.terminal.scene import draw_scene
    from ..surgery.splitting import write

    shard_bytes = None if max_shard_size is None else parse_bytes(max_shard_size)
    if one_file:
        _shard(options, model, output, weights=weights, dim=dim, force=force, as_json=as_json)
        return
    _check_ranks(options, weights, shard_bytes)
    preparing = cutter(options, plan, device)
    opened = load(model, dim, state)
    folder = output or (Path(f"{model.name.removesuffix('.onnx')}.parts") if weights == "copy" else None)
    cut = preparing(opened, folder, weights=weights, max_shard_bytes=shard_bytes, digest=digest)
    if dry_run:
        _describe(cut, as_json=as_json)
        return
    was_there = not force and (cut.folder / cut.manifest_name).exists()
    with writing(is_silent=as_json) as progress:
        cascade = write(cut, force=force, progress=progress)
    if was_there:
        say(f"note: {cut.folder} had these files already")
    if as_json:
        print_json(cascade_record(cascade))
    elif settings.is_quiet:
        print_line(str(cascade.path))
    else:
        scene = _scene(cut, cascade)
        print_(lambda console: draw_scene(scene, console))
        say_next(scene.next_command)


def _is_ranked(options: GoalOptions) -> bool:
    return options.cluster is None and options.ranks is not None


def _check_ranks(options: GoalOptions, weights: WeightMode, shard_bytes: int | None) -> None:
    """Refuse options that would do nothing without ranks, or that ranks can't have."""
    ranked = ["--ranks"] * _is_ranked(options)
    check_applicable(given_options(options.ctx), {"--sum": "--ranks"}, ranked or ["--ranks"] * bool(options.cluster))
    if ranked and weights == "share":
        raise UsageError("ranks have slices of weights, which can't be shared", hint="leave out --weights share")
    if ranked and shard_bytes is not None:
        raise UsageError("--max-shard-size divides weights of parts without ranks", hint="leave out --max-shard-size")


def cutter(options: GoalOptions, plan_file: Path | None, device: Texts = None) -> Callable[..., PreparedFiles]:
    """The function that plans a model and prepares its parts. The options are checked before any model is opened."""
    from ..surgery.cutting import prepare
    from ..surgery.ranks import prepare_ranks
    from ..surgery.sharding import division_of

    is_ranked = _is_ranked(options)
    has_goal = any(option in GOALS for option in given_options(options.ctx))
    planner = None if is_ranked and not has_goal else options.planner(plan_file=plan_file)
    ranks, shares = options.shares()

    def cut(model: Model, output: Path | None, **storing: Any) -> PreparedFiles:  # noqa: ANN401 - as `prepare` has them
        plan = None if planner is None else planner(model)
        if plan is not None and not is_ranked:
            return prepare(model, with_devices(plan, device) if device else plan, output, **storing)
        return prepare_ranks(division_of(model, ranks, shares, options.mode), output, plan)

    return cut


def _shard(
    options: GoalOptions,
    model: Path,
    output: Path | None,
    *,
    weights: WeightMode,
    dim: Texts,
    force: bool,
    as_json: bool,
) -> None:
    """Write one ordinary model, in which every layer that can be divided stands once for each rank."""
    from .. import shard as sharded
    from ..surgery.sharding import describe
    from ..surgery.sharding_record import sharding_record

    allowed = {"model", "--one-file", "--ranks", "--sum", "--output", "--weights", "--dim", "--force", "--json"}
    allowed |= {"--quiet", "--no-color", "--debug"}
    if "--ranks" not in (given := given_options(options.ctx)):
        raise UsageError("--one-file applies to --ranks", hint="for example --ranks 2 --one-file")
    if other := next((option for option in given if option not in allowed), None):
        raise UsageError(f"--one-file makes no parts, so {other} does nothing", hint=f"leave {other} out")
    ranks, shares = options.shares()
    path = output or Path(f"{model.name.removesuffix('.onnx')}.sharded.onnx")
    made = sharded(load(model, dim), path, ranks=ranks, shares=shares, mode=options.mode, weights=weights, force=force)
    if as_json:
        print_json(sharding_record(made))
        return
    if settings.is_quiet:
        print_line(str(made.path))
        return
    sys.stdout.write("".join(f"{line}\n" for line in describe(made)))
    say(f"wrote {made.path}")
    say_next(f"graphcut verify {shell_word(str(made.path))}")


def _describe(cut: PreparedFiles, *, as_json: bool) -> None:
    from ..core.units import size
    from ..surgery.splitting import describe

    if as_json:
        from ..drawing.json_records import cascade_record

        print_json(cascade_record(cut.cascade, cut.files))
        return
    lines = [*describe(cut), f"{size(cut.bytes_to_write)} would be written; this was a dry run"]
    for line in lines:
        print_line(line)


def _scene(cut: PreparedFiles, cascade: Cascade) -> Scene:
    from .. import analyze
    from ..drawing.scene_builders import scene_of_ranks, scene_of_split

    if cut.whole is not None:
        return scene_of_ranks(cascade, cut.plan, cut.source)
    return scene_of_split(cascade, cut.plan, analyze(cut.source))
