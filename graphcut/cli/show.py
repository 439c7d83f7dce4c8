"""Pictures of a model, a plan or a cascade, and what changed between two of them: show."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Literal

import typer

from ..core.errors import UsageError
from .common_options import AsJson, Dims, Force, app, check_goal_file, dims, open_
from .output import print_, put_text, say, say_next

To = Literal["terminal", "html", "svg", "dot", "mermaid", "json", "lingualinked"]


@app.command()
def show(
    place: Annotated[
        Path, typer.Argument(metavar="THING", help="A model, a plan, the folder of a cascade or its manifest.")
    ],
    other: Annotated[
        Path | None,
        typer.Argument(
            metavar="[THING]", help="Another plan or cascade of the same model: what changed from the first."
        ),
    ] = None,
    to: Annotated[
        To, typer.Option(help="As what: on screen, a page, a picture, text for others, LinguaLinked's maps.")
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
    """Show a model, a plan or a cascade: its parts, what crosses, and where cutting is cheap. Of two, what changed."""
    to = "json" if as_json else to
    _check_words(place, other, to, output, part, model, dim is not None)
    if to != "lingualinked":
        check_goal_file(output, force=force)
    sizes = dims(dim)
    if other is not None:
        _show_changes(place, other, to, output, model, sizes)
    elif to == "lingualinked":
        _export(place, output, model, sizes, force=force)
    elif to == "terminal":
        _show_on_terminal(place, model, sizes)
    elif to == "json":
        from ..drawing.json_records import dumps
        from ..drawing.opening import record_at

        put_text(dumps(record_at(place, dims=sizes)) + "\n", output)
    elif part is not None:
        from ..drawing.dot import dot_of_part

        put_text(dot_of_part(open_(place), part), output)
    else:
        from ..drawing.opening import rendered_at

        put_text(rendered_at(place, to, model=model, dims=sizes), output)


def _check_words(
    place: Path, other: Path | None, to: To, output: Path | None, part: int | None, model: Path | None, is_sized: bool
) -> None:
    """Words that would do nothing, or contradict each other."""
    from ..drawing.opening import is_model

    if part is not None and to != "dot":
        raise UsageError("--part shows the nodes of a part, and only DOT can", hint="add --to dot")
    if to == "terminal" and output is not None:
        raise UsageError("a picture for the terminal goes to stdout", hint="leave -o out, or choose a --to")
    if other is not None and to not in {"terminal", "json"}:
        raise UsageError(
            f"what changed between two things is told on the terminal or as JSON, not as {to}",
            hint="leave --to out or use --json, or name one thing",
        )
    if other is not None:
        return
    if model is not None and (to == "json" or part is not None):
        what = "the JSON of a thing is" if to == "json" else "the nodes of a part are"
        raise UsageError(f"--model adds nothing here: {what} read from its own files", hint="leave --model out")
    if is_sized and (part is not None or (to == "json" and not is_model(place))):
        what = "the nodes of a part are drawn without sizes" if part is not None else f"{place} is told as it stands"
        raise UsageError(f"--dim changes nothing here: {what}", hint="leave --dim out")


def _show_on_terminal(place: Path, model: Path | None, sizes: Mapping[str, int]) -> None:
    from ..drawing.opening import scene_at
    from ..drawing.terminal import draw_scene

    scene = scene_at(place, model=model, dims=sizes)
    print_(lambda console: draw_scene(scene, console, explain=True))
    if scene.following:
        say_next(scene.following)


def _show_changes(
    place: Path, other: Path, to: To, output: Path | None, model: Path | None, sizes: Mapping[str, int]
) -> None:
    from ..drawing.changes import changes_between, changes_record, draw_changes
    from ..drawing.json_records import dumps
    from ..drawing.opening import scene_at

    changes = changes_between(*(scene_at(thing, model=model, dims=sizes) for thing in (place, other)))
    if to == "json":
        put_text(dumps(changes_record(changes)) + "\n", output)
    else:
        print_(lambda console: draw_changes(changes, console))


def _export(place: Path, folder: Path | None, model: Path | None, sizes: Mapping[str, int], *, force: bool) -> None:
    from ..drawing.opening import source_of, with_dims
    from ..exporting.lingualinked import export_lingualinked

    if folder is None:
        raise UsageError("LinguaLinked's maps are a folder of files", hint="name it with -o DIR")
    cascade = with_dims(open_(place), sizes)
    source = None if model is None else source_of(cascade, model)
    tensor_bytes = None if source is None else source.tensor_bytes
    for file in export_lingualinked(cascade, folder, sizes=tensor_bytes, force=force):
        say(f"wrote {file}")
