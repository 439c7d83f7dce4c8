"""`graphcut fetch` and `graphcut link`: what they print."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import onnx
import pytest
from checkpoints import save_safetensors
from onnx import numpy_helper
from range_server import serving

import graphcut
from graphcut import At

from command_line import MIDDLE, Run, llm, own_llm, run

__all__ = ["llm", "own_llm", "run"]


@pytest.fixture
def parts(own_llm: Path) -> Path:
    """The decoder in two parts."""
    return graphcut.split(own_llm, At((MIDDLE,)), own_llm.parent / "parts").root


def test_a_fetched_part_is_named_and_run_alone(run: Run, parts: Path) -> None:
    here = parts.parent / "here"
    fetched = run("fetch", parts, "--part", 1, "-o", here)
    assert (fetched.code, fetched.out) == (0, "")
    assert fetched.err.splitlines()[:2] == ["fetching part-1.onnx.data", f"{here} has part-1.onnx"]
    refused = run("run", here, "--inputs", "random", "-o", here / "y.npz")
    assert (refused.code, refused.error[0]) == (2, "inputs can't be generated for some parts alone")
    assert run("fetch", parts, "-o", here, "--quiet").out == f"{here / 'cascade.json'}\n"


def test_part_and_device_are_two_ways_to_say_which(run: Run, parts: Path) -> None:
    result = run("fetch", parts, "--part", 1, "--device", "nano", "-o", parts.parent / "here")
    assert (result.code, result.error[1]) == (2, "leave out one of them")


@pytest.mark.parametrize("each", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupted_fetch_ends_at_once_and_says_that_it_goes_on(parts: Path, each: signal.Signals) -> None:
    """The server never answers."""
    with serving(parts) as served:
        served.most_ranges = 0
        words = [sys.executable, "-m", "graphcut", "fetch", served.url, "-o", str(parts.parent / "here")]
        process = subprocess.Popen(words, stderr=subprocess.PIPE)
        while not served.ranges:
            assert process.poll() is None
            time.sleep(0.01)
        process.send_signal(each)
        sent_at = time.monotonic()
        assert process.stderr is not None
        said = process.communicate()[1].decode()
        took_s = time.monotonic() - sent_at
        served.most_ranges = None
    assert took_s < 5  # usually half a second; it was 185
    assert (process.returncode, said) == (
        128 + each,
        f"interrupted; the same command goes on with what is in {parts.parent / 'here'}\n",
    )


def test_the_coverage_of_a_linked_model_is_reported(run: Run, own_llm: Path) -> None:
    weights = [tensor for tensor in onnx.load(own_llm).graph.initializer if len(tensor.raw_data) >= 1024]
    saved = {tensor.name: numpy_helper.to_array(tensor) for tensor in weights[1:]}
    folder = own_llm.parent
    save_safetensors(folder / "model.safetensors", saved)
    result = run("link", own_llm, "--checkpoint", folder, "-o", folder / "linked.onnx")
    n = len(saved)
    assert result.code == 0
    assert [line.partition(" (")[0] for line in result.out.splitlines()] == [f"{n} weights", "1 weight"]
    assert f"the largest that were not found: {weights[0].name!r}; the checkpoint has F32" in result.err
    assert "--transposed" not in result.err
    square = next(name for name, value in saved.items() if value.ndim == 2 and "proj" in name)
    save_safetensors(folder / "model.safetensors", {square: np.ascontiguousarray(saved[square].T)})
    result = run("link", own_llm, "--checkpoint", folder, "-o", folder / "linked.onnx", "--force")
    assert "of these (1 weight) are in the checkpoint transposed: --transposed refers to them" in result.err
    save_safetensors(folder / "model.safetensors", saved)
    quiet = run("link", own_llm, "--checkpoint", folder, "-o", folder / "linked.onnx", "--force", "--quiet")
    assert (quiet.out, quiet.err) == (f"{folder / 'linked.onnx'}\n", "")
