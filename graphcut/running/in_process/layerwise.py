"""Layer-wise pass: each part is loaded once, and all inputs run through it before the next part is loaded."""

from collections.abc import Iterable, Iterator

from ...core.arguments import OnError
from ...core.errors import RunError
from ...core.manifest import Cascade
from ..values import Outputs, Value, Values, outputs_of
from .loaded_parts import LoadedParts
from .spilling import SpillStore


class LayerwisePass:
    """One pass from the inputs to the outputs. Tensors wait in a `SpillStore` until their last reader has read them."""

    def __init__(self, cascade: Cascade, store: SpillStore, *, on_error: OnError) -> None:
        self._cascade, self._store, self._on_error = cascade, store, on_error
        self._errors: dict[int, RunError] = {}
        outputs = dict.fromkeys(cascade.manifest.writes, len(cascade.parts))
        self._last_reader = {name: i for i, part in enumerate(cascade.parts) for name in part.reads} | outputs

    def run(self, inputs: Iterable[Values | RunError], parts: LoadedParts) -> Iterator[Outputs | RunError]:
        """The outputs for each of `inputs`, in order, while the last part runs.

        If an input fails and `on_error` is `raise`, its error comes after the outputs of the inputs before it.
        """
        number, last = 0, len(self._cascade.parts) - 1
        for index in range(last + 1):
            parts.take(index)
            arriving = inputs if index == 0 else [{}] * number
            for number, fed in enumerate(arriving, 1):
                outputs = self._guarded(parts, index, number, fed)
                if index == last:
                    yield self._answer(number, outputs)
                fed, outputs = {}, {}  # noqa: PLW2901 - holds nothing while the next input is fetched
                if number in self._errors and self._on_error == "raise":
                    break  # the inputs before it are answered; the ones after it are not needed

    def _guarded(self, parts: LoadedParts, index: int, number: int, fed: Values | RunError) -> dict[str, Value]:
        if number in self._errors:
            return {}
        try:
            if isinstance(fed, RunError):
                raise fed
            return self._step(parts, index, number, fed)
        except RunError as error:
            if self._on_error == "raise" and number == 1:
                raise
            self._errors[number] = error
            self._store.drop_request(number)
            return {}

    def _step(self, parts: LoadedParts, index: int, number: int, fed: Values) -> dict[str, Value]:
        """Run one part for one input. Stores what is needed later; returns the values after the last part."""
        store = self._store
        waiting = {name: (number, name) for name in self._cascade.parts[index].reads if (number, name) in store}
        # Nothing stays on a device: it may have no room for what waits of all inputs.
        outputs = parts.step(index, {**fed, **{name: store.get(key) for name, key in waiting.items()}}, stays=())
        for name, key in waiting.items():
            if self._last_reader[name] == index:
                store.drop(key)
        if index == len(self._cascade.parts) - 1:
            return {**fed, **outputs}
        for name, value in {**fed, **outputs}.items():
            if self._last_reader.get(name, -1) > index:
                store.put((number, name), value)
        return {}

    def _answer(self, number: int, values: dict[str, Value]) -> Outputs | RunError:
        if (error := self._errors.pop(number, None)) is not None:
            if self._on_error == "raise":
                raise error
            return error
        waiting = [(number, name) for name in self._cascade.manifest.writes if name not in values]
        answer = outputs_of(self._cascade, {**values, **{key[1]: self._store.get(key) for key in waiting}})
        for key in waiting:
            self._store.drop(key)
        return answer
