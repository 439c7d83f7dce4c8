"""The command `graphcut split`."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from typer import Option

from ..core.errors import UsageError
from ..core.units import parse_bytes
from .application import check_applicable, given_options
from .common_options import AsJson, Dims, Force, ModelPath, Output, States, load
from .output import check_output, print_, print_json, print_line, put_text, say, say_next, settings, writing
from .plan_options import GOALS, PlanOptions
from .shard import Shares, parsed_shares

if TYPE_CHECKING:
    from ..core.manifest import Cascade
    from ..drawing.scene import Scene
    from ..loading.model import Model
    from ..surgery.splitting import PreparedFiles

WeightMode = Literal["copy", "share"]


def split(
    options: PlanOptions,
    model: ModelPath,
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
    shares: Shares = None,
    dim: Dims = None,
    state: States = None,
    report: Annotated[Path | None, Option(metavar="FILE", help="Also draw the cut into an .html file.")] = None,
    dry_run: Annotated[bool, Option("--dry-run", "-n", help="List the files that would be written.")] = False,
    force: Force = False,
    as_json: AsJson = False,
) -> None:
    """Split a model into parts: ONNX files and a manifest.

    The inputs and outputs of the parts are the boundary tensors. With --ranks layers are divided as well, and there is
    a part for each phase and rank; with --num-splits besides, each split has ranks of its own, and with --cluster the
    planner says which layers are divided among which devices. With --quiet only the path of the manifest is printed.
    """
    from ..drawing.json_records import cascade_record
    from ..drawing.terminal.scene import draw_scene
    from ..surgery.splitting import output_folder, write

    shard_bytes = None if max_shard_size is None else parse_bytes(max_shard_size)
    _check_ranks(options, shares, weights, shard_bytes)
    preparing = cutter(options, shares)
    folder = output_folder(model, output, weights)
    if report is not None:
        _check_report(report, folder, force=force)
    opened = load(model, dim, state)
    cut = preparing(opened, output, weights=weights, max_shard_bytes=shard_bytes, digest=digest)
    if dry_run:
        _describe(cut, as_json=as_json)
        return
    was_there = not force and (cut.folder / cut.manifest_name).exists()
    with writing(is_silent=as_json) as progress:
        cascade = write(cut, force=force, progress=progress, report=report)
    if was_there:
        say(f"note: {cut.folder} had these files already")
    if report is not None:
        from ..drawing.html import html_of

        put_text(html_of(_scene(cut, cascade)), report)
    if as_json:
        print_json(cascade_record(cascade))
    elif settings.is_quiet:
        print_line(str(cascade.path))
    else:
        scene = _scene(cut, cascade)
        print_(lambda console: draw_scene(scene, console))
        say_next(scene.next_command)


def _is_ranked(options: PlanOptions, shares: str | None) -> bool:
    return options.cluster is None and (options.ranks is not None or shares is not None)


def _check_ranks(options: PlanOptions, shares: str | None, weights: WeightMode, shard_bytes: int | None) -> None:
    """Refuse options that would do nothing without ranks, or that ranks can't have."""
    given, ranked = given_options(options.ctx), ["--ranks"] * _is_ranked(options, shares)
    check_applicable(given, {"--exact": "--ranks"}, [*ranked, *["--ranks"] * (options.cluster is not None)])
    if shares is not None and options.cluster is not None:
        raise UsageError("--shares don't apply to --cluster", hint="leave --shares out: the plan finds them")
    if ranked and weights == "share":
        raise UsageError("ranks have slices of weights, which can't be shared", hint="leave out --weights share")
    if ranked and shard_bytes is not None:
        raise UsageError("--max-shard-size divides weights of parts without ranks", hint="leave out --max-shard-size")


def cutter(options: PlanOptions, shares: str | None = None) -> Callable[..., PreparedFiles]:
    """The function that plans a model and prepares its parts. The options are checked before any model is opened."""
    from ..surgery.cutting import prepare
    from ..surgery.ranks import prepare_ranks
    from ..surgery.sharding import division_of

    is_ranked = _is_ranked(options, shares)
    has_goal = any(option in GOALS for option in given_options(options.ctx))
    planner = None if is_ranked and not has_goal else options.planner()

    def cut(model: Model, output: Path | None, **storing: Any) -> PreparedFiles:  # noqa: ANN401 - as `prepare` has them
        plan = None if planner is None else planner(model)
        if plan is not None and not is_ranked:
            return prepare(model, plan, output, **storing)
        mode: Literal["exact", "sum"] = "exact" if options.exact else "sum"
        divided = division_of(model, options.ranks, parsed_shares(shares), mode)
        return prepare_ranks(divided, output, plan)

    return cut


def _check_report(report: Path, folder: Path, *, force: bool) -> None:
    """Refuse a report that can't be written once the parts are in `folder`; it may be in that folder."""
    page, parts = report.parent.resolve() / report.name, folder.resolve()
    if page == parts or page in parts.parents:
        raise UsageError(
            f"{report} can't be both the report and a folder of the parts",
            hint=f"choose a file, such as --report {folder}/report.html",
        )
    if report.suffix not in {".html", ".htm"}:
        raise UsageError(f"{report}: the report is an HTML page", hint="choose a name that ends in .html")
    if page.parent != parts or parts.exists():
        check_output(report, force=force, option="--report")


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
    from ..analysis.cut_points import analyze
    from ..drawing.scene_builders import scene_of_ranks, scene_of_split

    if cut.whole is not None:
        return scene_of_ranks(cascade, cut.plan, cut.source)
    return scene_of_split(cascade, cut.plan, analyze(cut.source))
