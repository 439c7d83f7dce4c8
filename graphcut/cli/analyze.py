"""The command `graphcut analyze`."""

from typing import Annotated

from .common_options import AsJson, Dims, ModelPath, load
from .declaring import flag, takes
from .output import print_, print_line, put_json, say_next


def analyze(
    model: ModelPath,
    dims: Dims = None,
    cuts: Annotated[int | None, takes("[N]", "List all cut points, or the N cheapest.", min=0)] = None,
    axes: Annotated[bool, flag("List the axes along which layers can be divided.", "--axes")] = False,
    as_json: AsJson = False,
) -> None:
    """Show where a model can be cut, and what crosses each cut.

    Examples:
        graphcut analyze llm.onnx
        graphcut analyze llm.onnx --cuts 5
        graphcut analyze llm.onnx --axes
    """
    from .. import analyze as analyzed
    from ..drawing.cut_points_tsv import cheapest, cut_points_tsv
    from ..drawing.scene_builders import scene_of_analysis
    from ..drawing.terminal.scene import draw_scene

    analysis = analyzed(load(model, dims))
    if as_json:
        from ..drawing.json_records import analysis_record

        put_json(analysis_record(analysis))
    elif axes:
        from ..drawing.axis_table import axis_table

        for line in axis_table(analysis.model):
            print_line(line)
    elif cuts is not None:
        points = analysis.cut_points
        for line in cut_points_tsv(cheapest(points, cuts) if cuts else points):
            print_line(line)
    else:
        scene = scene_of_analysis(analysis)
        print_(lambda screen: draw_scene(scene, screen))
        if scene.next_command:
            say_next(scene.next_command)
