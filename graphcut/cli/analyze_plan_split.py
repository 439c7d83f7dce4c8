"""From a model to a cascade: demo, analyze, plan, split, cost-model."""

from __future__ import annotations

import os
import shlex
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal, cast

import typer

from ..core.atomic_files import scratch_folder
from ..core.errors import UsageError
from .common_options import AsJson, Dims, Force, ModelFile, Quiet, States, app, check_goal_file, load, shortest
from .output import print_, print_json, progress, put_text, say, say_next
from .plan_options import PlanRequest, asking

if TYPE_CHECKING:
    from ..core.manifest import Cascade
    from ..costs.tables import CostTable
    from ..drawing.scene import Scene
    from ..loading.model import Model
    from ..planning.plans import Plan
    from ..surgery.splitting import PreparedFiles


@app.command()
def demo(
    name: Annotated[str, typer.Argument(metavar="NAME", help="llm, unet, resnet, multitask or control-flow.")],
    output: Annotated[Path | None, typer.Option("--output", "-o", metavar="FILE", help="NAME.onnx without it.")] = None,
    hidden: Annotated[int | None, typer.Option(help="llm: width of the residual stream.")] = None,
    layers: Annotated[int | None, typer.Option(help="llm: number of layers.")] = None,
    heads: Annotated[int | None, typer.Option(help="llm: attention heads.")] = None,
    kv_heads: Annotated[int | None, typer.Option(help="llm: heads of keys and values.")] = None,
    intermediate: Annotated[int | None, typer.Option(help="llm: width of the MLP.")] = None,
    vocab: Annotated[int | None, typer.Option(help="llm: size of the vocabulary.")] = None,
    dtype: Annotated[str | None, typer.Option(help="llm: float32 or float16.")] = None,
    tied: Annotated[bool | None, typer.Option("--tied", help="llm: the head shares the embedding's weights.")] = None,
    external: Annotated[
        bool | None,
        typer.Option("--external/--inline", help="Weights beside the model, or inside. By size without it."),
    ] = None,
    force: Force = False,
) -> None:
    """Write an example model with made-up weights, to try graphcut on."""
    from ..demos import write

    goal = output or Path(f"{name}.onnx")
    if goal.exists() and not force:
        raise UsageError(f"{goal} stands there already", hint="choose another name with -o, or add --force")
    given = {
        "hidden": hidden,
        "layers": layers,
        "heads": heads,
        "kv_heads": kv_heads,
        "intermediate": intermediate,
        "vocab": vocab,
        "dtype": dtype,
        "tied": tied,
    }
    write(name, goal, external=external, **{option: value for option, value in given.items() if value is not None})
    say(f"wrote {goal}")
    say_next(f"graphcut analyze {shlex.quote(str(goal))}")


@app.command()
def analyze(
    model: ModelFile,
    dim: Dims = None,
    cuts: Annotated[
        int | None,
        typer.Option(
            metavar="[N]", min=0, help="List the places to cut, tab-separated: all of them, or the N cheapest."
        ),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Show where a model can be cut, and what it costs there."""
    from ..analysis.cut_points import analyze as look
    from ..drawing.scenes import scene_of_analysis
    from ..drawing.terminal import cheapest, draw_cut_points, draw_scene

    analysis = look(load(model, dim))
    if as_json:
        from ..drawing.json_records import analysis_record

        print_json(analysis_record(analysis))
    elif cuts is not None:
        points = analysis.cut_points
        for line in draw_cut_points(cheapest(points, cuts) if cuts else points):
            sys.stdout.write(f"{line}\n")
    else:
        scene = scene_of_analysis(analysis)
        print_(lambda console: draw_scene(scene, console))
        if scene.following:
            say_next(scene.following)


def _planned(wish: PlanRequest, opened: Model) -> Plan:
    from ..analysis.cut_points import analyze as look
    from ..costs.tables import read_table
    from ..costs.weighing import weigh
    from ..planning.goals import At
    from ..planning.plan_files import replay
    from ..planning.plans import default_dims
    from ..planning.plans import plan as make

    analysis = look(opened)
    if wish.goal is None:
        return replay(analysis, cast("Path", wish.replayed))
    if isinstance(wish.goal, At):
        return make(analysis, wish.goal, limits=wish.limits)
    costs = weigh(opened, default_dims(analysis, wish.goal, wish.profile, wish.tokens))
    table = read_table(wish.table) if wish.table else None
    return make(analysis, wish.goal, limits=wish.limits, costs=costs, table=table, prove_s=wish.prove_s)


@app.command()
@asking
def plan(
    wish: PlanRequest,
    model: ModelFile,
    output: Annotated[
        Path | None, typer.Option("--output", "-o", metavar="FILE", help="Save the plan, to edit and replay it.")
    ] = None,
    explain: Annotated[bool, typer.Option("--explain", help="Why each cut is where it is.")] = False,
    dim: Dims = None,
    state: States = None,
    force: Force = False,
    as_json: AsJson = False,
) -> None:
    """Show the best cut for a goal: parts, what crosses, what it costs, and how good it is at best."""
    from ..analysis.cut_points import analyze as look
    from ..drawing.scenes import scene_of_plan
    from ..drawing.terminal import draw_scene
    from ..planning.plan_files import save_plan

    check_goal_file(output, force=force)
    opened = load(model, dim, state)
    made = _planned(wish, opened)
    if output is not None:
        save_plan(made, opened, output)
    if as_json:
        from ..drawing.json_records import plan_record

        print_json(plan_record(made, opened))
        return
    scene = scene_of_plan(made, look(opened))
    print_(lambda console: draw_scene(scene, console, explain=explain))
    if output is not None:
        say(f"wrote {output}")
        say_next(f"graphcut split {shlex.quote(str(model))} --plan {shlex.quote(str(output))}")


@app.command()
@asking
def split(
    wish: PlanRequest,
    model: ModelFile,
    output: Annotated[
        Path | None, typer.Option("--output", "-o", metavar="DIR", help="The folder to make. Without it: MODEL.parts.")
    ] = None,
    weights: Annotated[
        Literal["copy", "share"],
        typer.Option(
            help="copy: each part gets its weights. share: parts lie beside the model and refer to its weights."
        ),
    ] = "copy",
    dim: Dims = None,
    state: States = None,
    report: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Draw what was cut into an .html file, too.")
    ] = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", "-n", help="Say what would be written, and write nothing.")
    ] = False,
    force: Force = False,
    quiet: Quiet = False,
    as_json: AsJson = False,
) -> None:
    """Cut a model into parts whose inputs and outputs are the tensors that cross."""
    from ..core.units import size
    from ..surgery.splitting import describe, prepare, write

    folder = _folder(model, output, weights)
    if report is not None:
        _check_report(report, folder, force=force)
    opened = load(model, dim, state)
    cut = prepare(opened, _planned(wish, opened), output, weights=weights)
    if dry_run and as_json:
        from ..drawing.json_records import dry_run_record

        print_json(dry_run_record(cut))
        return
    if dry_run:
        for line in describe(cut):
            sys.stdout.write(f"{line}\n")
        sys.stdout.write(f"{size(cut.bytes_to_write)} would be written; nothing was\n")
        return
    in_the_way = report if weights == "copy" else None
    with progress(cut, quiet=quiet or as_json) as told, _out_of_the_way(in_the_way, folder):
        cascade = write(cut, force=force, progress=told)
    if report is not None:
        from ..drawing.html import html_of

        put_text(html_of(_scene(cut, cascade)), report)
    _show(cut, cascade, as_json=as_json, quiet=quiet)
    if not (quiet or as_json):
        say_next(f"graphcut verify {shlex.quote(str(shortest(cascade)))}")


def _folder(model: Path, output: Path | None, weights: Literal["copy", "share"]) -> Path:
    """Where the parts of a model go, as `prepare` does it."""
    if output is not None:
        return output
    return model.with_name(f"{model.name.removesuffix('.onnx')}.parts") if weights == "copy" else model.parent


def _check_report(report: Path, folder: Path, *, force: bool) -> None:
    """A page can be written, once the parts stand in `folder`; it may lie there, too."""
    page, goal = report.parent.resolve() / report.name, folder.resolve()
    if page == goal or page in goal.parents:
        raise UsageError(
            f"{report} can't be the page and hold the parts", hint=f"name a page in it: --report {folder}/report.html"
        )
    if report.suffix not in {".html", ".htm"}:
        raise UsageError(f"{report} would hold a page, and is not called like one", hint="name an .html file")
    if page.parent != goal or goal.exists():
        check_goal_file(report, force=force, option="--report")


@contextmanager
def _out_of_the_way(report: Path | None, folder: Path) -> Iterator[None]:
    """A page that lies in `folder` and is to be replaced lies beside it meanwhile, and back in it if that fails.

    The folder is replaced as a whole, and only where its manifest lists all that lies in it; a page it doesn't.
    """
    if report is None or not report.is_file() or report.parent.resolve() != folder.resolve():
        yield
        return
    with scratch_folder(folder.resolve().parent, report.name) as scratch:
        os.replace(report, scratch / "old")
        try:
            yield
        except BaseException:
            os.replace(scratch / "old", report)
            raise


def _scene(cut: PreparedFiles, cascade: Cascade) -> Scene:
    from ..analysis.cut_points import analyze as look
    from ..drawing.scenes import scene_of_split

    return scene_of_split(cascade, cut.plan, look(cut.source))


def _show(cut: PreparedFiles, cascade: Cascade, *, as_json: bool, quiet: bool) -> None:
    from ..drawing.terminal import draw_scene

    if as_json:
        from ..drawing.json_records import cascade_record

        print_json(cascade_record(cascade))
    elif quiet:
        sys.stdout.write(f"{cascade.path}\n")
    else:
        scene = _scene(cut, cascade)
        print_(lambda console: draw_scene(scene, console))


@app.command("cost-model")
def cost_model(
    model: ModelFile,
    output: Annotated[Path, typer.Option("--output", "-o", metavar="FILE", help="The .csv file to write.")],
    measure: Annotated[
        bool, typer.Option("--measure", help="Run it in ONNX Runtime, and record time and memory.")
    ] = False,
    rounds: Annotated[
        int | None, typer.Option(metavar="N", min=1, help="How often --measure runs it; 5 times without it.")
    ] = None,
    memory: Annotated[
        str | None, typer.Option(metavar="SIZE", help="What --measure may take; larger models run piece by piece.")
    ] = None,
    inputs: Annotated[Path | None, typer.Option(metavar="FILE", help="What --measure feeds it: a .npz file.")] = None,
    profile: Annotated[
        Literal["prefill", "decode"] | None, typer.Option(help="For a decoder: a prompt, or one token.")
    ] = None,
    tokens: Annotated[
        int | None,
        typer.Option(metavar="N", min=1, help="Length of the prompt, or of what the cache holds; 512 without it."),
    ] = None,
    dim: Dims = None,
    force: Force = False,
) -> None:
    """Write what each module of a model weighs: parameters, bytes, FLOPs, and if measured its time."""
    from ..analysis.cut_points import analyze as look
    from ..costs.tables import save_table, table_of
    from ..costs.weighing import weigh
    from ..drawing.cost_table import draw_cost_table
    from ..planning.plans import decoder_dims

    for name, value in {"--rounds": rounds, "--memory": memory, "--inputs": inputs}.items():
        if value is not None and not measure:
            raise UsageError(f"{name} says something about --measure, which is not asked for", hint="add --measure")
    check_goal_file(output, force=force)
    opened = load(model, dim)
    dims = decoder_dims(look(opened), profile, tokens)
    costs = weigh(opened, dims)
    table = _measured(opened, dims, rounds or 5, memory, inputs) if measure else table_of(costs)
    save_table(table, output)
    print_(lambda console: draw_cost_table(table, costs, console))
    if any(symbol not in costs.dims for symbol in opened.symbols):
        say(f"note: {_notes_on_sizes(opened)[0]}")
    say(f"wrote {output}")


def _measured(
    opened: Model, dims: Mapping[str, int], rounds: int, memory: str | None, inputs: Path | None
) -> CostTable:
    from ..benchmarking.cost_measurement import measure
    from ..core.units import parse_bytes
    from ..inputs.input_files import read_inputs
    from ..loading.model import load

    model = load(opened.path, dims={name: number for name, number in dims.items() if name in opened.symbols})
    fed = read_inputs(inputs, model.graph.reads, tensors=model.tensors) if inputs else None
    limit = None if memory is None else parse_bytes(memory)
    return measure(model, rounds=rounds, inputs=fed, memory_bytes=limit).table


def _notes_on_sizes(model: Model) -> list[str]:
    unbound = [symbol for symbol in model.symbols if symbol not in model.dims]
    return [f"sizes count {', '.join(unbound)} as 1; bind them with --dim NAME=N"] if unbound else []
