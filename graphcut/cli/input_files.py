"""Inputs and outputs of runs as files: one of each, or a folder of each."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from ..core.errors import UsageError
from .common_options import check_goal_file

if TYPE_CHECKING:
    from ..core.manifest import Cascade


@dataclass(frozen=True)
class InputFiles:
    """Inputs of a run, each a .npz file or a folder of ONNX test data, and where the outputs go.

    Attributes:
        cascade: whose inputs they are.
        places: where they lie.
        goals: where the outputs for each go.
        folder: the folder of the outputs; None where there is but one file, which has a name of its own.
    """

    cascade: Cascade
    places: Sequence[Path]
    goals: Sequence[Path]
    folder: Path | None

    def __len__(self) -> int:
        return len(self.places)


@dataclass
class FeedFiles:
    """Inputs that are read when it is their turn.

    One that can't be read ends them, or is left out: those before it, which may still be on their way, are answered.

    Attributes:
        files: where they lie.
        goes_on: leave out what can't be read.
        fed: the numbers of those that were read and are not answered yet, in order.
        unread: why others could not be read.
    """

    files: InputFiles
    goes_on: bool
    fed: deque[int] = field(default_factory=deque)
    unread: list[UsageError] = field(default_factory=list)

    def __len__(self) -> int:
        return len(self.files)

    def __iter__(self) -> Iterator[Mapping[str, object]]:
        from ..inputs.input_files import read_inputs

        cascade = self.files.cascade
        for number, place in enumerate(self.files.places):
            try:
                feed = read_inputs(place, cascade.manifest.reads, tensors=cascade.tensors)
            except UsageError as error:
                self.unread.append(error)
                if not self.goes_on:
                    return
            else:
                self.fed.append(number)
                yield feed


def input_files(cascade: Cascade, given: Sequence[Path], output: Path, *, force: bool) -> InputFiles:
    """The inputs that a command line names, in its order, those of a folder by name; and where the outputs go.

    Raises:
        UsageError: there are none, two would have their outputs in the same file, or something stands in the way.
    """
    if len(given) == 1 and not _is_folder_of_many(given[0]):
        if output.is_dir():
            raise UsageError(f"{output} is a folder, and one input makes one file", hint=f"write -o {output}/NAME.npz")
        check_goal_file(output, force=force)
        return InputFiles(cascade, given, [output], None)
    places = [place for one in given for place in (_inside(one) if _is_folder_of_many(one) else [one])]
    names = [place.name.removesuffix(".npz") + ".npz" for place in places]
    twice = [name for name, times in Counter(names).items() if times > 1]
    if twice:
        raise UsageError(f"two inputs would both have their outputs in {output / twice[0]}", hint="rename one of them")
    if output.exists() and not output.is_dir():
        raise UsageError(f"{output} is a file, and {len(places)} inputs make a folder of files", hint="name a folder")
    if not output.absolute().parent.is_dir():
        raise UsageError(f"there is no folder {output.parent}", hint="make it first, or choose another with -o")
    goals = [output / name for name in names]
    _check_free(goals, force=force)
    return InputFiles(cascade, places, goals, output)


def _is_folder_of_many(place: Path) -> bool:
    return place.is_dir() and not _is_test_data(place)


def _is_test_data(place: Path) -> bool:
    return place.is_dir() and any(place.glob("input_*.pb"))


def _inside(folder: Path) -> list[Path]:
    found = [place for place in sorted(folder.iterdir()) if place.suffix == ".npz" or _is_test_data(place)]
    if not found:
        raise UsageError(
            f"{folder} holds no inputs", hint="inputs are .npz files, or folders with input_0.pb and so on"
        )
    return found


def _check_free(goals: Sequence[Path], *, force: bool) -> None:
    standing = next((goal for goal in goals if goal.exists()), None)
    if standing is not None and not force:
        raise UsageError(f"{standing} stands there already", hint="choose another name with -o, or add --force")
