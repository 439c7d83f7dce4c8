"""Inputs and outputs of runs: one file of each, a folder of each, or generated inputs."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from ..core.arguments import OnError
from ..core.errors import GraphcutError, UsageError
from .output import check_output, say

if TYPE_CHECKING:
    from .. import Model
    from ..core.manifest import Cascade

RANDOM: Final = Path("random")
_SHOWN: Final = 4  #: the values of an output that are printed.


@dataclass
class FeedReader:
    """The inputs of a run, each read when it is needed, and the files of their outputs.

    An input that can't be read ends the iteration, or is skipped; feeds before it may still be in flight.
    """

    cascade: Cascade  #: the cascade that they are for.
    inputs: Sequence[Path]  #: .npz files, folders of ONNX test data, or the word `random`.
    outputs: Sequence[Path]  #: the file for the outputs of each; empty if they are printed.
    folder: Path | None  #: the folder of the outputs; None for a single input, whose output file has a name of its own.
    on_error: OnError  #: stop at an input that fails or can't be read, or go on.
    generated: Mapping[str, object] = field(default_factory=dict)  #: the feed that `random` stands for.
    fed: deque[int] = field(default_factory=deque)  #: the inputs that were read and are not answered yet, in order.
    unread: list[GraphcutError] = field(default_factory=list)  #: why inputs could not be read.

    def __len__(self) -> int:
        return len(self.inputs)

    def __iter__(self) -> Iterator[Mapping[str, object]]:
        from .. import load_readers, read_inputs

        load_readers(self.inputs)  # now: what the process has is measured when the first input has been read
        reads, tensors = self.cascade.manifest.reads, self.cascade.tensors
        for index, path in enumerate(self.inputs):
            try:
                feed = self.generated if is_random(path) else read_inputs(path, reads, tensors=tensors)
            except GraphcutError as error:
                self.unread.append(error)
                if self.on_error == "raise":
                    return
            else:
                self.fed.append(index)
                yield feed


def is_random(inputs: Path) -> bool:
    """Whether inputs are to be generated: the word `random` is given, and there is no file of that name."""
    return inputs == RANDOM and not inputs.exists()


def read_given(inputs: Sequence[Path] | None, model: Model) -> list[dict[str, object]]:
    """The inputs in files; none for `random`, since inputs are then generated."""
    from .. import read_inputs

    return [read_inputs(f, model.graph.reads, tensors=model.tensors) for f in inputs or () if not is_random(f)]


def read_or_generate(inputs: Path, model: Model, seed: int) -> dict[str, Any]:
    """The inputs for `model` in a file, or random ones, which is reported."""
    from .. import generate_inputs, read_inputs

    if not is_random(inputs):
        return read_inputs(inputs, model.graph.reads, tensors=model.tensors)
    feeds = generate_inputs(model, seed=seed)
    say_generated(feeds, seed)
    return feeds


def say_generated(feeds: Mapping[str, object], seed: int) -> None:
    told = [f"{name} {type_of(value)}" for name, value in feeds.items()]
    more = [f"and {len(told) - 3} more"] if len(told) > 4 else []
    say(f"inputs generated with --seed {seed}: {', '.join([*told[: 3 if more else 4], *more]) or 'none'}")


def type_of(value: object) -> str:
    """Type and shape of an array, such as `float32[2, 3]`; of anything else its Python type."""
    shape = getattr(value, "shape", None)
    return type(value).__name__ if shape is None else f"{getattr(value, 'dtype', '')}{list(shape)}"


def value_text(value: object) -> str:
    """The first values of an array, and the least and the largest; nothing for what has none."""
    import numpy as np

    if not isinstance(value, np.ndarray) or not value.size:
        return ""
    first = [f"{one:.6g}" if isinstance(one, float) else str(one) for one in value.ravel()[:_SHOWN].tolist()]
    more = ", ..." if value.size > _SHOWN else ""
    is_plain = value.dtype.kind in "biuf"
    return f"{', '.join(first)}{more}" + (f"; min {value.min():.6g}, max {value.max():.6g}" if is_plain else "")


def feed_reader(
    cascade: Cascade, given: Sequence[Path], output: Path | None, on_error: OnError, *, force: bool
) -> FeedReader:
    """The inputs that a command line names, those of a folder by name, and where their outputs go."""
    inputs = files_of(given)
    if output is None:
        return FeedReader(cascade, inputs, [], None, on_error)
    if len(given) == 1 and inputs == [*given]:
        if output.is_dir():
            raise UsageError(f"{output} is a folder, and one input makes one file", hint=f"write -o {output}/NAME.npz")
        check_output(output, cascade.root, *given, force=force)
        return FeedReader(cascade, given, [output], None, on_error)
    names = [path.name.removesuffix(".npz") + ".npz" for path in inputs]
    if twice := [name for name, times in Counter(names).items() if times > 1]:
        raise UsageError(f"two inputs would have the same output file {output / twice[0]}", hint="rename one of them")
    if output.exists() and not output.is_dir():
        raise UsageError(f"{output} is a file, and {len(inputs)} inputs make a folder of files", hint="name a folder")
    check_output(output, force=True)
    outputs = [output / name for name in names]
    if read := {*map(Path.resolve, inputs)}.intersection(map(Path.resolve, outputs)):
        raise UsageError(f"{min(read)} is also to be read", hint="choose another folder with -o")
    if not force and (there := next(filter(Path.exists, outputs), None)):
        raise UsageError(f"{there} already exists", hint="choose another folder with -o, or add --force")
    return FeedReader(cascade, inputs, outputs, output, on_error)


def files_of(given: Sequence[Path]) -> list[Path]:
    """The inputs that a command line names, those of a folder by name."""
    return [path for one in given for path in _inside(one)]


def _is_test_data(path: Path) -> bool:
    return path.is_dir() and any(path.glob("input_*.pb"))


def _inside(path: Path) -> list[Path]:
    """The inputs in a folder of several; else the path itself."""
    if not path.is_dir() or _is_test_data(path):
        return [path]
    found = [one for one in sorted(path.iterdir()) if one.suffix == ".npz" or _is_test_data(one)]
    if not found:
        raise UsageError(f"{path} holds no inputs", hint="inputs are .npz files or folders with input_0.pb and so on")
    return found
