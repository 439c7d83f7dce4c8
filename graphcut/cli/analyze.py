"""The command `graphcut analyze`."""

from typing import Annotated

from typer import Option

from .common_options import AsJson, Dims, ModelPath, load
from .output import print_, print_json, print_line, say_next

Discover = Annotated[bool, Option("--discover", help="Run operators without a rule, to find how they divide.")]


def analyze(
    model: ModelPath,
    dim: Dims = None,
    cuts: Annotated[int | None, Option(metavar="[N]", min=0, help="List all cut points, or the N cheapest.")] = None,
    axes: Annotated[bool, Option("--axes", help="List the axes along which layers can be divided.")] = False,
    discover: Discover = False,
    as_json: AsJson = False,
) -> None:
    """Show where a model can be cut, and what crosses each cut.

    With --axes along which axes its layers can be divided; --discover also runs operators without a rule.
    """
    from ..analysis.cut_points import Analysis
    from ..drawing.cut_points_tsv import cheapest, cut_points_tsv
    from ..drawing.scene_builders import scene_of_analysis
    from ..drawing.terminal.scene import draw_scene
    from ..sharding.axes.table import ClassRow, aligned, class_rows

    analysis = Analysis(load(model, dim))
    if discover:
        from ..verifying.found_rules import find_rules  # it loads ONNX Runtime

        analysis = Analysis(analysis.model, find_rules(analysis.model))
    if as_json:
        from ..drawing.json_records import analysis_record

        print_json(analysis_record(analysis))
    elif axes or discover:
        titles = ClassRow("divided alike", "units", "nodes", "weights", "blocked by", "axes of weights")
        for line in aligned([titles, *class_rows(analysis.model, analysis.axis_classes)]):
            print_line(line)
        for rule in analysis.found:
            print_line(f"found by running: {rule}")
    elif cuts is not None:
        points = analysis.cut_points
        for line in cut_points_tsv(cheapest(points, cuts) if cuts else points):
            print_line(line)
    else:
        scene = scene_of_analysis(analysis)
        print_(lambda console: draw_scene(scene, console))
        if scene.next_command:
            say_next(scene.next_command)
