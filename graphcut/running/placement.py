"""Which nodes of a model a provider takes, asked in a process of its own: a compiler may crash, hang, or print."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Final, NamedTuple, Self

from ..core.errors import RunError
from ..core.units import duration
from .providers import package_of, placement_of, session_on
from .stage import SessionConfig, ort_message, session_options

_SERVE: Final = "import sys; from graphcut.running.placement import serve; serve(int(sys.argv[1]))"


class Placement(NamedTuple):
    """Where the nodes of a model went."""

    names: Mapping[str, tuple[str, ...]]  #: for each provider the names of the nodes that it took.
    problem: str = ""  #: why there is no session; empty if there is one.
    is_missing: bool = False  #: the provider is not here, or can't be started.

    def fallen_back(self, provider: str) -> tuple[str, ...]:
        """The names of the nodes that another provider took."""
        return tuple(name for other, names in self.names.items() if other != provider for name in names)


@dataclass
class PlacementProcess:
    """A process that opens models with a provider, one after the other. A new one follows one that died or hung."""

    provider: str  #: the provider.
    options: Mapping[str, str] = field(default_factory=dict)  #: its options.
    limit_s: float = 120.0  #: opening a model may take so long.
    running: tuple[subprocess.Popen[bytes], Connection] | None = None  #: the process, and the pipe to it.

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def ask(self, model: Path | bytes, dims: Mapping[str, int], entries: Mapping[str, str] | None = None) -> Placement:
        """Where the nodes of a model go, with numbers for its symbols, and with more entries of the session."""
        process, connection = self.running = self.running or _started()
        try:
            connection.send((model, self.provider, dict(self.options), dict(dims), dict(entries or {})))
            if connection.poll(self.limit_s):
                return Placement(*connection.recv())
            problem = f"its compiler was stopped after {duration(self.limit_s)}"
        except (OSError, EOFError):
            problem = f"its compiler ended the process, with status {process.wait()}"
        self.close()
        return Placement({}, problem)

    def close(self) -> None:
        """End the process."""
        if self.running is not None:
            process, connection = self.running
            process.kill()
            process.wait()
            connection.close()
        self.running = None


def missing(provider: str, problem: str) -> RunError:
    """The error where a provider is not here, with the package that has it."""
    package = package_of(provider)
    hint = f"install {package}" if package else "install the package of its vendor"
    return RunError(f"{provider} can't be asked: {problem}", hint=f"{hint}, or give a rule file")


def serve(descriptor: int) -> None:
    """What the process does: answer requests until the pipe is closed."""
    with Connection(descriptor) as connection, suppress(EOFError):
        while True:
            connection.send(tuple(_opened(*connection.recv())))


def _opened(
    model: Path | bytes, provider: str, options: dict[str, str], dims: Mapping[str, int], entries: Mapping[str, str]
) -> Placement:
    settings = session_options(SessionConfig(optimize="basic"))
    settings.add_session_config_entry("session.record_ep_graph_assignment_info", "1")
    for key, value in entries.items():
        settings.add_session_config_entry(key, value)
    for name, number in dims.items():
        settings.add_free_dimension_override_by_name(name, number)
    try:
        session, problem = session_on(model, settings, provider, options, is_strict=True)
    except Exception as error:  # noqa: BLE001 - ONNX Runtime's errors have no common class
        return Placement({}, ort_message(error))
    return Placement({}, problem, is_missing=True) if session is None else Placement(placement_of(session))


def _started() -> tuple[subprocess.Popen[bytes], Connection]:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        process = subprocess.Popen(  # noqa: S603 - this Python, with arguments made here
            [sys.executable, "-P", "-c", _SERVE, str(theirs.fileno())],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            pass_fds=[theirs.fileno()],
            env={**os.environ, "PYTHONPATH": os.pathsep.join(map(os.path.abspath, sys.path))},
        )
        return process, Connection(ours.detach())
