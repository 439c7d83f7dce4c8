"""A pass for Olive (olive-ai 0.13) that splits an ONNX model, and the package config that makes it known.

python olive_pass.py packages.json
PYTHONPATH=. olive run --config workflow.json --package-config packages.json
"""

import json
import sys
from pathlib import Path
from typing import Any

from olive.model import CompositeModelHandler, ONNXModelHandler
from olive.package_config import OlivePackageConfig
from olive.passes import Pass
from olive.passes.pass_config import PassConfigParam

import graphcut


class GraphcutSplit(Pass):  # type: ignore[misc]
    """Split a model into parts that together compute the same. The structure of the parts is proved."""

    @classmethod
    def _default_config(cls, accelerator_spec: object) -> dict[str, PassConfigParam]:  # noqa: ARG003
        parameters = {
            "num_splits": (int, "Number of parts."),
            "memory": (str, "What no part needs more of, to be loaded and run, such as 2GB: the fewest parts."),
            "cluster": (str, "A TOML file of devices and links: at most one part on each device."),
            "cost_model": (str, "A CSV file of costs by module, as those of Olive."),
        }
        return {
            name: PassConfigParam(type_=kind, default_value=None, description=text)
            for name, (kind, text) in parameters.items()
        }

    def _run_for_config(
        self,
        model: ONNXModelHandler,
        config: Any,  # noqa: ANN401 - Olive makes its class from the parameters above
        output_model_path: str,
    ) -> CompositeModelHandler:
        source, folder = model.model_path, Path(output_model_path).with_suffix("")
        table = None if config.cost_model is None else graphcut.read_table(config.cost_model)
        folder.parent.mkdir(parents=True, exist_ok=True)
        planned = graphcut.plan(source, _goal(config), table=table)
        cascade = graphcut.split(source, planned, folder, force=True)
        if not graphcut.verify(source, cascade, structural_only=True):
            raise graphcut.CascadeError(f"the parts in {folder} are not the model", hint="please report this")
        parts = [ONNXModelHandler(folder, onnx_file_name=part.file) for part in cascade.parts]
        names = [Path(part.file).stem for part in cascade.parts]
        # Olive writes components anew into the folder of its results, unless it is told to copy theirs as it is.
        attributes = {**(model.model_attributes or {}), "no_flatten": True}
        return CompositeModelHandler(parts, names, model_path=folder, model_attributes=attributes)


def _goal(config: Any) -> graphcut.Goal:  # noqa: ANN401 - see above
    parts, memory_bytes, cluster = config.num_splits, config.memory, config.cluster
    if [parts, memory_bytes, cluster].count(None) != 2:
        message = "GraphcutSplit needs one of num_splits, memory, cluster"
        raise graphcut.UsageError(message, hint="set it in the workflow")
    if cluster:
        return graphcut.Across(graphcut.read_cluster(cluster))
    return graphcut.Into(parts) if parts else graphcut.Within(memory_bytes)


if __name__ == "__main__":  # write Olive's own package config with this pass added
    packages = json.loads(Path(OlivePackageConfig.get_default_config_path()).read_text("utf-8"))
    every = {key: ["*"] for key in ("supported_providers", "supported_accelerators", "supported_precisions")}
    packages["passes"]["GraphcutSplit"] = {"module_path": f"{Path(__file__).stem}.GraphcutSplit", **every}
    Path(sys.argv[1]).write_text(json.dumps(packages, indent=1), "utf-8")
