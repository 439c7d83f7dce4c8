"""Inputs that go through the parts together: each part is loaded once, and all inputs run through it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Literal, Protocol

from ...core.errors import RunError
from ...core.manifest import Cascade
from ..stage import Stage
from ..values import Value, to_array
from .spilling import SpillStore

Outputs = dict[str, Any]
OnError = Literal["raise", "skip"]


class Loader(Protocol):
    """Has parts loaded, one after the other."""

    def take(self, place: int) -> Stage:
        """The part at a place, loaded."""

    def leave(self, place: int) -> None:
        """It is not needed any more in this round."""


class LayerwisePass:
    """One round: from the inputs to the outputs.

    Tensors that later parts read wait on a shelf, each until its last reader has read it.
    """

    def __init__(self, cascade: Cascade, shelf: SpillStore, *, on_error: OnError) -> None:
        """Nothing has run yet.

        Args:
            cascade: what is run.
            shelf: where tensors wait.
            on_error: raise what goes wrong with an input, or give the error in place of its outputs and go on.
        """
        self._cascade = cascade
        self._shelf = shelf
        self._on_error = on_error
        self._errors: dict[int, RunError] = {}
        outputs = dict.fromkeys(cascade.manifest.writes, len(cascade.parts))
        self._last = {name: place for place, part in enumerate(cascade.parts) for name in part.reads} | outputs

    def run(self, inputs: Iterable[Mapping[str, Value] | RunError], loader: Loader) -> Iterator[Outputs | RunError]:
        """The outputs for all inputs, in their order; they come while the last part runs.

        Raises:
            RunError: a part can't be loaded; or, after all answers before, it fails and errors are raised.
        """
        parts, number = self._cascade.parts, 0
        for place in range(len(parts)):
            stage = loader.take(place)
            try:
                arriving = inputs if place == 0 else [{}] * number
                for number, fed in enumerate(arriving, 1):
                    made = self._guarded(stage, place, number, fed)
                    if place == len(parts) - 1:
                        yield self._answer(number, made)
                    fed, made = {}, {}  # noqa: PLW2901 - nothing is held while the next input is fetched
                    if number in self._errors and self._on_error == "raise":
                        break  # those before it are answered, and nobody asks for those after it
            finally:
                loader.leave(place)

    def _guarded(self, stage: Stage, place: int, number: int, fed: Mapping[str, Value] | RunError) -> dict[str, Value]:
        if number in self._errors:
            return {}
        try:
            if isinstance(fed, RunError):
                raise fed
            return self._step(stage, place, number, fed)
        except RunError as error:
            if self._on_error == "raise" and number == 1:
                raise
            self._errors[number] = error
            self._shelf.drop_request(number)
            return {}

    def _step(self, stage: Stage, place: int, number: int, fed: Mapping[str, Value]) -> dict[str, Value]:
        """Run one part for one input. What is needed later goes on the shelf, but for what the last part makes."""
        shelf = self._shelf
        waiting = {name: (number, name) for name in stage.part.reads if (number, name) in shelf}
        made = stage.step({**fed, **{name: shelf.get(key) for name, key in waiting.items()}})
        for name, key in waiting.items():
            if self._last[name] == place:
                shelf.drop(key)
        if place == len(self._cascade.parts) - 1:
            return {**fed, **made}
        for name, value in {**fed, **made}.items():
            if self._last.get(name, -1) > place:
                shelf.put((number, name), value)
        return {}

    def _answer(self, number: int, made: dict[str, Value]) -> Outputs | RunError:
        if number in self._errors:
            error = self._errors.pop(number)
            if self._on_error == "raise":
                raise error
            return error
        answer = {}
        for name in self._cascade.manifest.writes:
            key = number, name
            value = made.pop(name) if name in made else self._shelf.get(key)
            answer[name] = to_array(value, self._cascade.tensors[name])
            if key in self._shelf:
                self._shelf.drop(key)
        return answer
