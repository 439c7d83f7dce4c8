"""Tensors that the steps of one request hand to each other while they run."""

from collections.abc import Iterable, Mapping
from threading import Condition

from ...running.values import Value, Values


class Exchange:
    """Steps put in what they make, and wait for what they read. One value is kept until all steps that read it did."""

    def __init__(self, readers: Mapping[str, int]) -> None:
        """`readers`: how many steps take each tensor that is handed over."""
        self._left = dict(readers)
        self._values: dict[str, Value] = {}
        self._error: Exception | None = None
        self._changed = Condition()

    def put(self, values: Values) -> None:
        """Hand over what others read."""
        with self._changed:
            self._values.update((name, value) for name, value in values.items() if name in self._left)
            self._changed.notify_all()

    def take(self, names: Iterable[str]) -> dict[str, Value]:
        """Those of `names` that are handed over, as soon as all are there. A step takes each once.

        Raises the error of another step, after which there would be none.
        """
        wanted = [name for name in names if name in self._left]
        with self._changed:
            self._changed.wait_for(lambda: self._error is not None or self._values.keys() >= {*wanted})
            if self._error is not None:
                raise self._error
            taken = {name: self._values[name] for name in wanted}
            for name in wanted:
                self._left[name] -= 1
                if not self._left[name]:
                    del self._values[name], self._left[name]
        return taken

    def fail(self, error: Exception) -> None:
        """A step ended by an error: the others end by it, too."""
        with self._changed:
            self._error = self._error or error
            self._changed.notify_all()
