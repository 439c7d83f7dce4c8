"""A model with large weights in a sparse file, and a process of its own to run it in."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper

from conftest import floats, model_of

WIDTH = 3072
WEIGHT_BYTES = 4 * WIDTH * WIDTH


def write_heavy(path: Path, layers: int, *, spots: int = 64, transposed: bool = False) -> None:
    """x → x + x · W for each layer; W is zero except for some elements, so that its file is sparse."""
    data = path.with_name(f"{path.name}.data")
    with data.open("wb") as file:
        file.truncate(layers * WEIGHT_BYTES)
    random = np.random.default_rng(7)
    stored = np.memmap(data, np.float32, "r+", shape=(layers, WIDTH, WIDTH))
    nodes, weights = [], []
    for i in range(layers):
        stored[i, random.integers(0, WIDTH, spots), random.integers(0, WIDTH, spots)] = random.normal(size=spots)
        factor = f"W{i}"
        if transposed:
            factor = f"T{i}"
            nodes.append(helper.make_node("Transpose", [f"W{i}"], [factor], name=f"turn{i}", perm=[1, 0]))
        nodes.append(helper.make_node("MatMul", [f"x{i}", factor], [f"p{i}"], name=f"mul{i}"))
        nodes.append(helper.make_node("Add", [f"x{i}", f"p{i}"], [f"x{i + 1}"], name=f"add{i}"))
        weight = TensorProto(name=f"W{i}", data_type=TensorProto.FLOAT, dims=[WIDTH, WIDTH])
        weight.data_location = TensorProto.EXTERNAL
        for key, value in (("location", data.name), ("offset", i * WEIGHT_BYTES), ("length", WEIGHT_BYTES)):
            weight.external_data.add(key=key, value=str(value))
        weights.append(weight)
    stored.flush()
    proto = model_of(nodes, [floats("x0", "rows", WIDTH)], [floats(f"x{layers}", "rows", WIDTH)], weights)
    onnx.save(proto, path)


def in_a_process(code: str, *arguments: object) -> Any:  # noqa: ANN401 - as the code says
    """Run `code` in a process of its own, where `given` holds the arguments; returns what it puts into `said`."""
    given = json.dumps([str(argument) for argument in arguments])
    program = f"import json, sys\ngiven = json.loads(sys.argv[1])\nsaid = {{}}\n{code}\nprint(json.dumps(said))"
    done = subprocess.run([sys.executable, "-c", program, given], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)
