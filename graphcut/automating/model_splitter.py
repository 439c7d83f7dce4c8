"""`ModelSplitter`: split a model, run its parts on workers, and use it like the whole model."""

from collections.abc import Mapping
from contextlib import AbstractContextManager, ExitStack
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np

from ..core.errors import UsageError
from ..loading.opening import load
from ..planning.goals import Into
from ..running.stage import SessionConfig
from ..surgery.cutting import split
from ..workers.executors.via import Via
from ..workers.pipelined import Pipeline


class ModelSplitter(AbstractContextManager["ModelSplitter"]):
    """A model whose parts run on workers of their own. A context manager; or call `close`.

    with graphcut.ModelSplitter("model.onnx", num_devices=4) as splitter:
        y = splitter.forward(x)

    Attributes:
        cascade: the parts.
        pipeline: the workers, which keep the parts loaded between calls.
    """

    def __init__(
        self,
        model: str | Path,
        *,
        num_devices: int,
        via: Via = "threads",
        dims: Mapping[str, int] | None = None,
        folder: str | Path | None = None,
        config: SessionConfig | None = None,
    ) -> None:
        """Split `model` into `num_devices` parts, minimizing the slowest part, and load them.

        Args:
            model: an .onnx file.
            num_devices: the number of parts and of workers.
            via: where workers run, see `graphcut.stream`.
            dims: sizes of symbolic dimensions for which the parts are balanced.
            folder: where to write the parts; by default a temporary folder, deleted by `close`.
            config: how sessions are built.

        Raises:
            GraphcutError: the model can't be read or split.
        """
        with ExitStack() as opened:
            output = folder or Path(opened.enter_context(TemporaryDirectory(prefix="graphcut-"))) / "parts"
            self.cascade = split(load(model, dims=dims), Into(num_devices), output)
            pipeline = Pipeline(self.cascade, via=via, workers=num_devices, micro_batch="auto", config=config)
            self.pipeline = opened.enter_context(pipeline)
            self._opened = opened.pop_all()

    def forward(self, inputs: Mapping[str, object] | np.ndarray[Any, Any]) -> Any:  # noqa: ANN401 - see Returns
        """The model's outputs. A batch is divided among the workers if the model declares an axis for it.

        Args:
            inputs: arrays by name; one array for a model with a single input.

        Returns:
            The output of a model with a single one; else outputs by name.

        Raises:
            UsageError: one array is given, and the model reads several.
            RunError: an input is missing, unknown or of the wrong type, or a part fails.
        """
        if not isinstance(inputs, Mapping):
            names = self.cascade.manifest.reads
            if len(names) != 1:
                raise UsageError(f"one array is given for {len(names)} inputs", hint=f"name them: {', '.join(names)}")
            inputs = {names[0]: inputs}
        outputs = self.pipeline.submit(inputs).result()
        return next(iter(outputs.values())) if len(outputs) == 1 else outputs

    def close(self) -> None:
        """End the workers, and delete the temporary folder."""
        self._opened.close()

    def __exit__(self, *_: object) -> None:
        self.close()
