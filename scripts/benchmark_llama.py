"""A llama with random weights in 4 bits, for ONNX Runtime and for llama.cpp: the same sizes, so the same work."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from zlib import crc32

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

FAINT = 0.003  # what the last layers add is so much of what others add
BLOCK = 32  # weights that share a scale, in Q4_0 of llama.cpp, too
OF_MICROSOFT = {"MatMulNBits", "GroupQueryAttention", "SkipSimplifiedLayerNormalization"}


@dataclass(frozen=True)
class Llama:
    """Sizes. The defaults are 246 million weights."""

    hidden: int = 1024
    layers: int = 14
    heads: int = 16
    width: int = 2816  # of the MLP
    vocab: int = 32000
    context: int = 512
    bits: int = 4  # of the weights of matrices, for ONNX Runtime: 4 or 32
    faint: int = 0  # so many of the last layers change little: without them it is a good draft of itself
    seed: int = 0  # of the weights; two with the same one have the same in layers that both have

    @property
    def head(self) -> int:
        """The width of a head."""
        return self.hidden // self.heads

    @property
    def matrices(self) -> dict[str, tuple[int, int]]:
        """The matrices of a layer, [outputs, inputs], by their names in llama.cpp."""
        square = dict.fromkeys(("attn_q", "attn_k", "attn_v", "attn_output"), (self.hidden, self.hidden))
        return {
            **square,
            **dict.fromkeys(("ffn_gate", "ffn_up"), (self.width, self.hidden)),
            "ffn_down": (self.hidden, self.width),
        }


class _Graph:
    """Nodes and weights so far. What adds to them returns the name of a tensor."""

    def __init__(self, bits: int, seed: int) -> None:
        self.bits, self._seed = bits, seed
        self.nodes: list[onnx.NodeProto] = []
        self.weights: list[TensorProto] = []

    def constant(self, name: str, values: np.ndarray) -> str:
        self.weights.append(numpy_helper.from_array(values, name))
        return name

    def node(self, op: str, reads: list[str], writes: str | list[str], **attributes: object) -> str:
        names, domain = [writes] if isinstance(writes, str) else writes, "com.microsoft" * (op in OF_MICROSOFT)
        self.nodes.append(helper.make_node(op, reads, names, name=f"/{names[0]}", domain=domain, **attributes))
        return names[0]

    def times(self, x: str, name: str, rows: int, columns: int, made: str = "", size: float = 1.0) -> str:
        """`x` times a random matrix: of float32, or in 4 bits, and where it meets activations, these have 8."""
        draw = np.random.default_rng((self._seed, crc32(name.encode())))
        if self.bits == 32:
            scale = np.float32(size * 1.7 / columns**0.5)
            weight = (draw.random((columns, rows), dtype=np.float32) - 0.5) * scale
            return self.node("MatMul", [x, self.constant(f"{name}.weight", weight)], made or f"{name}.out")
        packed = draw.integers(0, 256, (rows, columns // BLOCK, BLOCK // 2), dtype=np.uint8)
        scales = (draw.random((rows, columns // BLOCK), dtype=np.float32) + 0.5) * np.float32(size / (8 * columns**0.5))
        reads = [x, self.constant(f"{name}.weight", packed), self.constant(f"{name}.scales", scales)]
        sizes = {"K": columns, "N": rows, "bits": 4, "block_size": BLOCK, "accuracy_level": 4}
        return self.node("MatMulNBits", reads, made or f"{name}.out", **sizes)

    def normed(self, x: str, added: str, name: str, total: str, width: int) -> str:
        """The norm of a sum, which is written to `total`."""
        reads = [x, added, self.constant(f"{name}.weight", np.ones(width, np.float32))]
        return self.node("SkipSimplifiedLayerNormalization", reads, [name, "", "", total], epsilon=1e-6)


def write_onnx(llama: Llama, path: Path) -> None:
    """As ONNX Runtime GenAI's builder writes it."""
    graph, hidden, matrices = _Graph(llama.bits, llama.seed), llama.hidden, llama.matrices
    angles = np.arange(llama.context)[:, None] * 10000.0 ** (-np.arange(0, llama.head, 2) / llama.head)
    tables = [graph.constant(name, f(angles).astype(np.float32)) for name, f in (("cos", np.cos), ("sin", np.sin))]
    one, axis = graph.constant("1", np.array([1], np.int64)), graph.constant("axis", np.array(1, np.int64))
    last = graph.node("Sub", [graph.node("ReduceSum", ["attention_mask", one], "sum", keepdims=0), one], "last")
    total = graph.node("Gather", [graph.node("Shape", ["attention_mask"], "shape"), axis], "total")
    lengths = [graph.node("Cast", [name], f"{name}.int32", to=TensorProto.INT32) for name in (last, total)]
    rows = np.random.default_rng(1).standard_normal((llama.vocab, hidden), dtype=np.float32)
    residual = graph.node("Gather", [graph.constant("embedding", rows), "input_ids"], "embedded")
    first = graph.constant("norm.weight", np.ones(hidden, np.float32))
    x = graph.node("SimplifiedLayerNormalization", [residual, first], "norm", epsilon=1e-6, axis=-1, stash_type=1)
    caches: list[tuple[str, str]] = []
    heads = {"num_heads": llama.heads, "kv_num_heads": llama.heads, "scale": llama.head**-0.5, "do_rotary": 1}
    for i in range(llama.layers):
        size = FAINT if i >= llama.layers - llama.faint else 1.0
        at, names = f"blk.{i}", [(f"past_key_values.{i}.{kind}", f"present.{i}.{kind}") for kind in ("key", "value")]
        pasts, presents = map(list, zip(*names, strict=True))
        qkv = graph.times(x, f"{at}.attn_qkv", 3 * hidden, hidden)
        reads = [qkv, "", "", *pasts, *lengths, *tables]
        attended = graph.node("GroupQueryAttention", reads, [f"{at}.attn", *presents], **heads)
        added = graph.times(attended, f"{at}.attn_output", hidden, hidden, size=size)
        x = graph.normed(residual, added, f"{at}.ffn_norm", f"{at}.middle", hidden)
        gate, up = (graph.times(x, f"{at}.{name}", *matrices[name]) for name in ("ffn_gate", "ffn_up"))
        silu = graph.node("Mul", [gate, graph.node("Sigmoid", [gate], f"{at}.sigmoid")], f"{at}.silu")
        gated = graph.node("Mul", [silu, up], f"{at}.mul")
        added = graph.times(gated, f"{at}.ffn_down", *matrices["ffn_down"], size=size)
        x = graph.normed(f"{at}.middle", added, f"{at}.norm", f"{at}.sum", hidden)
        residual = f"{at}.sum"
        caches += names
    graph.times(x, "output", llama.vocab, hidden, "logits")
    typed = helper.make_tensor_value_info
    inputs = [typed(n, TensorProto.INT64, ["batch", s]) for n, s in (("input_ids", "seq"), ("attention_mask", "total"))]
    outputs = [typed("logits", TensorProto.FLOAT, ["batch", "seq", llama.vocab])]
    for past, present in caches:
        inputs.append(typed(past, TensorProto.FLOAT, ["batch", llama.heads, "past", llama.head]))
        outputs.append(typed(present, TensorProto.FLOAT, ["batch", llama.heads, "total", llama.head]))
    opsets = [helper.make_opsetid("", 21), helper.make_opsetid("com.microsoft", 1)]
    made = helper.make_graph(graph.nodes, "llama", inputs, outputs, graph.weights)
    model = helper.make_model(made, opset_imports=opsets, ir_version=10)
    path.with_name(f"{path.name}.data").unlink(missing_ok=True)  # else it would get longer
    onnx.save(model, path, save_as_external_data=True, location=f"{path.name}.data")


def write_gguf(llama: Llama, path: Path) -> None:
    """The same for llama.cpp, in Q4_0, without a vocabulary. Needs `pip install gguf`."""
    import gguf

    draw = np.random.default_rng(0)
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_context_length(llama.context)
    writer.add_embedding_length(llama.hidden)
    writer.add_block_count(llama.layers)
    writer.add_feed_forward_length(llama.width)
    writer.add_head_count(llama.heads)
    writer.add_head_count_kv(llama.heads)
    writer.add_layer_norm_rms_eps(1e-6)
    writer.add_rope_dimension_count(llama.head)
    writer.add_vocab_size(llama.vocab)
    writer.add_tokenizer_model("no_vocab")
    writer.add_file_type(gguf.LlamaFileType.MOSTLY_Q4_0)

    def matrix(name: str, rows: int, columns: int) -> None:
        blocks = draw.integers(0, 256, (rows, columns // BLOCK, 2 + BLOCK // 2), dtype=np.uint8)
        scales = ((draw.random((rows, columns // BLOCK)) + 0.5) / (8 * columns**0.5)).astype(np.float16)
        blocks[:, :, :2] = scales[..., None].view(np.uint8)
        raw = blocks.reshape(rows, -1)
        writer.add_tensor(f"{name}.weight", raw, raw_dtype=gguf.GGMLQuantizationType.Q4_0)

    matrix("token_embd", llama.vocab, llama.hidden)
    for i in range(llama.layers):
        for name, (rows, columns) in llama.matrices.items():
            matrix(f"blk.{i}.{name}", rows, columns)
        for name in ("attn_norm", "ffn_norm"):
            writer.add_tensor(f"blk.{i}.{name}.weight", np.ones(llama.hidden, np.float32))
    writer.add_tensor("output_norm.weight", np.ones(llama.hidden, np.float32))
    matrix("output", llama.vocab, llama.hidden)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
