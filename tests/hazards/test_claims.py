"""A claim says nothing of parts that are right, and says what is wrong of parts that are not."""

from __future__ import annotations

from collections.abc import Callable

from onnx import ModelProto, TensorProto
from onnx.helper import make_function, make_node, make_opsetid, make_sparse_tensor

from . import HAZARDS
from .building import OPSET, body, model, value, weight
from .claims import (
    AnyPartOutput,
    Claim,
    HasFunction,
    HasInitializer,
    HasInput,
    HasSparse,
    InputDims,
    InputElem,
    InputKind,
    InputRank,
    NotFrozen,
    NoTrainingInfo,
    OpTotal,
    OutputOnce,
    OwnSymbol,
    Pieces,
    RequiredInputs,
    TensorIdentical,
)
from .fidelity import Fidelity
from cases import each


def _two_parts() -> Pieces:
    """Exp(x + w) and, in part 1, a local function, an If, a sparse weight and an input with a default."""
    boundary = value("boundary", ["n", 2])
    shift = make_function("local", "Shift", ["a"], ["b"], [make_node("Neg", ["a"], ["b"])], [make_opsetid("", OPSET)])
    branch = body([make_node("Exp", ["boundary"], ["e"])], [], [value("e")])
    early = [make_node("Add", ["x", "w"], ["sum"]), make_node("Exp", ["sum"], ["boundary"])]
    late = [
        make_node("Shift", ["boundary"], ["shifted"], domain="local"),
        make_node("If", ["flag"], ["chosen"], then_branch=branch, else_branch=branch),
        make_node("Sum", ["shifted", "chosen", "s"], ["y"]),
    ]
    w, flag = weight("w", [1.0, 2.0]), weight("flag", [True])
    s = make_sparse_tensor(weight("s", [1.0]), weight("", [0]), [2])
    reads, writes = [value("x", ["n", 2])], [value("y", ["n", 2])]
    whole = model(early + late, reads=reads, writes=writes, weights=[w, flag], sparse_weights=[s], functions=[shift])
    part0 = model(early, reads=reads, writes=[boundary], weights=[w])
    part1 = model(
        late,
        reads=[boundary, value("flag", [1], TensorProto.BOOL)],
        writes=writes,
        weights=[flag],
        sparse_weights=[s],
        functions=[shift],
    )
    return Pieces(whole, (part0, part1))


@each(
    "claim",
    [
        HasInitializer(part=0, names=("w",)),
        HasSparse(part=1, names=("s",)),
        HasInput(part=1, names=("boundary",)),
        HasInput(part=1, names=("boundary", "flag")),
        RequiredInputs(part=1, names=("boundary",)),
        HasFunction(part=1, functions=(("local", "Shift", ""),)),
        InputElem("boundary", "FLOAT"),
        InputRank("boundary", 2),
        InputDims("boundary", ("n", 2)),
        NotFrozen("boundary", axis=0),
        InputKind("boundary", "tensor_type"),
        OpTotal("Exp", 3),
        AnyPartOutput("y"),
        OutputOnce("boundary"),
        TensorIdentical(part=0, names=("w",)),
        NoTrainingInfo(),
    ],
)
def test_a_claim_that_holds_has_no_objection(claim: Claim) -> None:
    assert claim.objection(_two_parts()) == ""


@each(
    ("claim", "said"),
    [
        (HasInitializer(part=1, names=("w", "flag")), "part 1 lacks the initializers ['w']; it has ['flag']"),
        (HasSparse(part=0, names=("s",)), "part 0 has the sparse initializers [], not ['s']"),
        (HasInput(part=1, names=("x",)), "part 1 lacks the inputs ['x']; it has ['boundary', 'flag']"),
        (
            RequiredInputs(part=1, names=("boundary", "flag")),
            "part 1 must be fed ['boundary'], and should be fed ['boundary', 'flag']",
        ),
        (
            HasFunction(part=1, functions=(("local", "Shift", "up"),)),
            "part 1 lacks the functions [('local', 'Shift', 'up')]; it has [('local', 'Shift', '')]",
        ),
        (InputElem("boundary", "UINT8"), "the element type of 'boundary' is 'FLOAT' in part 1, not 'UINT8'"),
        (InputRank("boundary", None), "the rank of 'boundary' is 2 in part 1, not None"),
        (InputRank("shifted", 2), "no part reads 'shifted'"),
        (InputDims("boundary", ("n", 3)), "the dims of 'boundary' is ('n', 2) in part 1, not ('n', 3)"),
        (NotFrozen("boundary", axis=1), "part 1 fixes axis 1 of 'boundary' at 2"),
        (NotFrozen("shifted", axis=1), "no part reads 'shifted'"),
        (OwnSymbol("boundary", axis=0), "part 1 takes axis 0 of 'boundary' for 'n'"),
        (InputKind("boundary", "map_type"), "the kind of 'boundary' is 'tensor_type' in part 1, not 'map_type'"),
        (OpTotal("Exp", 1), "there are 3 nodes Exp, not 1"),
        (AnyPartOutput("w"), "no part gives 'w'"),
        (OutputOnce("sum"), "'sum' is given by the parts [], not by one"),
        (TensorIdentical(part=1, names=("w",)), "part 1 lacks or changes the tensors ['w']"),
    ],
)
def test_a_claim_that_does_not_hold_has_an_objection(claim: Claim, said: str) -> None:
    assert claim.objection(_two_parts()) == said


def test_a_missing_shape_is_not_a_scalar() -> None:
    unknown = model([], reads=[value("a"), value("b", [])], writes=[])
    pieces = Pieces(unknown, (unknown,))
    assert InputRank("a", None).objection(pieces) == ""
    assert InputRank("a", 0).objection(pieces) == "the rank of 'a' is None in part 0, not 0"
    assert InputRank("b", 0).objection(pieces) == ""
    assert InputRank("b", None).objection(pieces) == "the rank of 'b' is 0 in part 0, not None"


def test_a_tensor_is_identical_at_any_location() -> None:
    pieces = _two_parts()
    moved = pieces.parts[0].graph.initializer[0]
    moved.external_data.add(key="location", value="weights.bin")
    moved.data_location = TensorProto.EXTERNAL
    assert TensorIdentical(part=0, names=("w",)).objection(pieces) == ""
    moved.raw_data = b"\0" * 16
    assert TensorIdentical(part=0, names=("w",)).objection(pieces) != ""


def test_training_info_in_a_part_is_reported() -> None:
    trained = HAZARDS["training_info"]().model
    assert NoTrainingInfo().objection(Pieces(trained, (trained,))) == "the parts [0] carry training_info"


@each(
    ("spoil", "said"),
    [
        (lambda part: part.ClearField("model_version"), "model_version of the model"),
        (lambda part: part.ClearField("configuration"), "configuration of the model"),
        (lambda part: part.ClearField("metadata_props"), "metadata 'of' of the model"),
        (lambda part: part.graph.ClearField("metadata_props"), "metadata 'of' of the graph"),
        (lambda part: part.graph.ClearField("doc_string"), "doc_string of the graph"),
        (lambda part: part.graph.node[0].ClearField("doc_string"), "node 'n0'"),
        (lambda part: part.graph.node[1].ClearField("device_configurations"), "node 'n1'"),
        (lambda part: part.graph.initializer[0].ClearField("metadata_props"), "initializer 'w'"),
        (lambda part: part.graph.value_info[0].ClearField("metadata_props"), "what is said of 'boundary'"),
        (lambda part: part.graph.input[0].type.ClearField("denotation"), "what is said of 'x'"),
        (lambda part: part.graph.ClearField("value_info"), "what is said of 'boundary'"),
        (lambda part: part.graph.ClearField("quantization_annotation"), "quantization of 'boundary'"),
    ],
)
def test_fidelity_misses_each_annotation(spoil: Callable[[ModelProto], None], said: str) -> None:
    annotated = HAZARDS["annotated_everywhere"]().model
    part = ModelProto()
    part.CopyFrom(annotated)
    assert Fidelity(part=0).objection(Pieces(annotated, (part,))) == ""
    spoil(part)
    assert Fidelity(part=0).objection(Pieces(annotated, (part,))) == f"part 0 loses or changes {said}"
