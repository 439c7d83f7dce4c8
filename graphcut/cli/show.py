"""The command `graphcut show`."""

from __future__ import annotations

import webbrowser
from collections.abc import Collection
from pathlib import Path
from typing import TYPE_CHECKING, Final, Literal

import typer

from ..core.errors import GraphcutError, UsageError
from ..core.records import table
from ..core.text import shell_word
from .application import check_applicable, check_apply, given_options
from .common_options import Place, Places, Texts, parsed_dims
from .output import check_output, print_, print_lines, put_drawing, put_json, put_text, say, say_next, settings

if TYPE_CHECKING:
    from ..core.manifest import Cascade

Format = Literal["terminal", "html", "svg", "dot", "mermaid", "json"]

_SUFFIXES: Final = table("cli/suffixes.json", dict[Format, tuple[str, ...]])  #: the ends of file names by format.


def show(
    ctx: typer.Context,
    thing: Path,
    to: Literal["terminal", "html", "svg", "dot", "mermaid", "json", "devices"] = "terminal",
    output: Place = None,
    compared: Places = None,
    model: Place = None,
    dims: Texts = None,
    force: bool = False,
    opens: bool = False,
) -> None:
    """Draw a model, a plan or a cascade.

    With --to devices the parts of each device of a cascade, and two commands. The first makes its folder, to be copied
    there to the same path; the second, given there, makes it a device of a Ray cluster.

    Examples:
        graphcut show plan.json
        graphcut show llm.parts -o report.html
        graphcut show unet.parts --to devices
    """
    given = given_options(ctx)
    if to == "devices":
        check_apply(given, ("--output", "--compare", "--model", "--dim", "--force", "--open"), "--to devices")
        from .. import open_cascade

        _show_devices(open_cascade(thing, check_files=False))
        return
    form = _format("html" if opens and output is None and to == "terminal" else to, output, is_given="--to" in given)
    if opens and form != "html":
        raise UsageError(f"--open shows the page, not {form}", hint="leave out --to, or write -o NAME.html")
    _check(given, thing, form)
    check_output(output, thing, force=force)
    from ..drawing.opening import record_at, rendered, scene_at

    if form == "json":
        put_json(record_at(thing, dims=parsed_dims(dims)), output)
        return
    scene = scene_at(thing, model=model, dims=parsed_dims(dims))
    if form == "terminal":
        from ..drawing.terminal.scene import draw_scene

        put_drawing(lambda screen: draw_scene(scene, screen, explain=True), output)
        if output is None:
            say_next(scene.next_command)
    else:
        text = rendered(scene, form, compared or (), settings.words)
        output = _temporary_page(thing) if opens and output is None else output
        put_text(text, output)
        if opens and output is not None and not webbrowser.open(output.absolute().as_uri()):
            raise GraphcutError("no browser could be started", hint=f"open {output} yourself")


def _show_devices(cascade: Cascade) -> None:
    from ..drawing.terminal.devices import draw_devices

    if not cascade.manifest.devices:
        hint = "split for a cluster with --cluster FILE, or use --part of `graphcut fetch`"
        raise UsageError(f"{cascade.path} was not planned for devices", hint=hint)
    print_(lambda screen: draw_devices(cascade, screen))
    for host in cascade.manifest.devices:
        name, resources = shell_word(host.name), shell_word(f'{{"dev:{host.name}": 1}}')
        print_lines("")
        print_lines(f"graphcut fetch {shell_word(str(cascade.root))} --device {name} -o {name}")
        print_lines(f"ray start --address=HEAD:6379 --resources={resources}")
    say("note: on the head, where you call graphcut: --head --port=6379 instead of --address=HEAD:6379")


def _temporary_page(thing: Path) -> Path:
    """An empty file that stays after the command has ended: a browser reads it then."""
    import tempfile

    with tempfile.NamedTemporaryFile(prefix=f"{thing.resolve().stem}-", suffix=".html", delete=False) as file:
        return Path(file.name)


def _format(to: Format, output: Path | None, *, is_given: bool) -> Format:
    """The format that --to names, or else the name of the file."""
    if output is None:
        return to
    named = next((name for name, suffixes in _SUFFIXES.items() if output.suffix.lower() in suffixes), None)
    if is_given and output.suffix and named != to:
        also = f", or leave out --to for {named}" if named else ""
        hint = f"write -o {output.with_suffix(_SUFFIXES[to][0])}{also}"
        raise UsageError(f"{output} is not a file name for {to}", hint=hint)
    if not is_given and named is None:
        known = ", ".join(suffixes[0] for suffixes in _SUFFIXES.values())
        raise UsageError(f"{output}: no format is known by this file name", hint=f"use one of {known}; or add --to")
    return to if is_given or named is None else named


def _check(given: Collection[str], thing: Path, form: Format) -> None:
    """Refuse options that would do nothing."""
    from ..drawing.path_kinds import kind_of

    check_applicable(given, {"--compare": ["--to html"]}, [f"--to {form}"])
    if form == "json":
        kind = kind_of(thing)
        check_apply(given, ("--model",) if kind == "model" else ("--model", "--dim"), f"the JSON of a {kind}")
