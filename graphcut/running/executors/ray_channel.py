"""Connections from the driver to actors, for steps whose tensors are all small: a call of Ray's takes milliseconds.

Who connects proves that he knows the key of the actor, which Ray has brought to the driver. An actor unpickles what the
driver sends, as with Ray; the driver unpickles nothing. Nothing is encrypted, so Ray is used alone where it has TLS.
"""

import os
import pickle
import socket
from collections.abc import Callable, Mapping
from contextlib import suppress
from multiprocessing import AuthenticationError
from multiprocessing.connection import Connection, answer_challenge, deliver_challenge
from struct import pack
from threading import Thread
from typing import Any, Final, NamedTuple

import msgspec
import numpy as np
import ray  # noqa: TID251 - a module of the Ray executor

from ...core.errors import RunError
from .protocol import Step

_CONNECT_S: Final = 3.0  #: an actor that can't be connected to in this time is called by way of Ray.
_SEND_S: Final = 5  #: a connection that takes nothing for so long is broken.


class Address(NamedTuple):
    """Where an actor listens."""

    host: str
    port: int
    key: bytes  #: what who connects must know.


class StepResult(msgspec.Struct, frozen=True, tag=True):
    """What an actor returns for a step."""

    seconds: tuple[float, ...]  #: the run time of each part.
    memory_bytes: int  #: the resident memory of the actor.
    inline: dict[str, np.ndarray[Any, Any]]  #: the outputs that were requested inline.
    small: tuple[str, ...]  #: the names of all outputs small enough to be requested inline the next time.


class _Failure(msgspec.Struct, frozen=True, tag=True):
    message: str
    hint: str


_Answer = StepResult | RunError


def listen(run: Callable[[Step, Mapping[str, Any]], _Answer]) -> Address | None:
    """Run the steps of the first who connects and knows the key, in a thread. None where Ray uses TLS."""
    if os.environ.get("RAY_USE_TLS", "0").lower() in {"1", "true"}:
        return None
    host = str(ray.util.get_node_ip_address())  # type: ignore[no-untyped-call]
    server, key = socket.create_server((host, 0)), os.urandom(32)
    Thread(target=_serve, args=(server, key, run), daemon=True).start()
    return Address(host, server.getsockname()[1], key)


def _serve(server: socket.socket, key: bytes, run: Callable[[Step, Mapping[str, Any]], _Answer]) -> None:
    while True:
        connection = _connection(server.accept()[0])
        with suppress(EOFError, OSError, AuthenticationError), connection:
            deliver_challenge(connection, key)
            answer_challenge(connection, key)
            while True:
                connection.send_bytes(_encoded(run(*pickle.loads(connection.recv_bytes()))))  # noqa: S301 - see above


def _encoded(answer: _Answer) -> bytes:
    found = _Failure(str(answer), answer.hint) if isinstance(answer, RunError) else answer
    return msgspec.msgpack.encode(found, enc_hook=lambda array: (array.dtype.str, array.shape, array.tobytes()))


def _decoded(raw: bytes) -> _Answer:
    found = msgspec.msgpack.decode(raw, type=StepResult | _Failure, dec_hook=lambda _, array: _array(*array))
    return RunError(found.message, hint=found.hint) if isinstance(found, _Failure) else found


def _array(dtype: str, shape: tuple[int, ...], raw: bytes) -> np.ndarray[Any, Any]:
    return np.frombuffer(raw, dtype).reshape(shape)


def _connection(end: socket.socket) -> Connection:
    end.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    end.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, pack("ll", _SEND_S, 0))
    end.setblocking(True)
    return Connection(end.detach())


class StepChannel:
    """The driver's end of a connection."""

    def __init__(self, address: Address) -> None:
        """Connect. Raises OSError, EOFError or AuthenticationError if that fails."""
        self._connection = _connection(socket.create_connection(address[:2], timeout=_CONNECT_S))
        answer_challenge(self._connection, address.key)
        deliver_challenge(self._connection, address.key)

    def send(self, step: Step, inputs: Mapping[str, Any]) -> None:
        """Let the actor run a step, whose outputs are all returned. Raises OSError if the connection is broken."""
        self._connection.send_bytes(pickle.dumps((step, inputs), pickle.HIGHEST_PROTOCOL))

    def receive(self) -> _Answer:
        """Wait for the answer to the next step. Raises OSError, EOFError or msgspec's errors where there is none."""
        return _decoded(self._connection.recv_bytes())

    def close(self) -> None:
        """End it; `receive` in another thread raises."""
        with suppress(OSError), socket.socket(fileno=os.dup(self._connection.fileno())) as end:
            end.shutdown(socket.SHUT_RDWR)
