"""Words in, one library call, words out. The only file that prints, colours or exits.

Exit codes: 0 done, 1 the answer is no, 2 misuse, 3 could not, 4 no plan fits, 130 interrupted.
"""

from __future__ import annotations

import gc
import io
import os
import shlex
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final, Literal, cast

import typer

from . import __version__
from .asking import Wish, asking
from .errors import GraphcutError, PlanError, UsageError

if TYPE_CHECKING:
    from rich.console import Console, RenderableType

    from .cascade import Cascade
    from .costs.tables import Table
    from .model import Model
    from .planning.plans import Plan
    from .splitting import Cut

_INTERRUPTED: Final = 130

_Misuse: type[Exception] = typer.BadParameter.__mro__[1]
"""What typer raises for a command line that its grammar refuses; it has no public name for all kinds of it."""

_WIDE: Final = 10_000
"""Columns for what does not go to a terminal: a pipe can't ask for more, so nothing is shortened for it."""

app = typer.Typer(
    name="graphcut",
    help="Cut an ONNX model into parts that together do what it did, and prove it.",
    pretty_exceptions_enable=False,
    rich_markup_mode=None,  # plain help: right in every terminal and pipe, and there in half the time
    context_settings={"help_option_names": ["-h", "--help"]},
)

ModelFile = Annotated[Path, typer.Argument(metavar="MODEL", help="An .onnx file; its external data lie beside it.")]
CascadePlace = Annotated[Path, typer.Argument(metavar="DIR", help="The folder of a cascade, or its manifest file.")]
Dims = Annotated[
    list[str] | None,
    typer.Option("--dim", metavar="NAME=N", help="A number for a symbolic dimension, for sizes only. Repeatable."),
]
AsJson = Annotated[bool, typer.Option("--json", help="Everything, as JSON on stdout.")]
Force = Annotated[bool, typer.Option("--force", "-f", help="Replace what stands there already.")]
Inputs = Annotated[
    list[Path] | None,
    typer.Option("--inputs", metavar="FILE", help="A .npz file, or an ONNX test-data folder. Repeatable."),
]
Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="Print nothing but errors and what was asked for.")]


def main() -> None:
    """The `graphcut` command: run it, and turn every outcome into words and an exit code."""
    gc.disable()  # a command ends before circles of garbage matter, and looking for them takes a tenth of its time
    arguments = _with_bare_words(sys.argv[1:] or ["--help"])
    words = [word for word in arguments if word != "--debug"]
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")  # a name in a script that the terminal lacks harms nothing
    try:
        code = app(args=words, prog_name="graphcut", standalone_mode=False)
        sys.exit(_explain(KeyboardInterrupt()) if code == _INTERRUPTED else code)  # typer makes a number of Ctrl-C
    except BaseException as error:
        # typer makes an exit of some, and the exit tells of what.
        cause = error.__context__ if isinstance(error, SystemExit) and error.__context__ else error
        if isinstance(cause, SystemExit) or (words != arguments and isinstance(cause, Exception)):
            raise
        sys.exit(_explain(cause))


def _explain(error: BaseException) -> int:  # noqa: PLR0911 - one for each kind of outcome
    """Say what happened and what to do next; the exit code for it."""
    match error:
        case UsageError():
            return _complain(str(error), error.hint, 2)
        case PlanError():
            return _complain(str(error), error.hint, 4)
        case GraphcutError():
            return _complain(str(error), error.hint, 3)
        case KeyboardInterrupt() | typer.Abort():
            return _complain("interrupted; nothing was left half-written", "", _INTERRUPTED)
        case BrokenPipeError():
            # Whoever read us has seen enough. stdout is pointed elsewhere, or Python complains while it closes it.
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            return 0
        case OSError():
            what = error.filename or "the output"
            return _complain(
                f"{what} can't be read or written: {error.strerror or error}", "check disk and permissions", 3
            )
    if isinstance(error, _Misuse):
        command = getattr(getattr(error, "ctx", None), "command_path", "graphcut")
        said = getattr(error, "format_message", error.__str__)()
        return _complain(said, f"`{command} --help` shows how", 2)
    return _complain(
        f"something went wrong inside graphcut: {type(error).__name__}: {error}",
        "that is a defect of graphcut; the same command with --debug shows where",
        3,
    )


def _open(place: Path) -> Cascade:
    from .cascade import open_cascade
    from .things import is_plan

    if place.suffix == ".onnx" and place.is_file():
        hint = f"`graphcut analyze {shlex.quote(str(place))}` shows where it can be cut"
        raise UsageError(f"{place} is a model, not a cascade", hint=hint)
    if is_plan(place):
        hint = f"`graphcut split MODEL --plan {shlex.quote(str(place))}` makes one"
        raise UsageError(f"{place} is a plan, not a cascade", hint=hint)
    return open_cascade(place)


_BARE: Final = {"--cuts": "0", "--heads": "", "--prove": "30"}
"""Options that may stand without a value, which typer's can't, and what they then mean."""


def _with_bare_words(arguments: Sequence[str]) -> list[str]:
    """The arguments, with a value behind each option that stands without one."""
    made = list(arguments)
    for i, word in enumerate(arguments):
        following = arguments[i + 1] if i + 1 < len(arguments) else "-"
        is_value = following.isdigit() if word != "--heads" else not following.startswith("-")
        if word in _BARE and (not is_value or following.endswith(".onnx")):
            made[i] = f"{word}={_BARE[word]}"
    return made


def _complain(message: str, hint: str, code: int) -> int:
    sys.stderr.write(f"error: {' '.join(message.split())}\n")
    if hint:
        sys.stderr.write(f" hint: {' '.join(hint.split())}\n")
    return code


@app.callback(invoke_without_command=True)
def _options(
    version: Annotated[bool, typer.Option("--version", help="Print the versions that matter in a bug report.")] = False,
    no_color: Annotated[bool, typer.Option("--no-color", help="No colour; NO_COLOR does the same.")] = False,
) -> None:
    if no_color:
        os.environ["NO_COLOR"] = "1"
    if version:
        from importlib.metadata import version as installed

        python = ".".join(str(number) for number in sys.version_info[:3])
        sys.stdout.write(
            f"graphcut {__version__} (python {python}, onnx {installed('onnx')}, "
            f"onnxruntime {installed('onnxruntime')})\n"
        )
        raise typer.Exit


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
    from .demos import write

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
    _say(f"wrote {goal}")
    _say_next(f"graphcut analyze {shlex.quote(str(goal))}")


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
    from .analysis import analyze as look
    from .drawing.scenes import scene_of_analysis
    from .drawing.terminal import cheapest, draw_cut_points, draw_scene

    analysis = look(_load(model, dim))
    if as_json:
        from .drawing.json import analysis_record

        _print_json(analysis_record(analysis))
    elif cuts is not None:
        points = analysis.cut_points
        for line in draw_cut_points(cheapest(points, cuts) if cuts else points):
            sys.stdout.write(f"{line}\n")
    else:
        scene = scene_of_analysis(analysis)
        _print(lambda console: draw_scene(scene, console))
        if scene.following:
            _say_next(scene.following)


def _planned(wish: Wish, opened: Model) -> Plan:
    from .analysis import analyze as look
    from .costs.tables import read_table
    from .costs.weighing import weigh
    from .planning.files import replay, with_outcome
    from .planning.goals import At
    from .planning.plans import plan as make
    from .planning.plans import usual_dims, with_figures

    analysis = look(opened)
    if wish.goal is None:
        file = cast("Path", wish.replayed)
        made = replay(analysis, file)
        if isinstance(made.goal, At):
            return made
        return with_outcome(with_figures(analysis, made, weigh(opened, made.dims)), file)
    if isinstance(wish.goal, At):
        return make(analysis, wish.goal, limits=wish.limits)
    costs = weigh(opened, usual_dims(analysis, wish.goal, wish.profile, wish.tokens))
    table = read_table(wish.table) if wish.table else None
    return make(analysis, wish.goal, limits=wish.limits, costs=costs, table=table, prove_s=wish.prove_s)


def _check_goal_file(output: Path | None, *, force: bool, option: str = "-o") -> None:
    """What can be known of a file to write before the work is done."""
    if output is None:
        return
    if output.exists() and not force:
        raise UsageError(f"{output} stands there already", hint=f"choose another name with {option}, or add --force")
    if not output.absolute().parent.is_dir():
        raise UsageError(f"there is no folder {output.parent}", hint=f"make it first, or choose another with {option}")


@app.command()
@asking
def plan(
    wish: Wish,
    model: ModelFile,
    output: Annotated[
        Path | None, typer.Option("--output", "-o", metavar="FILE", help="Save the plan, to edit and replay it.")
    ] = None,
    explain: Annotated[bool, typer.Option("--explain", help="Why each cut is where it is.")] = False,
    dim: Dims = None,
    force: Force = False,
    as_json: AsJson = False,
) -> None:
    """Show the best cut for a goal: parts, what crosses, what it costs, and how good it is at best."""
    from .analysis import analyze as look
    from .drawing.scenes import scene_of_plan
    from .drawing.terminal import draw_scene
    from .planning.files import save_plan

    _check_goal_file(output, force=force)
    opened = _load(model, dim)
    made = _planned(wish, opened)
    if output is not None:
        save_plan(made, opened, output)
    if as_json:
        from .drawing.json import plan_record

        _print_json(plan_record(made, opened))
        return
    scene = scene_of_plan(made, look(opened))
    _print(lambda console: draw_scene(scene, console, explain=explain))
    if output is not None:
        _say(f"wrote {output}")
        _say_next(f"graphcut split {shlex.quote(str(model))} --plan {shlex.quote(str(output))}")


@app.command()
@asking
def split(
    wish: Wish,
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
    from .splitting import describe, prepare, write
    from .units import size

    _check_goal_file(report, force=force, option="--report")
    if report is not None and report.suffix not in {".html", ".htm"}:
        raise UsageError(f"{report} would hold a page, and is not called like one", hint="name an .html file")
    opened = _load(model, dim)
    cut = prepare(opened, _planned(wish, opened), output, weights=weights)
    if dry_run and as_json:
        from .drawing.json import cut_record

        _print_json(cut_record(cut))
        return
    if dry_run:
        for line in describe(cut):
            sys.stdout.write(f"{line}\n")
        sys.stdout.write(f"{size(cut.bytes_to_write)} would be written; nothing was\n")
        return
    with _progress(cut, quiet=quiet or as_json) as told:
        cascade = write(cut, force=force, progress=told)
    if report is not None:
        from .drawing.html import html_of
        from .drawing.scenes import scene_of_cascade

        _put_text(html_of(scene_of_cascade(cascade, opened)), report)
    _show(cascade, opened, as_json=as_json, quiet=quiet)
    if not (quiet or as_json):
        _say_next(f"graphcut verify {shlex.quote(str(_shortest(cascade)))}")


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
    from .analysis import analyze as look
    from .costs.tables import save_table, table_of
    from .costs.weighing import weigh
    from .drawing.weighed import draw_table
    from .planning.plans import decoder_dims

    for name, value in {"--rounds": rounds, "--memory": memory, "--inputs": inputs}.items():
        if value is not None and not measure:
            raise UsageError(f"{name} says something about --measure, which is not asked for", hint="add --measure")
    _check_goal_file(output, force=force)
    opened = _load(model, dim)
    dims = decoder_dims(look(opened), profile, tokens)
    costs = weigh(opened, dims)
    table = _measured(opened, dims, rounds or 5, memory, inputs) if measure else table_of(costs)
    save_table(table, output)
    _print(lambda console: draw_table(table, costs, console))
    if any(symbol not in costs.dims for symbol in opened.symbols):
        _say(f"note: {_notes_on_sizes(opened)[0]}")
    _say(f"wrote {output}")


def _measured(opened: Model, dims: Mapping[str, int], rounds: int, memory: str | None, inputs: Path | None) -> Table:
    from .feeding import read_inputs
    from .measuring.measured import measure
    from .model import load
    from .units import parse_bytes

    model = load(opened.path, dims={name: number for name, number in dims.items() if name in opened.symbols})
    fed = read_inputs(inputs, model.graph.reads, tensors=model.tensors) if inputs else None
    limit = None if memory is None else parse_bytes(memory)
    return measure(model, rounds=rounds, inputs=fed, memory_bytes=limit).table


@app.command()
def verify(
    place: CascadePlace,
    model: Annotated[Path | None, typer.Option(metavar="FILE", help="The model it was cut from, if it moved.")] = None,
    inputs: Inputs = None,
    seed: Annotated[int, typer.Option(help="For inputs that are made up.")] = 0,
    optimized: Annotated[
        bool, typer.Option("--optimized", help="Compare with optimisations on, as users run it.")
    ] = False,
    structural: Annotated[
        bool, typer.Option("--structural", help="Prove it from the graphs alone; run nothing.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Prove that a cascade does what its model does. Exit code 1 if it doesn't."""
    from .drawing.terminal import draw_report
    from .feeding import read_inputs
    from .model import load
    from .verifying.reports import find_source
    from .verifying.reports import verify as compare

    cascade = _open(place)
    source = load(model, dims=cascade.manifest.dims) if model else find_source(cascade)
    fed = [read_inputs(file, source.graph.reads, tensors=source.tensors) for file in inputs or ()]
    report = compare(source, cascade, inputs=fed, seed=seed, optimized=optimized, structural_only=structural)
    if as_json:
        from .drawing.json import report_record

        _print_json(report_record(report))
    else:
        _print(lambda console: draw_report(report, cascade, console))
    if not report:
        raise typer.Exit(1)


@app.command()
def show(
    place: Annotated[
        Path, typer.Argument(metavar="THING", help="A model, a plan, the folder of a cascade or its manifest.")
    ],
    to: Annotated[
        Literal["terminal", "html", "svg", "dot", "mermaid", "json", "lingualinked"],
        typer.Option(help="As what: on screen, a page, a picture, text for others, LinguaLinked's maps."),
    ] = "terminal",
    output: Annotated[
        Path | None,
        typer.Option("--output", "-o", metavar="FILE", help="Where to; stdout without it, for what is text."),
    ] = None,
    part: Annotated[
        int | None, typer.Option(metavar="K", min=0, help="The nodes of one part of a cascade, with --to dot.")
    ] = None,
    model: Annotated[
        Path | None, typer.Option(metavar="FILE", help="The model of a plan or a cascade, if it moved.")
    ] = None,
    dim: Dims = None,
    force: Force = False,
    as_json: AsJson = False,
) -> None:
    """Show a model, a plan or a cascade: its parts, what crosses, and where cutting is cheap."""
    if part is not None and to != "dot":
        raise UsageError("--part shows the nodes of a part, and only DOT can", hint="add --to dot")
    if to == "terminal" and output is not None and not as_json:
        raise UsageError("a picture for the terminal goes to stdout", hint="leave -o out, or choose a --to")
    if to != "lingualinked":
        _check_goal_file(output, force=force)
    if as_json or to == "json":
        from .drawing.json import dumps

        _put_text(dumps(_record_at(place, dim)) + "\n", output)
    elif to == "lingualinked":
        from .exporting.lingualinked import export_lingualinked

        if output is None:
            raise UsageError("LinguaLinked's maps are a folder of files", hint="name it with -o DIR")
        for file in export_lingualinked(_open(place), output, force=force):
            _say(f"wrote {file}")
    elif to == "terminal":
        from .drawing.terminal import draw_scene
        from .things import scene_at

        scene = scene_at(place, model=model, dims=_dims(dim))
        _print(lambda console: draw_scene(scene, console, explain=True))
        if scene.following:
            _say_next(scene.following)
    else:
        _put_text(_drawn_at(place, to, part, model, _dims(dim)), output)


def _record_at(place: Path, dim: Sequence[str] | None) -> dict[str, Any]:
    """Everything that there is to say of a thing."""
    from .analysis import analyze as look
    from .drawing import json as pen
    from .things import is_plan

    if place.suffix == ".onnx":
        return pen.analysis_record(look(_load(place, dim)))
    if is_plan(place):
        from .planning.files import read_plan

        return pen.builtins(read_plan(place))
    return pen.cascade_record(_open(place))


def _drawn_at(
    place: Path,
    to: Literal["html", "svg", "dot", "mermaid"],
    part: int | None,
    model: Path | None,
    dims: dict[str, int],
) -> str:
    from .things import scene_at

    if part is not None:
        from .drawing.dot import dot_of_part

        return dot_of_part(_open(place), part)
    scene = scene_at(place, model=model, dims=dims)
    if to in {"dot", "mermaid"} and not scene.cards:
        raise UsageError(f"{place} is not cut: there are no parts to draw", hint="draw a plan or a cascade")
    match to:
        case "html":
            from .drawing.html import html_of

            return html_of(scene)
        case "svg":
            from .drawing.svg.sheet import svg_of

            return svg_of(scene)
        case "dot":
            from .drawing.dot import dot_of

            return dot_of(scene)
        case "mermaid":
            from .drawing.mermaid import mermaid_of

            return mermaid_of(scene)


def _put_text(text: str, output: Path | None) -> None:
    """Into a file, or onto stdout."""
    if output is None:
        sys.stdout.write(text)
        return
    from .placing import replacing

    with replacing(output) as new:
        new.write_text(text, encoding="utf-8")
    _say(f"wrote {output}")


@app.command()
def merge(
    place: CascadePlace,
    output: Annotated[Path, typer.Option("--output", "-o", metavar="FILE", help="The .onnx file to write.")],
    force: Force = False,
) -> None:
    """Put the parts of a cascade together again, into one model."""
    from .merging import merge as put_together
    from .structure import graph_digest

    cascade = _open(place)
    whole = put_together(cascade, output, force=force)
    is_original = graph_digest(whole.proto) == cascade.manifest.source.graph
    _say(f"wrote {output}: its graph equals that of the model that was cut" if is_original else f"wrote {output}")


@app.command()
def run(
    place: CascadePlace,
    inputs: Annotated[Path, typer.Option(metavar="FILE", help="A .npz file with the model's inputs by name.")],
    output: Annotated[Path, typer.Option("--output", "-o", metavar="FILE", help="The .npz file to write.")],
    force: Force = False,
) -> None:
    """Run a cascade, part by part, on the inputs of a file."""
    from .feeding import read_inputs
    from .running.saving import save_outputs
    from .running.sequential import run as run_parts

    if output.exists() and not force:
        raise UsageError(f"{output} stands there already", hint="choose another name with -o, or add --force")
    cascade = _open(place)
    outputs = run_parts(cascade, read_inputs(inputs, cascade.manifest.reads, tensors=cascade.tensors))
    save_outputs(outputs, output)
    for name, value in outputs.items():
        _say(f"{name}  {value.dtype}{list(value.shape)}")
    _say(f"wrote {output}")


def _load(path: Path, dim: Sequence[str] | None) -> Model:
    from .model import load

    return load(path, dims=_dims(dim))


def _dims(dim: Sequence[str] | None) -> dict[str, int]:
    dims: dict[str, int] = {}
    for text in dim or ():
        name, found, number = text.rpartition("=")
        if not (found and name and number.isascii() and number.isdigit()):
            raise UsageError(f"--dim {text} does not say NAME=N", hint="write it like --dim seq=128")
        dims[name] = int(number)
    return dims


def _notes_on_sizes(model: Model) -> list[str]:
    unbound = [symbol for symbol in model.symbols if symbol not in model.dims]
    return [f"sizes count {', '.join(unbound)} as 1; bind them with --dim NAME=N"] if unbound else []


def _show(cascade: Cascade, model: Model, *, as_json: bool, quiet: bool) -> None:
    from .drawing.scenes import scene_of_cascade
    from .drawing.terminal import draw_scene

    if as_json:
        from .drawing.json import cascade_record

        _print_json(cascade_record(cascade))
    elif quiet:
        sys.stdout.write(f"{cascade.path}\n")
    else:
        scene = scene_of_cascade(cascade, model)
        _print(lambda console: draw_scene(scene, console))


def _shortest(cascade: Cascade) -> Path:
    """The folder where that is enough to find the manifest, else the manifest."""
    return cascade.path.parent if cascade.path.name == "cascade.json" else cascade.path


def _console(*, stderr: bool = False) -> Console:
    from rich.console import Console

    stream = sys.stderr if stderr else sys.stdout
    width = None if stream.isatty() or "COLUMNS" in os.environ else _WIDE
    return Console(stderr=stderr, width=width, height=50 if width else None, highlight=False, soft_wrap=False)


def _print(draw: Callable[[Console], RenderableType]) -> None:
    console = _console()
    console.print(draw(console))


def _print_json(record: dict[str, Any]) -> None:
    from .drawing.json import dumps

    sys.stdout.write(dumps(record) + "\n")


def _say(text: str) -> None:
    sys.stderr.write(f"{text}\n")


def _say_next(command: str) -> None:
    _say(f"next: {command}")


@contextmanager
def _progress(cut: Cut, *, quiet: bool) -> Iterator[Callable[[str, int, int], None] | None]:
    """A bar over the bytes on a terminal, a line a file elsewhere."""
    if quiet:
        yield None
    elif not sys.stderr.isatty():
        seen: set[str] = set()

        def announce(file: str, _moved: int, _total: int) -> None:
            if file not in seen:
                seen.add(file)
                _say(f"writing {file}")

        yield announce
    else:
        from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TransferSpeedColumn

        columns = TextColumn("writing {task.description}"), BarColumn(), DownloadColumn(binary_units=True)
        with Progress(*columns, TransferSpeedColumn(), console=_console(stderr=True), transient=True) as bar:
            task = bar.add_task("", total=cut.bytes_to_write)
            yield lambda file, moved, _total: bar.update(task, description=file, advance=moved)
