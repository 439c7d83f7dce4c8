"""The command `graphcut extract`."""

from pathlib import Path

from ..core.arguments import Storage
from ..core.errors import UsageError
from .common_options import Texts, names_in, say_gap, say_phases
from .output import say


def extract(
    model: Path,
    output: Path,
    from_: Texts = None,
    until: Texts = None,
    expose: Texts = None,
    assume: Texts = None,
    weights: Storage = "copy",
    force: bool = False,
) -> None:
    """Write the sub-model between tensors as one model.

    A node stands for the tensors that it writes. Without --from its inputs are those of the model, without --until its
    outputs.

    Examples:
        graphcut extract llm.onnx --until /model/layers.1/add_1 -o front.onnx
        graphcut extract llm.onnx --from /model/norm/Mul --until logits -o head.onnx
    """
    from .. import extract as extracted
    from .. import load
    from ..core.units import count, size

    reads, writes, more = (names_in(texts or ()) for texts in (from_, until, expose))
    if not (reads or writes or more or assume):
        raise UsageError("no tensor is named", hint="give --until, --from or --expose NAMES, or --assume NAME=VALUE")
    whole = load(model)
    made = extracted(
        whole,
        output,
        inputs=reads,
        outputs=writes,
        expose=more,
        assume=dict(map(_assumed, assume or ())),
        weights=weights,
        force=force,
    )
    graph = made.graph
    nodes = count(len(graph.nodes), "node") if assume else f"{len(graph.nodes):,} of {len(whole.graph.nodes):,} nodes"
    ends = f"{count(len(graph.reads), 'input')}, {count(len(graph.writes), 'output')}"
    say(f"wrote {output}: {nodes}, {size(made.weight_bytes)} of weights, {ends}")
    say_phases(whole.stepwise)
    say_gap(whole.path)


def _assumed(text: str) -> tuple[str, bool | float]:
    name, sign, value = text.rpartition("=")
    words: dict[str, bool | float] = {"true": True, "false": False}
    try:
        return name, words[value] if value in words else int(value) if value.lstrip("-").isdecimal() else float(value)
    except ValueError:
        problem = f"--assume {text}: expected NAME=VALUE{' with true, false or a number' * bool(sign)}"
        raise UsageError(problem, hint="for example --assume use_cache_branch=true") from None
