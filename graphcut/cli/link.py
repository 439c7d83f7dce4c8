"""The command `graphcut link`."""

from pathlib import Path

from ..core.text import shell_word
from ..core.units import count, size
from .common_options import load, say_gap
from .output import print_lines, say, say_next, settings, writing


def link(model: Path, checkpoint: Path, output: Path, transposed: bool = False, force: bool = False) -> None:
    """Refer to weights in safetensors files instead of copying them.

    Weights are found by their bytes, whatever their names. Those that are not found are copied to OUTPUT.data.

    Examples:
        graphcut link llm.onnx --checkpoint checkpoint -o linked.onnx
        graphcut link unet.onnx --checkpoint checkpoint -o found.onnx --transposed
    """
    from .. import link as linked

    opened = load(model, None)
    with writing(verb="looking up") as progress:
        made = linked(opened, checkpoint, output, transposed=transposed, force=force, progress=progress)
    if settings.is_quiet:
        print_lines(str(output))
        return
    kinds = {
        f"stay in {checkpoint}": [weight for weight in made.weights if weight.saved and not weight.is_transposed],
        "stay there transposed": [weight for weight in made.weights if weight.saved and weight.is_transposed],
        f"were not found, and are in {output.name}.data": made.copied,
    }
    for what, found in kinds.items():
        if found:
            print_lines(f"{count(len(found), 'weight')} ({size(sum(weight.bytes for weight in found))}) {what}")
    if made.copied:
        names = ", ".join(repr(weight.name) for weight in sorted(made.copied, key=lambda one: -one.bytes)[:3])
        say(f"note: the largest that were not found: {names}; the checkpoint has {', '.join(made.saved_dtypes)}")
    if there := [weight for weight in made.copied if weight.is_transposed]:
        held = f"{size(sum(weight.bytes for weight in there))} of these ({count(len(there), 'weight')})"
        say(f"note: {held} are in the checkpoint transposed: --transposed refers to them")
    say(f"wrote {output}")
    say_gap(model)
    say_next(f"graphcut split {shell_word(str(output))} --num-splits 2 --weights share")
