"""`graphcut demo`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from graphcut import demos

from command_line import Run, run

__all__ = ["run"]


def test_every_option_of_a_demo_reaches_it(run: Run, tmp_path: Path) -> None:
    ours, theirs = tmp_path / "ours" / "small.onnx", tmp_path / "theirs" / "small.onnx"
    words = "--hidden 16 --layers 1 --attention-heads 2 --kv-heads 1 --intermediate 24 --vocab 8 --dtype float16"
    for path in (ours, theirs):
        path.parent.mkdir()
    assert run("demo", "llm", "-o", ours, *words.split(), "--tied", "--external").code == 0
    options: dict[str, Any] = {"hidden": 16, "layers": 1, "heads": 2, "kv_heads": 1, "intermediate": 24, "vocab": 8}
    demos.write("llm", theirs, external=True, dtype="float16", tied=True, **options)
    assert ours.read_bytes() == theirs.read_bytes()
    assert Path(f"{ours}.data").read_bytes() == Path(f"{theirs}.data").read_bytes()


@pytest.mark.parametrize("name", demos.DEMOS)
def test_a_demo_is_written_into_the_current_folder(run: Run, name: str) -> None:
    more = ("--hidden", "16", "--vocab", "8") if name == "llm" else ()
    result = run("demo", name, *more)
    assert (result.code, result.out) == (0, "")
    assert result.err == f"wrote {name}.onnx\nnext: graphcut analyze {name}.onnx\n"
    assert run("analyze", f"{name}.onnx").code == 0
