"""What the help of commands has besides options: their panels, and examples."""

from collections.abc import Mapping, Sequence
from typing import Final

_GOALS: Final = "num-splits memory cluster objective at-nodes heads"
_SESSIONS: Final = "provider allow-fallback optimize"
_PANELS_OF: Final[Mapping[str, Mapping[str, str]]] = {
    "demo": {"Output": "output external force", "Size of the llm": "hidden layers attention-heads kv-heads"},
    "plan": {
        "Goal and output": f"{_GOALS} output",
        "Limits": "pin avoid inside-layers recompute boundary-dtype",
        "Costs": "count cost-model profile prove",
        "Cluster": "in-flight outputs ranks sum",
    },
    "split": {
        "Goal and output": f"{_GOALS} plan output",
        "Ranks": "ranks sum one-file",
        "Output": "weights max-shard-size digest dry-run",
    },
    "auto": {
        "Goal and output": f"{_GOALS} output to",
        "Accuracy": "precision accept inputs seed text calibration fuse",
        "Repetition": "replay keep",
    },
    "run": {
        "Inputs and output": "inputs output outputs seed",
        "Workers": "via workers micro-batch deadline trace insecure",
        "Memory": "memory exact",
        "Sessions": _SESSIONS,
    },
    "generate": {
        "Prompt": "prompt chat max-tokens stop prompt-ids",
        "Sampling": "temperature top-k top-p repetition-penalty seed",
        "Workers": "via workers batch insecure",
        "Memory": "memory exact max-context cache-prefix",
        "Sessions": _SESSIONS,
    },
    "simulate": {"Load": "cluster requests rate in-flight", "Failures": "fail copies", "Output": "trace"},
    "bench": {"Measurement": "inputs way rounds optimize"},
    "extract": {"Tensors and output": "from until expose output"},
    "link": {"Checkpoint and output": "checkpoint output"},
    "export": {"Format and output": "to output"},
    "verify": {"Inputs": "inputs seed structural files"},
    "show": {"Format and output": "to output open"},
    "compare": {"Models": "tolerance inputs seed optimize provider"},
    "measure": {"What and output": "computed output"},
    "analyze": {"Output": "cuts axes json"},
}
"""The panels of options that a command has before those of all commands, the most needed first."""

_PANELS: Final[Mapping[str, str]] = {"Inputs": "inputs seed", "Output": "output force json", "Model": "model dim state"}
_OTHERS: Final = "Advanced"

EXAMPLES: Final[Mapping[str, Sequence[str]]] = {
    "demo": ("graphcut demo llm", "graphcut demo unet", "graphcut demo llm -o wide.onnx --hidden 128 --layers 4"),
    "analyze": ("graphcut analyze llm.onnx", "graphcut analyze llm.onnx --cuts 5", "graphcut analyze llm.onnx --axes"),
    "plan": (
        "graphcut plan llm.onnx --num-splits 3 -o plan.json",
        "graphcut plan llm.onnx --memory 900kB --num-splits 2",
        "graphcut plan unet.onnx --cluster cluster.toml --objective latency",
    ),
    "split": (
        "graphcut split llm.onnx --num-splits 2",
        "graphcut split llm.onnx --plan plan.json -o planned.parts",
        "graphcut split unet.onnx --cluster cluster.toml",
    ),
    "verify": ("graphcut verify llm.parts", "graphcut verify llm.parts --files"),
    "show": (
        "graphcut show plan.json",
        "graphcut show llm.parts -o report.html",
        "graphcut show unet.parts --to devices",
    ),
    "compare": (
        "graphcut compare llm.parts planned.parts",
        "graphcut compare llm.onnx llm.onnx --optimize all --tolerance 1e-4",
    ),
    "auto": (
        "graphcut auto unet.onnx --num-splits 2 -o auto.parts",
        "graphcut auto unet.onnx --precision fp16 --memory 400kB -o half.parts",
    ),
    "run": (
        "graphcut run unet.parts --inputs random",
        "graphcut run llm.parts --inputs random -o y.npz --memory 500MB",
        "graphcut run unet.parts --inputs random -o mask.npz --via threads",
    ),
    "generate": (
        "graphcut generate llm.parts --prompt-ids 1,15,27 --max-tokens 8",
        "graphcut generate llm.parts --prompt-ids random --temperature 0.8 --top-k 40",
    ),
    "fetch": ("graphcut fetch unet.parts --part 0 -o first", "graphcut fetch unet.parts --device board -o board"),
    "bench": ("graphcut bench unet.parts --way parts --rounds 1", "graphcut bench llm.parts --way threads --rounds 1"),
    "simulate": (
        "graphcut simulate unet.parts --cluster cluster.toml --requests 100",
        "graphcut simulate unet.parts --cluster cluster.toml --fail board@0.5+1",
    ),
    "extract": (
        "graphcut extract llm.onnx --until /model/layers.1/add_1 -o front.onnx",
        "graphcut extract llm.onnx --from /model/norm/Mul --until logits -o head.onnx",
    ),
    "merge": ("graphcut merge llm.parts -o whole.onnx",),
    "link": ("graphcut link llm.onnx --checkpoint checkpoint -o linked.onnx",),
    "measure": (
        "graphcut measure unet.onnx -o costs.csv --rounds 2",
        "graphcut measure machine -o laptop.toml --seconds 1",
        "graphcut measure cluster -o measured.toml",
    ),
    "export": ("graphcut export llm.parts --to js -o web", "graphcut export unet.parts --to triton -o triton"),
}
"""Commands that work in this order in a folder with `cluster.toml` and `checkpoint`; that of a cluster needs Ray."""


def panels_of(command: str, options: Sequence[str]) -> dict[str, list[str]]:
    """The options of each panel of a command, by its title.

    >>> panels_of("merge", ["connect", "force", "output"])
    {'Inputs': [], 'Output': ['output', 'force'], 'Model': [], 'Advanced': ['connect']}
    """
    found: dict[str, list[str]] = {}
    left = list(options)
    for title, names in (*_PANELS_OF.get(command, {}).items(), *_PANELS.items()):
        found.setdefault(title, []).extend(name for name in names.split() if name in left)
        left = [name for name in left if name not in found[title]]
    return {**found, _OTHERS: left}
