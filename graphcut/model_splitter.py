"""From a model to answers in one call: cut it, spread it over workers, divide the batch, put the outputs together."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Self

import numpy as np

from .analysis.cut_points import analyze
from .core.errors import UsageError
from .loading.model import load
from .planning.goals import Into
from .planning.plans import plan
from .running.pipelined import Pipeline
from .running.scheduling.assignment import Via
from .running.stage import SessionConfig
from .surgery.splitting import split


class ModelSplitter:
    """A model that runs in parts, each on a device of its own, and is used as if it were whole.

    with graphcut.ModelSplitter("model.onnx", num_devices=4) as splitter:
        y = splitter.forward(x)

    Attributes:
        cascade: the parts.
        pipeline: their workers, which stay loaded between calls.
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
        """Cut `model` into `num_devices` parts whose slowest is as fast as can be, and load them.

        Args:
            model: an .onnx file.
            num_devices: how many parts and workers.
            via: see `graphcut.stream`.
            dims: numbers for symbolic dimensions, so that parts are balanced for these sizes.
            folder: where the parts go, to be kept; without it they are deleted with the splitter.
            config: how sessions are built.

        Raises:
            GraphcutError: the model can't be read, or not be cut so.
        """
        whole = load(model, dims=dims)
        made = plan(analyze(whole), Into(num_devices))
        self._scratch = tempfile.TemporaryDirectory(prefix="graphcut-") if folder is None else None
        place = Path(self._scratch.name) / "parts" if self._scratch else folder
        self.cascade = split(whole, made, place)
        self.pipeline = Pipeline(self.cascade, via=via, workers=num_devices, micro_batch="auto", config=config)

    def forward(self, inputs: Mapping[str, object] | np.ndarray[Any, Any]) -> Any:  # noqa: ANN401 - see Returns
        """The model's outputs. A batch is divided among the devices, where the model declares an axis for it.

        Args:
            inputs: arrays by name; one array for a model with a single input.

        Returns:
            The output of a model with a single one; else outputs by name.

        Raises:
            UsageError: one array is given, and the model reads several.
            RunError: an input is missing, unknown or of the wrong type, or a part fails.
        """
        outputs = self.pipeline.submit(inputs if isinstance(inputs, Mapping) else self._named(inputs)).result()
        return next(iter(outputs.values())) if len(outputs) == 1 else outputs

    def _named(self, array: np.ndarray[Any, Any]) -> dict[str, object]:
        names = self.cascade.manifest.reads
        if len(names) != 1:
            raise UsageError(
                f"the model reads {len(names)} inputs, and one array is given", hint=f"name them: {', '.join(names)}"
            )
        return {names[0]: array}

    def close(self) -> None:
        """End the workers, and delete the parts where no folder was named for them."""
        self.pipeline.close()
        if self._scratch is not None:
            self._scratch.cleanup()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
