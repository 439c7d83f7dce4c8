"""Specialised models: an input has a fixed value, and the If that it decides is its branch."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from decoders import Array
from onnx import ModelProto, parser

import graphcut
from graphcut import UsageError
from graphcut.loading.specialising import specialise, specialised

from cases import each

NESTED = """
<ir_version: 8, opset_import: ["" : 17]>
m (bool flag, float[2] x) => (float[2] y, float[2] z) {
    no = Not(flag)
    one = Constant<value = float[2] {1.0, 2.0}>()
    y, z = If(no) <
        then_branch = g () => (float[2] a, float[2] b) {
            t = Add(x, one)
            a = If(flag) <
                then_branch = h () => (float[2] p) { p = Neg(t) },
                else_branch = i () => (float[2] q) { t2 = Mul(t, one) q = Abs(t2) }
            >
            b = Identity(one)
        },
        else_branch = j () => (float[2] c, float[2] d) { c = Sub(x, one) d = Identity(c) }
    >
}
"""


def run(model: ModelProto, **feeds: object) -> list[Array]:
    session = ort.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    names = {value.name for value in session.get_inputs()}
    found: list[Array] = session.run(None, {name: np.asarray(array) for name, array in feeds.items() if name in names})
    return found


@each("flag", [False, True])
def test_what_is_left_is_the_branch_and_gives_the_same(flag: bool) -> None:  # noqa: FBT001 - a case
    whole, x = parser.parse_model(NESTED), np.array([3, -4], np.float32)
    wanted = run(whole, flag=flag, x=x)
    specialise(whole, {"flag": flag})
    onnx.checker.check_model(whole)
    assert not [node for node in whole.graph.node if node.op_type == "If"]
    assert [value.name for value in whole.graph.input] == ["x"]
    assert all(np.array_equal(a, b) for a, b in zip(wanted, run(whole, x=x), strict=True))


def test_a_tensor_of_a_branch_gets_a_name_that_no_other_has() -> None:
    """Both branches have a `t`; that of the second would be `z/t`, as a tensor beside them is named."""
    text = """
    <ir_version: 8, opset_import: ["" : 17]>
    m (bool flag, float[2] x) => (float[2] z) {
        beside = Neg(x)
        y = If(flag) <
            then_branch = g () => (float[2] a) { t = Exp(x) a = Abs(t) },
            else_branch = h () => (float[2] b) { b = Abs(x) }
        >
        z = If(flag) <
            then_branch = i () => (float[2] c) { t = Sin(y) c = Add(t, beside) },
            else_branch = j () => (float[2] d) { d = Abs(y) }
        >
    }
    """
    whole, x = parser.parse_model(text), np.array([3, -4], np.float32)
    whole.graph.node[0].output[0] = whole.graph.node[2].attribute[0].g.node[1].input[1] = "z/t"
    wanted = run(whole, flag=True, x=x)
    specialise(whole, {"flag": True})
    assert np.array_equal(wanted[0], run(whole, x=x)[0])


def test_a_weight_and_a_tensor_that_is_there_twice_may_be_outputs_of_a_branch() -> None:
    """In an If, ONNX Runtime does not write the first of the two outputs that are one tensor."""
    text = """
    <ir_version: 8, opset_import: ["" : 17]>
    m (bool flag, float[2] x) => (float[2] v, float[2] y, float[2] z) {
        v, y, z = If(flag) <
            then_branch = g () => (float[2] a, float[2] a, float[2] k) <float[2] k = {5.0, 6.0}> { a = Neg(x) },
            else_branch = h () => (float[2] b, float[2] c, float[2] d) { b = Abs(x) c = Exp(x) d = Sin(x) }
        >
    }
    """
    whole, x = parser.parse_model(text), np.array([3, -4], np.float32)
    assert [found.tolist() for found in run(whole, flag=True, x=x)[1:]] == [[-3, 4], [5, 6]]
    specialise(whole, {"flag": True})
    assert [found.tolist() for found in run(whole, x=x)] == [[-3, 4], [-3, 4], [5, 6]]


CHANCE = "r = RandomUniform<shape = [1]>() h = Constant<value_float = 0.5>() b = Less(r, h)"


@each("condition", ["b = f.inverse(c)", CHANCE])
def test_an_if_stays_whose_condition_a_function_computes_or_chance(condition: str) -> None:
    model = parser.parse_model(
        f"""<ir_version: 8, opset_import: ["" : 17, "f" : 1]>
        g (float[2] x, bool c) => (float[2] y) {{
            {condition}
            d = And(b, c)
            y = If(d) <then_branch = t () => (float[2] p) {{ p = Neg(x) }},
                       else_branch = e () => (float[2] q) {{ q = Abs(x) }}>
        }}
        <opset_import: ["" : 17], domain: "f"> inverse (v) => (w) {{ w = Not(v) }}"""
    )
    specialise(model, {"c": True})
    assert model.graph.node[-1].op_type == "If"


def test_an_if_that_another_input_decides_stays() -> None:
    whole = parser.parse_model(
        NESTED.replace("bool flag,", "bool flag, bool other,").replace("Not(flag)", "And(flag, other)")
    )
    specialise(whole, {"flag": True})
    assert [node.op_type for node in whole.graph.node].count("If") == 1


@each(
    "values, message",
    [
        ({"flagg": True}, "has no input 'flagg'"),
        ({"flag": 0.5}, "is bool, and can't be 0.5"),
        ({"x": 1}, "has an axis of any size"),
    ],
)
def test_a_value_that_can_not_be_is_refused(values: dict[str, float], message: str) -> None:
    whole = parser.parse_model(NESTED.replace("float[2] x", "float[n] x"))
    with pytest.raises(UsageError, match=message):
        specialise(whole, values)


SIZES = """
<ir_version: 8, opset_import: ["" : 17]>
m (int64[batch,seq] ids, float[batch,6,4] heard) => (float[batch,h,6,w] keys, float[batch,seq,4] logits) {
    hidden = Gather(table, ids)
    normed = Softmax(hidden)
    sizes = Shape(normed)
    zero = Constant<value_int = 0>()
    two = Constant<value_int = 2>()
    batch = Gather(sizes, zero)
    width = Gather(sizes, two)
    axis = Constant<value_ints = [0]>()
    first = Unsqueeze(batch, axis)
    last = Unsqueeze(width, axis)
    rest = Constant<value_ints = [1, 6]>()
    shape = Concat<axis = 0>(first, rest, last)
    keys = Reshape(heard, shape)
    logits = Identity(normed)
}
"""


@pytest.mark.parametrize("batch", ["Gather(sizes, zero)", "Constant<value_int = -1>()"])
def test_a_size_is_read_of_the_input_whose_values_are_needed(batch: str, tmp_path: Path) -> None:
    """The batch, which both inputs have, and the width, a number: the keys do not depend on the tokens then."""
    whole = parser.parse_model(SIZES.replace("Gather(sizes, zero)", batch))
    whole.graph.initializer.append(onnx.numpy_helper.from_array(np.ones((9, 4), np.float32), "table"))
    onnx.save(whole, tmp_path / "m.onnx")
    ids, heard = np.zeros((3, 2), np.int64), np.random.default_rng(0).normal(size=(3, 6, 4)).astype(np.float32)
    made = specialised(graphcut.load(tmp_path / "m.onnx"), {}, ["keys"])
    assert made.graph.reads == ("heard",)
    assert np.array_equal(run(made.proto, heard=heard)[0], run(whole, ids=ids, heard=heard)[0])


def test_a_size_that_only_the_other_input_has_is_still_read_of_it(tmp_path: Path) -> None:
    whole = parser.parse_model(SIZES.replace("two = Constant<value_int = 2>()", "two = Constant<value_int = 1>()"))
    whole.graph.initializer.append(onnx.numpy_helper.from_array(np.ones((9, 4), np.float32), "table"))
    onnx.save(whole, tmp_path / "m.onnx")
    made = specialised(graphcut.load(tmp_path / "m.onnx"), {}, ["keys"])
    assert made.graph.reads == ("ids", "heard")


def test_an_output_of_a_branch_has_no_symbol_that_has_become_a_number(tmp_path: Path) -> None:
    """Both outputs of the If are declared as long as `x`; the branch that is taken makes one of them longer."""
    parsed = parser.parse_model("""
        <ir_version: 8, opset_import: ["" : 17]>
        m (bool flag, float[n] x, float[4] past) => (float[n] y, float[n] kept) {
            y, kept = If(flag) <
                then_branch = g () => (float[n] a, float[n] b) { a = Neg(x) b = Concat<axis = 0>(past, x) },
                else_branch = h () => (float[n] c, float[n] d) { c = Abs(x) d = Identity(x) }
            >
        }
    """)
    onnx.save(parsed, tmp_path / "m.onnx")
    made = specialised(graphcut.load(tmp_path / "m.onnx"), {"flag": True}, dims={"n": 1})
    assert [made.tensors[name].shape for name in ("x", "y", "kept")] == [(1,), (1,), (5,)]
