"""The command `graphcut analyze`."""

from pathlib import Path

from msgspec.structs import replace

from .common_options import Texts, load, parsed_provider
from .output import print_, print_lines, put_answer, put_json, say_next, settings


def analyze(
    model: Path,
    dims: Texts = None,
    cuts: int | None = None,
    axes: bool = False,
    rules: str | None = None,
    as_json: bool = False,
) -> None:
    """Show where a model can be cut, and what crosses each cut.

    Examples:
        graphcut analyze llm.onnx
        graphcut analyze llm.onnx --cuts 5
        graphcut analyze llm.onnx --rules xnnpack
    """
    from .. import analyze as analyzed
    from ..drawing.cut_points_tsv import cheapest, cut_points_tsv
    from ..drawing.scene_builders import scene_of_analysis
    from ..drawing.terminal.scene import draw_scene

    analysis = analyzed(load(model, dims))
    if rules is not None:
        from .. import ask, default_dims, device_support, read_rules, weigh
        from ..drawing.terminal.device_support import draw_support

        name, options = parsed_provider(rules)
        read = ask(analysis.model, name, options) if name.endswith("ExecutionProvider") else read_rules(rules)
        found = device_support(weigh(analysis.model, default_dims(analysis)), read)
        rows = (replace(row, helps=settings.words(row.helps)) for row in found.unsupported)
        found = replace(found, unsupported=tuple(rows))
        put_answer(found, lambda screen: draw_support(found, screen), as_json=as_json)
    elif as_json:
        from ..drawing.json_records import analysis_record

        put_json(analysis_record(analysis))
    elif axes:
        from ..drawing.axis_table import axis_table

        print_lines(*axis_table(analysis.model))
    elif cuts is not None:
        print_lines(*cut_points_tsv(cheapest(analysis.cut_points, cuts)))
    else:
        scene = scene_of_analysis(analysis)
        print_(lambda screen: draw_scene(scene, screen))
        say_next(scene.next_command)
