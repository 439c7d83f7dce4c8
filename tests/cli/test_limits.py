"""Numbers and files that are too large: a sentence and a code, never a traceback, within two gigabytes of memory."""

from __future__ import annotations

import resource
import subprocess
import sys
import zipfile
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import ModelProto, TensorProto, helper

from graphcut import UsageError
from graphcut.inputs.input_files import read_inputs

from command_line import SCRIPT, Result, Run, environment, llm, parts, run
from conftest import doubling, floats, model_of

__all__ = ["llm", "parts", "run"]

NINES = "9" * 20
MANY = "9" * 5000
"""More digits than Python reads as a number."""


@pytest.fixture
def home(tmp_path: Path, llm: Path, parts: Path) -> Path:
    """A folder with a model, a cascade, and two models of one node."""
    (tmp_path / "llm.onnx").symlink_to(llm)
    (tmp_path / "parts").symlink_to(parts)
    for name, shape in (("open", ("b", 4)), ("huge", (2**40, 2**40)), ("long", (2**52,))):
        nodes = [helper.make_node("Relu", ["x"], ["a"], name="a"), helper.make_node("Relu", ["a"], ["y"], name="b")]
        onnx.save(model_of(nodes, [floats("x", *shape)], [floats("y", *shape)]), tmp_path / f"{name}.onnx")
    cluster = "[[devices]]\nname = 'a'\nflops_per_s = 1e-300\n[[devices]]\nname = 'b'\n"
    (tmp_path / "slow.toml").write_text(cluster)
    return tmp_path


@pytest.mark.parametrize(
    ("words", "code", "message"),
    [
        (f"analyze open.onnx --dim b={2**62}", 2, f"dimension 'b' can't be {2**62}"),
        (f"analyze open.onnx --dim b={NINES}", 2, f"--dim b={NINES}: expected NAME=N with N >= 0"),
        (f"analyze open.onnx --dim b={MANY}", 2, "--dim b=999"),
        (
            f"plan open.onnx --num-splits 2 --dim b={2**55}",
            2,
            "the tensors of open.onnx take more than 64 PiB, 'x' alone",
        ),
        ("plan huge.onnx --num-splits 2", 3, "the tensors of huge.onnx take more than 64 PiB, 'x' alone"),
        ("analyze huge.onnx", 3, "the tensors of huge.onnx take more than 64 PiB, 'x' alone"),
        ("split long.onnx --at-nodes a", 0, ""),
        ("verify long.parts", 2, f"no values can be generated for input 'x': it has the shape [{2**52}]"),
        (f"plan llm.onnx --num-splits 2 --profile prefill:{NINES}", 2, f"the length of a profile can't be {NINES}"),
        (f"plan llm.onnx --num-splits {NINES}", 4, "the model can be cut into"),
        (f"plan llm.onnx --memory {MANY}", 2, "'999"),
        (f"generate parts --prompt-ids {MANY}", 2, "--prompt-ids '999"),
        (f"simulate parts --requests {NINES}", 2, f"{NINES} requests can't be simulated"),
        ("verify parts --seed -1", 2, "Invalid value for '--seed'"),
        (
            *("plan llm.onnx --cluster slow.toml", 3),
            "slow.toml: devices[0]: flops_per_s of device 'a' can't be 1e-300: expected a number from 1e-30 to 1e30",
        ),
    ],
    ids=lambda case: case[:50] if isinstance(case, str) else "",
)
def test_a_number_beyond_all_limits_is_refused(run: Run, home: Path, words: str, code: int, message: str) -> None:
    if words.startswith("verify long"):
        run("split", home / "long.onnx", "--at-nodes", "a")
    if words.startswith("simulate"):
        (home / "slow.toml").write_text("[[devices]]\nname = 'a'\n[[devices]]\nname = 'b'\n")
        words += " --cluster slow.toml"
    result = run(*words.split())
    assert result.code == code, result.err
    assert code == 0 or result.error[0].startswith(message), result.err


# npz
def npz(path: Path, header: bytes, content: bytes = b"", method: int = zipfile.ZIP_STORED) -> Path:
    """A file with a member `x` of a header in Python's notation, and the bytes of its values."""
    padded = header + b" " * (-len(header) % 64) + b"\n"
    with zipfile.ZipFile(path, "w", method) as archive:
        archive.writestr("x.npy", b"\x93NUMPY\x01\0" + len(padded).to_bytes(2, "little") + padded + content)
    return path


CLAIM = b"{'descr': '<f4', 'fortran_order': False, 'shape': (%d,)}"


def test_a_member_that_claims_more_than_the_file_holds_is_refused_before_memory_is_taken(tmp_path: Path) -> None:
    path = npz(tmp_path / "x.npz", CLAIM % 2**56, bytes(8))
    with pytest.raises(UsageError, match=rf"'x' can't be read: it claims {2**58:,} bytes, and the file holds"):
        read_inputs(path, ["x"])
    path = npz(tmp_path / "y.npz", b"{'descr': '<U0', 'fortran_order': False, 'shape': (%d,)}" % 2**56)
    with pytest.raises(UsageError, match="it claims"):
        read_inputs(path, ["x"])


@pytest.mark.parametrize("method", [zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED], ids=["stored", "deflated"])
def test_an_array_that_compresses_well_is_read(tmp_path: Path, method: int) -> None:
    path = npz(tmp_path / "x.npz", CLAIM % 1_000_000, bytes(4_000_000), method)
    assert np.array_equal(read_inputs(path, ["x"])["x"], np.zeros(1_000_000, np.float32))  # type: ignore[arg-type]


# Memory
LIMIT_BYTES = 2_000_000_000


def limited(*words: object, seconds: float = 20) -> Result:
    """The command in a process of its own that may have two gigabytes of address space."""
    done = subprocess.run(
        [SCRIPT, *map(str, words)],
        capture_output=True,
        check=False,
        env=environment(OPENBLAS_NUM_THREADS="1"),
        timeout=seconds,
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_AS, (LIMIT_BYTES, LIMIT_BYTES)),
    )
    return Result(done.returncode, done.stdout.decode(), done.stderr.decode())


def claiming() -> ModelProto:
    """A shape of 16 GiB in a file of 100 bytes."""
    shape = TensorProto(name="s", data_type=TensorProto.INT64, dims=[2**31 - 1], raw_data=bytes(8))
    return model_of([helper.make_node("Reshape", ["x", "s"], ["y"])], [floats("x", 2)], [floats("y", 2)], [shape])


def long_name() -> ModelProto:
    nodes = [helper.make_node("Relu", ["x"], ["a"], name="n" * 1_000_000), helper.make_node("Relu", ["a"], ["y"])]
    return model_of(nodes, [floats("x", 2)], [floats("y", 2)])


def long_vector() -> ModelProto:
    """onnx's data propagation makes a message for each element of a vector: here 40 times joined with itself."""
    nodes = [helper.make_node("Concat", [f"t{i}", f"t{i}"], [f"t{i + 1}"], axis=0) for i in range(40)]
    nodes.append(helper.make_node("Mul", ["t40", "t40"], ["y"]))
    return model_of(nodes, [floats("t0", 2)], [floats("y", None)])


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux limits the address space")
@pytest.mark.parametrize(
    ("model", "code", "message"),
    [
        (claiming(), 3, "error: the initializer 's' has 8 bytes, and by its shape [2147483647] 17,179,869,176"),
        (
            doubling(40),
            3,
            "error: the calls of functions stand for 1,099,511,627,776 nodes",
        ),
        (long_name(), 0, "next: graphcut split"),
        (long_vector(), 0, "next: graphcut split"),
    ],
    ids=["a shape of 16 GiB", "2**40 calls", "a name of a megabyte", "a vector of 2**40 elements"],
)
def test_a_small_file_does_not_take_the_machine(tmp_path: Path, model: ModelProto, code: int, message: str) -> None:
    onnx.save(model, tmp_path / "m.onnx")
    result = limited("analyze", tmp_path / "m.onnx")
    assert result.code == code, result.err
    assert result.err.startswith(message)


def test_too_little_memory_is_said(run: Run, llm: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_args: object, **_options: object) -> object:
        raise MemoryError("Unable to allocate 4.00 EiB")

    monkeypatch.setattr("graphcut.loading.opening.load", fail)
    result = run("analyze", llm)
    assert (result.code, result.error[0]) == (3, "there is not enough memory: Unable to allocate 4.00 EiB")
