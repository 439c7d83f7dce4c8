"""Long names lose their middle, and different names stay different."""

from __future__ import annotations

import random

from graphcut.core.text import shortened

from cases import each

LAYERS = [
    f"StatefulPartitionedCall/tf_bert_model/bert/encoder/layer_._{layer}/attention/self/{name}/MatMul:0"
    for layer in range(3)
    for name in ("query", "key")
]
"""Neither their first nor their last letters tell the layers apart."""


@each("room", [16, 24, 40, 60])
def test_tensors_of_different_layers_look_different(room: int) -> None:
    found = shortened(LAYERS, room)
    assert len({*found}) == len(LAYERS)
    assert all(len(text) <= room for text in found)


def test_a_name_keeps_its_beginning_and_its_end() -> None:
    assert shortened(["/model/embed/Gather", "/model/norm/Mul", "x"], 12) == ["/mode…Gather", "/mode…rm/Mul", "x"]
    assert shortened(["/model/embed/Gather"], 13, dots="...") == ["/mode...ather"]
    assert shortened(["/model/embed/Gather"], 19) == ["/model/embed/Gather"]


def test_names_that_differ_in_no_letter_that_is_left_are_numbered() -> None:
    names = [f"{'a' * 50}{middle}{'b' * 50}" for middle in "xy"]
    assert shortened(names, 8) == ["aa…bbb 1", "aa…bbb 2"]


def test_random_names_stay_different_where_there_is_room() -> None:
    for seed in range(200):
        draw = random.Random(seed)  # noqa: S311
        words = ["model", "layers", "attn", "mlp", "0", "1", "12", "MatMul", "Add_1"]
        names = list({"/".join(draw.choices(words, k=draw.randint(1, 9))) for _ in range(draw.randint(1, 12))})
        room = draw.randint(10, 40)
        found = shortened(names, room)
        assert len({*found}) == len(names), (seed, room, names, found)
        assert all(len(text) <= room for text in found)
