"""The command `graphcut split`."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Final

from ..core.arguments import Storage
from ..core.text import shell_word
from ..core.units import size
from .application import GENERAL, check_apply, given_options
from .common_options import Place, Texts, load, say_gap
from .declaring import Size
from .output import print_, print_lines, put_json, say, say_next, settings, writing
from .plan_options import GOALS, GoalOptions, with_devices

if TYPE_CHECKING:
    from .. import Model, PreparedFiles

_OF_ONE_FILE: Final = ("model", "--one-file", "--ranks", "--sum", "--output", "--weights", "--dim", "--force", "--json")


def split(
    options: GoalOptions,
    model: Path,
    plan: Place = None,
    device: Texts = None,
    output: Place = None,
    weights: Storage = "copy",
    max_shard_bytes: Size = None,
    digest: bool = False,
    one_file: bool = False,
    dims: Texts = None,
    states: Texts = None,
    dry_run: bool = False,
    force: bool = False,
    as_json: bool = False,
) -> None:
    """Split a model into parts: ONNX files and a manifest.

    The inputs and outputs of the parts are the boundary tensors. With --ranks layers are divided as well: there is a
    part for each round and rank; with a number of splits each of these has ranks of its own. On a cluster the
    planner says which layers are divided among which devices.

    Examples:
        graphcut split llm.onnx --num-splits 2
        graphcut split llm.onnx --plan plan.json -o planned.parts
        graphcut split unet.onnx --cluster cluster.toml
    """
    if one_file:
        given = given_options(options.ctx)
        check_apply(given, {*given}.difference(_OF_ONE_FILE, GENERAL), "--one-file, which makes no parts")
        _shard(load(model, dims), options, output, weights=weights, force=force, as_json=as_json)
        return
    cut = cutter(options, plan, device)(load(model, dims, states), output, weights, max_shard_bytes)
    if dry_run:
        _list(cut, as_json=as_json)
    else:
        _write(cut, digest=digest, force=force, as_json=as_json)


def _list(cut: PreparedFiles, *, as_json: bool) -> None:
    """Print the files that would be written."""
    from ..drawing.json_records import cascade_record

    if as_json:
        put_json(cascade_record(cut.cascade, cut.files))
        return
    print_lines(*str(cut).split("\n"), f"{size(cut.bytes_to_write)} would be written; this was a dry run")


def _write(cut: PreparedFiles, *, digest: bool, force: bool, as_json: bool) -> None:
    """Write the parts, and draw them."""
    from .. import analyze, write
    from ..drawing.json_records import cascade_record

    was_there = not force and (cut.folder / cut.manifest_name).exists()
    with writing(is_silent=as_json) as progress:
        cascade = write(cut, digest=digest, force=force, progress=progress)
    if was_there:
        say(f"note: {cut.folder} had these files already")
    say_gap(cut.source.path)
    if _is_put(cascade.path, lambda: cascade_record(cascade), as_json=as_json):
        return
    from ..drawing.scene_builders import scene_of_ranks, scene_of_split
    from ..drawing.terminal.scene import draw_scene

    if cut.whole is None:
        scene = scene_of_split(cascade, cut.plan, analyze(cut.source))
    else:
        scene = scene_of_ranks(cascade, cut.plan, cut.source)
    print_(lambda screen: draw_scene(scene, screen))
    say_next(scene.next_command)


def _is_put(path: Path, record: Callable[[], object], *, as_json: bool) -> bool:
    """Print the record of what was made, or with --quiet its path; returns whether one of them was asked for."""
    if as_json:
        put_json(record())
    elif settings.is_quiet:
        print_lines(str(path))
    return as_json or settings.is_quiet


def cutter(options: GoalOptions, plan_file: Path | None, device: Texts = None) -> Callable[..., PreparedFiles]:
    """The function that plans a model and prepares its parts. The options are checked before any model is opened."""
    from .. import prepare, prepare_by_rank

    is_ranked, given = options.cluster is None and options.ranks is not None, given_options(options.ctx)
    if is_ranked:
        what = "ranks, each of which is a device with one file of weights"
        check_apply(given, ("--max-shard-size", "--device"), what)
        check_apply(given, ("--memory",), "--ranks: no budget counts ranks")
    planner = None if is_ranked and not {*given} & {*GOALS} else options.planner(plan_file=plan_file)
    ranks = options.rank_shares() or 1

    def cut(model: Model, output: Path | None, weights: Storage = "copy", most: int | None = None) -> PreparedFiles:
        plan = None if planner is None else planner(model)
        if plan is None or is_ranked:
            return prepare_by_rank(model, output, ranks=ranks, mode=options.mode, stages=plan, weights=weights)
        plan = with_devices(plan, device) if device else plan
        return prepare(model, plan, output, weights=weights, max_shard_bytes=most)

    return cut


def _shard(
    model: Model, options: GoalOptions, output: Path | None, *, weights: Storage, force: bool, as_json: bool
) -> None:
    """Write one ordinary model, in which every layer that can be divided stands once for each rank."""
    from .. import shard as sharded

    ranks = options.rank_shares() or 1
    made = sharded(model, output, ranks=ranks, mode=options.mode, weights=weights, force=force)
    say_gap(model.path)
    if not _is_put(made.path, lambda: made.record, as_json=as_json):
        sys.stdout.write(f"{made}\n")
        say(f"wrote {made.path}")
        say_next(f"graphcut verify {shell_word(str(made.path))}")
