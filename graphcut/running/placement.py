"""Which nodes of a model a provider takes, asked in a process of its own: a compiler may crash, hang, or print."""

import os
import subprocess
import sys
from collections.abc import Collection, Mapping
from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final, NamedTuple

import msgspec

from ..core.errors import RunError
from ..core.manifest import Cascade, Part
from ..core.text import few
from ..core.units import count, duration
from .providers import entries, facts_of, fixed_sizes, ort_message, placement_of, session_on
from .stage import SessionConfig, session_options

LIMIT_S: Final = 120.0  #: a compiler may take so long.
_ASK: Final = "import sys; from graphcut.running.placement import answer; answer(sys.argv[1])"


class Placement(NamedTuple):
    """Where the nodes of a model went."""

    names: Mapping[str, tuple[str, ...]]  #: for each provider the names of the nodes that it took.
    problem: str = ""  #: why there is no session; empty if there is one.
    is_missing: bool = False  #: the provider is not here, or can't be started.

    def fallen_back(self, provider: str) -> tuple[str, ...]:
        """The names of the nodes that another provider took."""
        return tuple(name for other, names in self.names.items() if other != provider for name in names)

    def objection(self, provider: str, besides: Collection[str] = ()) -> str:
        """Why it does not hold that a provider took all nodes, `besides` these; empty if it did."""
        fallen = [name for name in self.fallen_back(provider) if name not in besides]
        named = few([*map(repr, fallen)], 5)
        return self.problem or (f"it does not take {count(len(fallen), 'node')}: {named}" if fallen else "")


class Asked(msgspec.Struct, frozen=True, kw_only=True):
    """What is asked: where the nodes of a model go."""

    provider: str  #: the provider.
    options: Mapping[str, str] = {}  #: its options.
    file: str = ""  #: the model, or
    message: bytes = b""  #: its message.
    dims: Mapping[str, int] = {}  #: numbers for its symbols.
    entries: Mapping[str, str] = {}  #: entries of the session.


def placement(asked: Asked, limit_s: float = LIMIT_S) -> Placement:
    """Where the nodes of a model go.

    Raises:
        RunError: the provider is not here, or can't be started; the hint names the package that has it.
    """
    with TemporaryDirectory() as folder:
        file = Path(folder, "asked")
        file.write_bytes(msgspec.msgpack.encode(asked))
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(map(os.path.abspath, sys.path))}
        command, unread = [sys.executable, "-P", "-c", _ASK, str(file)], subprocess.DEVNULL
        try:
            done = subprocess.run(  # noqa: S603 - this Python, with arguments made here
                command, stdin=unread, stdout=unread, stderr=unread, env=environment, timeout=limit_s, check=False
            )
        except subprocess.TimeoutExpired:
            return Placement({}, f"its compiler was stopped after {duration(limit_s)}")
        if done.returncode:
            return Placement({}, f"its compiler ended the process, with status {done.returncode}")
        found = msgspec.msgpack.decode(file.read_bytes(), type=Placement)
    if found.is_missing:
        package = facts_of(asked.provider).package
        is_here = package and find_spec(package.replace("-", "_")) is not None
        missing = f"install {package or 'the package of its vendor'}, or give a rule file"
        hint = f"{package} finds no device here: give a rule file" if is_here else missing
        raise RunError(f"{asked.provider} can't be asked: {found.problem}", hint=hint)
    return found


def place_part(cascade: Cascade, part: Part, entries_of_session: Mapping[str, str] | None = None) -> Placement:
    """Where the nodes of a part go with the provider of its device, as a run opens it; see `placement`."""
    settings = cascade.settings(part)
    provider, options = settings.provider, entries(settings.provider_options)
    config = {**entries(settings.session_config), **(entries_of_session or {})}
    dims = fixed_sizes(provider, cascade.manifest.given_dims)
    return placement(Asked(provider=provider, options=options, file=str(cascade.file(part)), dims=dims, entries=config))


def answer(path: str) -> None:
    """What the process does: read what is asked from a file, and write the answer there.

    Where memory is short, Linux ends this process first: compilers may take all of it.
    """
    with suppress(OSError):
        Path("/proc/self/oom_score_adj").write_text("1000")
    asked = msgspec.msgpack.decode(Path(path).read_bytes(), type=Asked)
    Path(path).write_bytes(msgspec.msgpack.encode(_opened(asked)))


def _opened(asked: Asked) -> Placement:
    settings = session_options(SessionConfig(optimize="basic"), asked.entries, asked.dims)
    model = asked.message or Path(asked.file)
    try:
        session, problem = session_on(model, settings, asked.provider, asked.options)
    except Exception as error:  # noqa: BLE001 - ONNX Runtime's errors have no common class
        return Placement({}, ort_message(error))
    return Placement({}, problem, is_missing=True) if session is None else Placement(placement_of(session))
