"""Small models that a pipeline has between or after those of an exporter: they are made, and in no file.

`made_models.toml` has their text.
"""

from typing import Final, Literal

from onnx import ModelProto, parser

from ..core.records import table

MadeModel = Literal["mean pooling", "cls pooling", "max pooling", "normalize", "at first"]
"""What it does with vectors of tokens [batch, seq, width], or with vectors [batch, width].

`at first`: what is read at the first step of a sequence alone."""

_FIRST_OPSET: Final = 13  #: before it, ReduceSum has no input for axes.


def made_model(kind: MadeModel, opset: int) -> ModelProto:
    """The model of a kind; it imports this version of ONNX's operators. A ValueError for one before 13."""
    if opset < _FIRST_OPSET:
        raise ValueError(f"{kind!r} needs operators of opset {_FIRST_OPSET}, not {opset}")
    texts = table("loading/made_models.toml", dict[str, str])
    largest = "ReduceMax<axes = [1], keepdims = 0>(seen)" if opset < 18 else "ReduceMax<keepdims = 0>(seen, one)"
    text = texts["pooling"].replace("{body}", texts[kind]) if kind.endswith("pooling") else texts[kind]
    return parser.parse_model(f'<ir_version: 8, opset_import: ["" : {opset}]>{text.replace("{largest}", largest)}')
