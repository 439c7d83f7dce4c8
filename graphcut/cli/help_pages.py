"""The panels that the help of commands has for their options."""

from collections.abc import Mapping, Sequence
from typing import Final

_GOALS: Final = "num-splits memory cluster objective at-nodes heads"
_SESSIONS: Final = "provider allow-fallback optimize"
_PANELS_OF: Final[Mapping[str, Mapping[str, str]]] = {
    "demo": {"Output": "output external force", "Size of the llm": "hidden layers attention-heads kv-heads"},
    "plan": {
        "Goal and output": f"{_GOALS} count output",
        "Limits": "pin avoid inside-layers recompute boundary-dtype",
        "Costs": "cost-model profile prove",
        "Cluster": "in-flight outputs ranks sum",
    },
    "split": {
        "Goal and output": f"{_GOALS} count plan output",
        "Ranks": "ranks sum one-file",
        "Output": "weights max-shard-size digest dry-run",
    },
    "auto": {
        "Goal and output": f"{_GOALS} count output to",
        "Accuracy": "precision accept inputs text calibration prepare",
        "Repetition": "replay keep",
    },
    "run": {
        "Inputs and output": "inputs output outputs seed",
        "Workers": "via workers micro-batch deadline trace insecure",
        "Memory": "memory exact",
        "Sessions": _SESSIONS,
    },
    "generate": {
        "Prompt": "prompt chat max-tokens stop draft prompt-ids",
        "Sampling": "temperature top-k top-p repetition-penalty seed",
        "Workers": "via workers batch insecure",
        "Memory": "memory exact cache-prefix",
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
    return {**found, "Advanced": left}
