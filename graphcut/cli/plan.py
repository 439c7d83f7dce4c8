"""The command `graphcut plan`."""

from pathlib import Path

from ..core.text import shell_word
from .common_options import Place, Texts, load
from .output import check_output, print_, put_json, say, say_next
from .plan_options import GoalOptions, TuningOptions


def plan(
    options: GoalOptions,
    tuning: TuningOptions,
    model: Path,
    output: Place = None,
    dims: Texts = None,
    states: Texts = None,
    force: bool = False,
    as_json: bool = False,
) -> None:
    """Find the best cut for a goal; write no parts.

    `graphcut show` explains each cut of a plan that is saved.

    Examples:
        graphcut plan llm.onnx --num-splits 3 -o plan.json
        graphcut plan unet.onnx --memory 2MB --num-splits 2
        graphcut plan unet.onnx --cluster cluster.toml --objective latency
    """
    from .. import analyze, plan_file, save_plan
    from ..drawing.scene_builders import scene_of_plan
    from ..drawing.terminal.scene import draw_scene

    table = None if tuning.cost_model is None else Path(tuning.cost_model)
    check_output(output, model, options.cluster, table, force=force)
    planner = options.planner(tuning)
    analysis = analyze(load(model, dims, states))
    made = planner(analysis)
    if output is not None:
        save_plan(made, analysis.model, output)
    if as_json:
        put_json(plan_file(made, analysis.model, Path()))
        return
    print_(lambda screen: draw_scene(scene_of_plan(made, analysis), screen))
    if output is not None:
        say(f"wrote {output}")
        say_next(f"graphcut split {shell_word(str(model))} --plan {shell_word(str(output))}")
