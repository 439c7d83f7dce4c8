"""Pictures of a model, a plan or a cascade: show."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from ..errors import UsageError
from .telling import print_, put_text, say, say_next
from .words import AsJson, Dims, Force, app, check_goal_file, dims, load, open_


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
        check_goal_file(output, force=force)
    if as_json or to == "json":
        from ..drawing.json import dumps

        put_text(dumps(_record_at(place, dim)) + "\n", output)
    elif to == "lingualinked":
        from ..exporting.lingualinked import export_lingualinked

        if output is None:
            raise UsageError("LinguaLinked's maps are a folder of files", hint="name it with -o DIR")
        for file in export_lingualinked(open_(place), output, force=force):
            say(f"wrote {file}")
    elif to == "terminal":
        from ..drawing.terminal import draw_scene
        from ..things import scene_at

        scene = scene_at(place, model=model, dims=dims(dim))
        print_(lambda console: draw_scene(scene, console, explain=True))
        if scene.following:
            say_next(scene.following)
    else:
        put_text(_drawn_at(place, to, part, model, dims(dim)), output)


def _record_at(place: Path, dim: Sequence[str] | None) -> dict[str, Any]:
    """Everything that there is to say of a thing."""
    from ..analysis import analyze as look
    from ..drawing import json as pen
    from ..things import is_plan

    if place.suffix == ".onnx":
        return pen.analysis_record(look(load(place, dim)))
    if is_plan(place):
        from ..planning.files import read_plan

        return pen.builtins(read_plan(place))
    return pen.cascade_record(open_(place))


def _drawn_at(
    place: Path,
    to: Literal["html", "svg", "dot", "mermaid"],
    part: int | None,
    model: Path | None,
    dims: dict[str, int],
) -> str:
    from ..things import scene_at

    if part is not None:
        from ..drawing.dot import dot_of_part

        return dot_of_part(open_(place), part)
    scene = scene_at(place, model=model, dims=dims)
    if to in {"dot", "mermaid"} and not scene.cards:
        raise UsageError(f"{place} is not cut: there are no parts to draw", hint="draw a plan or a cascade")
    match to:
        case "html":
            from ..drawing.html import html_of

            return html_of(scene)
        case "svg":
            from ..drawing.svg.sheet import svg_of

            return svg_of(scene)
        case "dot":
            from ..drawing.dot import dot_of

            return dot_of(scene)
        case "mermaid":
            from ..drawing.mermaid import mermaid_of

            return mermaid_of(scene)
