"""Small models that a pipeline has between or after those of an exporter: they are made, and in no file."""

from typing import Final, Literal, get_args

from onnx import ModelProto, parser

MadeModel = Literal["mean pooling", "cls pooling", "max pooling", "normalize"]
"""What it does with vectors of tokens [batch, seq, width], or with vectors [batch, width]."""

_FIRST_OPSET: Final = 13  #: before it, ReduceSum has no input for axes.
_POOLED: Final = {
    # sentence-transformers, models/Pooling.py: what counts are the tokens that the mask does not leave out.
    "mean pooling": """
        sums = ReduceSum<keepdims = 0>(shown, one)
        number = ReduceSum<keepdims = 0>(weights, one)
        least = Constant<value_float = 1e-9>()
        some = Max(number, least)
        pooled = Div(sums, some)""",
    "cls pooling": """
        zero = Constant<value_int = 0>()
        pooled = Gather<axis = 1>(token_embeddings, zero)""",
    "max pooling": """
        unit = Constant<value_float = 1.0>()
        low = Constant<value_float = -1e9>()
        hidden = Sub(unit, weights)
        far = Mul(hidden, low)
        seen = Add(shown, far)
        pooled = {largest}""",
}
_POOLING: Final = """
pooling (float[batch,seq,width] token_embeddings, int64[batch,seq] attention_mask)
    => (float[batch,width] pooled) {{
    one = Constant<value_ints = [1]>()
    last = Constant<value_ints = [-1]>()
    floats = Cast<to = 1>(attention_mask)
    weights = Unsqueeze(floats, last)
    shown = Mul(token_embeddings, weights)
    {body}
}}"""
_NORMALIZE: Final = """
normalize (float[batch,width] x) => (float[batch,width] sentence_embedding) {
    last = Constant<value_ints = [-1]>()
    squares = Mul(x, x)
    sum = ReduceSum(squares, last)
    norm = Sqrt(sum)
    least = Constant<value_float = 1e-12>()
    some = Max(norm, least)
    sentence_embedding = Div(x, some)
}"""


def made_model(kind: MadeModel, opset: int) -> ModelProto:
    """The model of a kind; it imports this version of ONNX's operators. A ValueError for one before 13."""
    if opset < _FIRST_OPSET:
        raise ValueError(f"{' and '.join(get_args(MadeModel))} need operators of opset {_FIRST_OPSET}, not {opset}")
    largest = "ReduceMax<axes = [1], keepdims = 0>(seen)" if opset < 18 else "ReduceMax<keepdims = 0>(seen, one)"
    body = _POOLED.get(kind, "").format(largest=largest)
    text = _NORMALIZE if kind == "normalize" else _POOLING.format(body=body)
    return parser.parse_model(f'<ir_version: 8, opset_import: ["" : {opset}]>{text}')
