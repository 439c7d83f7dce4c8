"""Between ONNX messages and graphs of onnx_graphsurgeon: the only module that imports it.

A `gs.Graph` doesn't hold all that a message says, and its import and export change some of it without a word. So
`lost_by_graph` imports and exports a message and compares the result field by field. Fields that have no part in what
the model computes (module names, doc strings, value_info, device configurations) may be lost and are counted; any other
difference is an error. The functions work on messages and not on `Model`, so that `loading.model` can use them.
"""

from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from copy import deepcopy
from itertools import zip_longest
from typing import Final

import onnx_graphsurgeon as gs
from google.protobuf.message import Message
from onnx import FunctionProto, GraphProto, ModelProto
from onnx.helper import find_min_ir_version_for, make_opsetid
from onnx_graphsurgeon.logger import G_LOGGER

from ..core.errors import ModelError
from ..core.records import table
from ..core.tensors import UNDEFINED
from .shape_inference import infer_values, tensors_of_values, without_value_info
from .subgraphs import FIRST_IR_WITH_DEFAULTS, nodes_within, remove_named, subgraphs

#: fields of any message that have no part in what a model computes.
_ANNOTATIONS: Final = table("loading/annotations.json", frozenset[str])

_SILENT: Final = 99
_FIRST_IR_WITH_INT4: Final = 10
_HINT: Final = "work on the ONNX file: graphcut needs no graph of onnx_graphsurgeon"


def message_of_graph(graph: gs.Graph) -> ModelProto:
    """`graph` as a message, with its values. Without an IR version it gets the lowest for its opset, 10 or more.

    A ModelError if onnx_graphsurgeon can't export the graph, or the message would compute something else: two tensors
    or functions have one name, values are exported as another type, or `graph.opset` is not what is exported.
    """
    with _errors_of("export"):
        graphs = [graph, *graph.subgraphs(recursive=True), *graph.functions]
        tensors = [tensor for each in graphs for tensor in each.tensors(check_duplicates=True).values()]
        tensors += [value for each in graphs for node in each.nodes for value in node.attrs.values()]
        for tensor in tensors:
            if isinstance(tensor, gs.Constant) and str(tensor.dtype) == "float8_e4m3fnuz":
                raise ModelError(f"the float8e4m3fnuz values of {tensor.name!r} would become float8e4m3fn")
        if len({function.unique_id for function in graph.functions}) < len(graph.functions):
            raise ModelError("two functions have one domain and name: graphs have no overloads")
        message: ModelProto = gs.export_onnx(graph)
    _normalize(message)
    versions = {entry.domain: entry.version for entry in message.opset_import}
    if versions.get("", graph.opset) != graph.opset:
        text = f"graph.opset is {graph.opset}, and graph.import_domains says {versions['']}, which is exported"
        raise ModelError(text, hint="give both the same version")
    if graph.ir_version is None:  # the default of onnx is newer than what ONNX Runtime reads
        message.ir_version = max(_FIRST_IR_WITH_INT4, find_min_ir_version_for(list(message.opset_import), True))
    return message


def refuse_shifted_outputs(message: ModelProto) -> None:
    """Raise a ModelError for a node whose outputs are not of the types that the graph declares for them.

    When `tensor.inputs.clear()` makes an output of a node an input of the graph, onnx_graphsurgeon removes it from the
    node. The outputs after it take the place of the one before, so the node computes other values for them. Declared
    types (value_info) tell, where they contradict ONNX shape inference; without them nothing does.
    """
    several = {name: node for node in message.graph.node if len(node.output) > 1 for name in node.output if name}
    declared = tensors_of_values([*message.graph.value_info, *message.graph.output])
    inferred = tensors_of_values(infer_values(without_value_info(message))) if several else {}
    for name in several.keys() & declared.keys() & inferred.keys():
        node, said, found = several[name], declared[name], inferred[name]
        dims = zip(said.shape or (), found.shape or (), strict=False)
        differ = any(isinstance(a, int) and isinstance(b, int) and a != b for a, b in dims)
        if differ or (said.dtype != found.dtype and UNDEFINED not in {said.dtype, found.dtype}):
            place = f"node {node.name or node.output[0]!r} ({node.op_type})"
            what = f"{place} writes {name!r} as {found}, and the graph declares {said}"
            hint = "leave a node all its outputs, and give readers that need another source a new tensor"
            raise ModelError(f"{what}: an output before it was removed from the node", hint=hint)


def graph_of_message(message: ModelProto) -> gs.Graph:
    """`message` as a graph, which takes the message over: it is changed, and the graph refers to its tensors.

    An input with a default is a `gs.Constant` among the inputs of the graph. IR 3, where every initializer is an input
    and none is a default, becomes IR 4.
    """
    _normalize(message)
    with _errors_of("import"):
        graph = gs.import_onnx(message)
        tensors = graph.tensors()
        graph.inputs = [tensors[value.name] for value in message.graph.input]
    return graph


def lost_by_graph(message: ModelProto) -> Mapping[str, int]:
    """The annotations that a graph of `message` can't hold: how many of each field.

    A ModelError if onnx_graphsurgeon can't import or export it, or would change what the model computes.
    """
    before, graph = deepcopy(message), graph_of_message(deepcopy(message))
    with _errors_of("export"):
        after = gs.export_onnx(graph)
    _move_back(before.graph, after.graph)
    had, has = Counter[str](), Counter[str]()
    for proto, found in ((before, had), (after, has)):
        _normalize(proto)
        _strip(proto, found)
    if difference := next(_differences(before, after), ""):
        raise ModelError(f"onnx_graphsurgeon can't hold the model: it would change {difference}", hint=_HINT)
    return had - has


@contextmanager
def _errors_of(action: str) -> Iterator[None]:
    """Make a `ModelError` of what onnx_graphsurgeon raises, and let it print nothing."""
    try:
        with G_LOGGER.suppress(_SILENT):
            yield
    except Exception as error:
        reason = str(error).strip().partition("\n")[0] or type(error).__name__
        raise ModelError(f"onnx_graphsurgeon can't {action} the graph: {reason}", hint=_HINT) from error


def _normalize(message: ModelProto) -> None:
    """Write what a graph can't say, or says in another way, as it does: the meaning stays."""
    weights = {tensor.name for tensor in message.graph.initializer}
    if message.ir_version < FIRST_IR_WITH_DEFAULTS:
        remove_named(message.graph.input, weights)
        message.ir_version = FIRST_IR_WITH_DEFAULTS
    owners: list[ModelProto | FunctionProto] = [message, *message.functions]
    for owner in owners:
        for node in nodes_within(owner.graph.node if isinstance(owner, ModelProto) else owner.node):
            if node.domain == "ai.onnx":  # the other name of the default domain; a graph takes it for another domain
                node.domain = ""
        versions: dict[str, int] = {}
        for entry in owner.opset_import:  # an export adds version 1 of a domain that it doesn't find
            domain = "" if entry.domain == "ai.onnx" else entry.domain
            versions[domain] = max(entry.version, versions.get(domain, 0))
        del owner.opset_import[:]
        owner.opset_import.extend(make_opsetid(domain, version) for domain, version in versions.items())


def _move_back(before: GraphProto, after: GraphProto) -> None:
    """Move outer initializers that the export wrote into subgraphs back to the outer graph."""
    for node, exported in zip(before.node, after.node, strict=False):
        for one, two in zip(subgraphs(node), subgraphs(exported), strict=False):
            _move_back(one, two)
            own, outer = {t.name for t in one.initializer}, {t.name: t for t in after.initializer}
            moved = {t.name for t in two.initializer if t.name not in own and outer.get(t.name, t) == t}
            after.initializer.extend(t for t in two.initializer if t.name in moved - outer.keys())
            remove_named(two.initializer, moved)


def _strip(message: Message, found: Counter[str]) -> None:
    """Remove annotations and default values at any depth, count the annotations, and sort what has no order."""
    for field, value in message.ListFields():
        is_single = isinstance(value, Message | str | bytes | int | float)
        if field.name in _ANNOTATIONS or field.full_name == "onnx.ModelProto.domain":
            found[field.name] += 1 if is_single else len(value)
            message.ClearField(field.name)
        elif field.message_type is not None:
            for inner in [value] if is_single else value:
                _strip(inner, found)
        elif is_single and not value:
            message.ClearField(field.name)
    if isinstance(message, GraphProto):
        message.initializer.sort(key=lambda tensor: tensor.name)
        message.sparse_initializer.sort(key=lambda sparse: sparse.values.name)
    elif isinstance(message, ModelProto | FunctionProto):
        message.opset_import.sort(key=lambda entry: entry.domain)


def _differences(before: ModelProto, after: ModelProto) -> Iterator[str]:
    for node, other in zip_longest(before.graph.node, after.graph.node):
        if node != other:
            yield f"node {(node or other).name or (node or other).output[0]!r} ({(node or other).op_type})"
    for one, two in ((before.graph, after.graph), (before, after)):
        for name in sorted({field.name for field, _ in (*one.ListFields(), *two.ListFields())}):
            if getattr(one, name) != getattr(two, name):
                yield f"{name!r}"
