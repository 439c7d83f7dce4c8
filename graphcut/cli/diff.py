"""The command `graphcut diff`."""

from pathlib import Path
from typing import Annotated

from typer import Argument

from .common_options import AsJson, Dims, Force, OriginalModel, Output, parsed_dims
from .output import check_output, put_drawing, put_text


def diff(
    before: Annotated[Path, Argument(metavar="BEFORE", help="A plan, or the folder or manifest of a cascade.")],
    after: Annotated[Path, Argument(metavar="AFTER", help="Another plan or cascade of the same model.")],
    output: Annotated[Path | None, Output(help="A text file; with --json or the ending .json a JSON file.")] = None,
    model: OriginalModel = None,
    dim: Dims = None,
    force: Force = False,
    as_json: AsJson = False,
) -> None:
    """Say what changed between two plans or cascades of a model."""
    from ..drawing.changes.differences import changes_between
    from ..drawing.json_records import dumps
    from ..drawing.opening import scene_at
    from ..drawing.terminal.changes import draw_changes

    check_output(output, force=force)
    sizes = parsed_dims(dim)
    changes = changes_between(*(scene_at(one, model=model, dims=sizes) for one in (before, after)))
    if as_json or (output is not None and output.suffix.lower() == ".json"):
        put_text(dumps(changes) + "\n", output)
    else:
        put_drawing(lambda console: draw_changes(changes, console), output)
