"""Processor seconds and memory of opening and planning large models of four shapes."""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from functools import partial, reduce
from pathlib import Path

import numpy as np
from benchmark_processes import GRAPHCUT, Measured, measure
from onnx import TensorProto, helper, numpy_helper

WIDTH = 64  #: numbers of each tensor, for each of a batch.
CHAINS = 100  #: of the wide shape.
DECODER = ["--hidden", "16", "--attention-heads", "2", "--kv-heads", "1", "--vocab", "32"]
NODES_OF_LAYER = 58.2  #: of that decoder.
GIB = 1 << 30
GOALS = {"analyze": "1 / 6 s, 600 MiB", "plan": "3 / 15 s, 400 / 1024 MiB"}
"""What is to be reached with 10,000 and with 100,000 nodes."""

COMMANDS = ("analyze", "parts", "memory", "3", "8")
"""Analyzing, parts of equal time, parts of a quarter of the file, and clusters of so many unequal devices."""


def bench_shapes(
    folder: Path, *, small: bool, commands: Sequence[str] = ("analyze", "parts", "memory", "3", "8")
) -> None:
    """A table: shapes and commands down, sizes across, and the exponent from the least size to the largest one."""
    sizes = (1_000, 3_000) if small else (10_000, 30_000, 100_000)
    print(f"{'processor seconds and peak MiB':<42}" + "".join(f"{n:>9,} nodes" for n in sizes) + "  exponent")
    for shape in ("chain", "branching", "wide", "decoder"):
        paths = {n: write_shape(shape, n, folder / f"{shape}-{n}.onnx") for n in sizes}
        for command in commands:
            found = {n: measure(words(command, path)) for n, path in paths.items()}
            print(row_of(f"{shape}, {command_name(command)}", found), flush=True)


def row_of(name: str, found: dict[int, Measured]) -> str:
    """A row of the table; `found` is by the number of nodes."""
    least, most = min(found), max(found)
    exponent = math.log(found[most].processor_s / found[least].processor_s) / math.log(most / least)
    cells = "".join(f"{one.processor_s:>8.1f} {one.peak_mib:>6.0f}" for one in found.values())
    goal = GOALS["analyze" if name.endswith("analyze") else "plan"]
    return f"{name:<42}{cells}  {exponent:.2f}   goal: {goal}, 1.1"


def command_name(command: str) -> str:
    """A command in words."""
    names = {"parts": "plan --num-splits 4", "memory": "plan --memory, files", "analyze": "analyze"}
    return names.get(command, f"plan --cluster, {command} unequal devices")


def words(command: str, path: Path) -> list[str | Path]:
    """The command line for a model; a part may have a quarter of its file and the shared weight."""
    model_bytes = path.stat().st_size
    if command == "analyze":
        return [*GRAPHCUT, "analyze", path]
    if command == "parts":
        return [*GRAPHCUT, "plan", path, "--num-splits", "4"]
    if command == "memory":
        return [*GRAPHCUT, "plan", path, "--memory", f"{model_bytes // 4 + 5 * WIDTH * WIDTH}", "--count", "files"]
    cluster = path.with_suffix(f".{command}.toml")
    cluster.write_text("".join(device(i, model_bytes) for i in range(int(command))), encoding="utf-8")
    return [*GRAPHCUT, "plan", path, "--cluster", cluster]


def device(i: int, model_bytes: int) -> str:
    """One device of a cluster file; no two are alike."""
    numbers = {
        "memory_bytes": model_bytes * (4 + i) // 30 + GIB,
        "flops_per_s": 1e11 / (1 + i / 4),
        "link_bytes_per_s": 1.25e8 * (1 + i % 3),
    }
    return f'[[devices]]\nname = "device {i}"\n' + "".join(f"{key} = {value}\n" for key, value in numbers.items())


def write_shape(shape: str, nodes: int, path: Path) -> Path:
    """A model with about so many nodes."""
    if shape == "decoder":
        measure([*GRAPHCUT, "demo", "llm", *DECODER, "--layers", f"{round(nodes / NODES_OF_LAYER)}", "-o", path, "-f"])
        return path
    made = _Nodes()
    ends = {"chain": _chain, "branching": _branching, "wide": _wide}[shape](made, nodes)
    reads, writes = ([_value(name) for name in names] for names in (["x"], ends))
    graph = helper.make_graph(made.nodes, shape, reads, writes, made.weights)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    path.write_bytes(model.SerializeToString())
    return path


class _Nodes:
    """Nodes as they are made, and weights."""

    def __init__(self) -> None:
        self.nodes = []
        self.weights = [numpy_helper.from_array(np.zeros((WIDTH, WIDTH), np.float32), "w")]

    def add(self, op: str, *reads: str) -> str:
        """A node; returns the name of what it writes. An `Add` of one tensor adds a weight of its own."""
        if op == "Add" and len(reads) == 1:
            self.weights.append(numpy_helper.from_array(np.zeros(WIDTH, np.float32), f"b{len(self.weights)}"))
            reads = (*reads, self.weights[-1].name)
        reads = (*reads, "w") if op == "MatMul" else reads
        number = len(self.nodes)
        self.nodes.append(helper.make_node(op, reads, [f"t{number}"], name=f"n{number}"))
        return f"t{number}"


def _chain(made: _Nodes, nodes: int, read: str = "x") -> list[str]:
    for i in range(nodes):
        read = made.add(("MatMul", "Add", "Add", "Relu")[i % 4], read)
    return [read]


def _branching(made: _Nodes, nodes: int) -> list[str]:
    """Each node reads one of the last eight tensors; some add one of the last forty."""
    draw, names = random.Random(0), ["x"]  # noqa: S311 - the same graph each time
    for _ in range(nodes):
        op, near, far = draw.choice(("Relu", "MatMul", "Add", "Add")), draw.choice(names[-8:]), draw.choice(names[-40:])
        names.append(made.add(op, near, far) if op == "Add" else made.add(op, near))
    is_read = {name for node in made.nodes for name in node.input}
    return [name for name in names[1:] if name not in is_read]


def _wide(made: _Nodes, nodes: int) -> list[str]:
    """Chains beside each other, added up."""
    ends = [end for _ in range(CHAINS) for end in _chain(made, nodes // CHAINS - 1)]
    return [reduce(partial(made.add, "Add"), ends)]


def _value(name: str):  # noqa: ANN202 - onnx's messages are not typed here
    return helper.make_tensor_value_info(name, TensorProto.FLOAT, ["batch", WIDTH])
