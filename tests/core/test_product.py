from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType

import msgspec

import graphcut
from graphcut import demos
from graphcut.core.product import Product, short_repr

from cases import each

RECORDS = [
    "Node",
    "Tensor",
    "TensorEdge",
    "Device",
    "Cache",
    "CutPoint",
    "Part",
    "NetworkLink",
    "ScheduledFailure",
    "SessionConfig",
    "Sampling",
    "Culprit",
    "ModelChange",
    "TensorError",
]
"""Public records of few fields, each with a `repr` that Python or msgspec makes."""


@dataclass(frozen=True, repr=False)
class Named(Product):
    name: str
    values: tuple[object, ...]


@dataclass(frozen=True, repr=False)
class Wide(Product):
    a: object
    b: object
    c: object
    d: object
    e: object


class Listed(Product, msgspec.Struct, frozen=True):
    numbers: list[int]


@each(
    ("value", "text"),
    [
        (None, "None"),
        (3, "3"),
        ("x", "'x'"),
        ((), "()"),
        ([1, 2], "[1, 2]"),
        ((1, "a", None), "(1, 'a', None)"),
        ({1}, "{1}"),
        ({"a": (1,)}, "{'a': (1)}"),
        (MappingProxyType({}), "{}"),
        ([1, 2, 3, 4], "<4 int>"),
        (dict.fromkeys(range(1000), "x"), "<1,000 str>"),
        (object(), "<object>"),
        (Named("n", (1, 2)), "Named(name='n', values=(1, 2))"),
        (Listed([1, 2, 3, 4]), "Listed(numbers=<4 int>)"),
        ("x" * 200, f"'{'x' * 95}...'"),
    ],
)
def test_a_short_repr_says_sizes_where_repr_would_say_everything(value: object, text: str) -> None:
    assert short_repr(value) == text


def test_a_product_has_at_most_400_characters_in_its_repr_on_one_line() -> None:
    nested: object = "x" * 1000
    for _ in range(50):
        nested = Named("n" * 90, (nested, nested, nested))
    text = repr(Wide(nested, nested, nested, nested, nested))
    assert len(text) == 400
    assert "\n" not in text
    assert text.endswith("...)")


def test_every_product_of_a_model_has_a_short_repr(tmp_path: Path) -> None:
    demos.write("llm", tmp_path / "llm.onnx")
    model = graphcut.load(tmp_path / "llm.onnx", dims={"batch": 1, "seq": 4, "past": 0, "total": 4})
    analysis = graphcut.analyze(model)
    plan = graphcut.plan(analysis, graphcut.Into(3))
    cascade = graphcut.split(model, plan, tmp_path / "parts")
    report = graphcut.verify(model, cascade, structural_only=True)
    products = [
        *(model, model.graph, graphcut.weigh(model), graphcut.table_of(graphcut.weigh(model)), analysis),
        *(plan, plan.partition, plan.partition.blocks[0], plan.partition.wiring),
        *(cascade, cascade.manifest, cascade.parts[0], cascade.wiring, report, report.proof),
    ]
    for product in products:
        assert repr(product).startswith(f"{type(product).__name__}(")
        assert len(repr(product)) <= 400


def test_every_public_record_is_a_product_or_small() -> None:
    public = [getattr(graphcut, name) for name in graphcut.__all__]
    records = [kind for kind in public if isinstance(kind, type) and is_record(kind)]
    large = [kind for kind in records if not issubclass(kind, Product)]
    assert [kind.__name__ for kind in large if kind.__name__ not in RECORDS] == []


def is_record(kind: type) -> bool:
    return dataclasses.is_dataclass(kind) or issubclass(kind, msgspec.Struct)
