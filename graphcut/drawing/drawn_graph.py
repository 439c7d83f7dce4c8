"""The graph that the page draws around a cut, a tensor, a node or a part."""

from msgspec import to_builtins

from ..core.tensors import TensorBytes
from ..loading.model import Model
from ..loading.node_graph import node_graph
from .scene import Modules, NodeRows, PageData


def drawn_graph(model: Model, rows: NodeRows, sizes: TensorBytes, modules: Modules) -> PageData:
    """The record of the `NodeGraph` of a model without what the profile has, its nodes part by part.

    `modules` in it are those of all nodes, and `module` has the index of each node's module there.
    """
    order = [node for row in rows for node in row]
    paths = [modules[node] for node in order]
    index = {path: i for i, path in enumerate(dict.fromkeys(paths))}
    record: dict[str, object] = to_builtins(node_graph(model, order, sizes), str_keys=True)
    return record | {"nodes": None, "ops": None, "modules": list(index), "module": [index[path] for path in paths]}
