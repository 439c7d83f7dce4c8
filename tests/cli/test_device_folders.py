"""`fetch --device` and `show --to devices`: a folder for each device of a plan, and running what is in it."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
from msgspec.structs import replace

import graphcut
from graphcut import CascadeError, Into, demos
from graphcut.core.manifest import PlannedDevice, save_manifest
from graphcut.core.present_parts import open_present

from command_line import SMALL, Run, run

__all__ = ["run"]


@pytest.fixture
def parts(tmp_path: Path) -> Path:
    """A cascade in three parts for two devices, with a tokenizer."""
    demos.write("llm", tmp_path / "llm.onnx", **SMALL)
    (tmp_path / "tokenizer.json").write_text("{}")
    cascade = graphcut.split(tmp_path / "llm.onnx", Into(3), tmp_path / "llm.parts")
    names = ("laptop", "board 1", "laptop")
    manifest = replace(
        cascade.manifest,
        devices=tuple(PlannedDevice(name=name, memory_bytes=None) for name in ("laptop", "board 1")),
        parts=tuple(replace(part, device=name) for part, name in zip(cascade.parts, names, strict=True)),
    )
    save_manifest(manifest, cascade.path)
    return cascade.root


def test_each_device_gets_its_own_files_and_the_tokenizer(run: Run, parts: Path, tmp_path: Path) -> None:
    done = run("fetch", parts, "--device", "board 1", "-o", tmp_path / "board")
    names = ["cascade.json", "fetched.json", "part-1.onnx", "part-1.onnx.data", "tokenizer.json"]
    assert sorted(file.name for file in (tmp_path / "board").iterdir()) == names
    assert done.err.splitlines()[-1] == f"next: rsync -a {tmp_path}/board/ 'board 1':{parts}/"
    run("fetch", parts, "--device", "laptop", "-o", tmp_path / "laptop")
    files = [f"part-{k}.onnx{end}" for k in (0, 2) for end in ("", ".data")]
    assert sorted(file.name for file in (tmp_path / "laptop").iterdir()) == [
        *("cascade.json", "fetched.json"),
        *files,
        "tokenizer.json",
    ]


def test_the_next_command_copies_to_the_folder_where_a_worker_looks_for_the_parts(
    run: Run, parts: Path, tmp_path: Path
) -> None:
    """Without symbolic links: on the device they may not be."""
    (tmp_path / "link").symlink_to(parts)
    done = run("fetch", tmp_path / "link", "--device", "laptop", "-o", tmp_path / "out")
    assert done.err.splitlines()[-1] == f"next: rsync -a {tmp_path}/out/ laptop:{parts}/"


def test_parts_of_other_devices_in_a_folder_are_named(run: Run, parts: Path, tmp_path: Path) -> None:
    run("fetch", parts, "--device", "laptop", "-o", tmp_path / "out")
    done = run("fetch", parts, "--device", "board 1", "-o", tmp_path / "out")
    others = "part-0.onnx (laptop), part-2.onnx (laptop)"
    assert done.err.splitlines()[-3:-1] == [
        f"{tmp_path}/out has part-1.onnx",
        f"note: it also has {others}: choose another folder with -o, unless one machine is both devices",
    ]


@pytest.mark.parametrize("given", ["parts", "manifest"])
def test_the_folder_of_the_cascade_is_no_folder_for_a_device(run: Run, parts: Path, given: str) -> None:
    source = parts if given == "parts" else parts / "cascade.json"
    refused = run("fetch", source, "--device", "laptop", "-o", parts.parent / "." / parts.name)
    assert refused.code == 2
    assert refused.error == (f"{parts} is the folder of the cascade itself", "choose another folder with -o")


@pytest.mark.parametrize(
    ("words", "following"),
    [(("--device", "laptop"), "rsync"), (("--part", 1), None), ((), "graphcut")],
    ids=["device", "part", "all"],
)
def test_what_a_device_fetched_is_not_to_be_run_alone(
    run: Run, parts: Path, tmp_path: Path, words: tuple[object, ...], following: str | None
) -> None:
    done = run("fetch", parts, *words, "-o", tmp_path / "here")
    *_, has, last = ["", *done.err.splitlines(), *([] if following else ["next: none"])]
    assert (done.code, has.split()[0], last.split()[1]) == (0, f"{tmp_path}/here", following or "none")


def test_a_part_that_is_missing_is_named_with_its_device(run: Run, parts: Path, tmp_path: Path) -> None:
    np.savez(tmp_path / "x.npz", x=np.zeros(1))
    run("fetch", parts, "--device", "board 1", "-o", tmp_path / "board")
    alone = run("run", tmp_path / "board", "--inputs", tmp_path / "x.npz", "-o", tmp_path / "y.npz")
    assert "note: running part-1.onnx alone; not here: part-0.onnx (laptop), part-2.onnx (laptop)" in alone.err
    whole = run("generate", tmp_path / "board", "--prompt-ids", "1")
    assert whole.error[0] == f"{tmp_path}/board/part-0.onnx (laptop) is missing"


def test_what_a_device_holds_is_checked_shown_and_exported_by_itself(run: Run, parts: Path, tmp_path: Path) -> None:
    board, web = tmp_path / "board", tmp_path / "web"
    run("fetch", parts, "--device", "board 1", "-o", board)
    checked, shown = run("verify", board, "--files"), run("show", board)
    assert (checked.code, shown.code) == (0, 0)
    assert "  not in this folder: part-0.onnx (laptop), part-2.onnx (laptop)" in checked.out.splitlines()
    assert "note: not in this folder: part-0.onnx (laptop), part-2.onnx (laptop)" in shown.out.splitlines()
    assert any(line.startswith("This folder has 1 of 3 parts.") for line in shown.out.splitlines())
    assert shown.err == f"next: graphcut verify {board} --files\n"
    assert "no tensor crosses a boundary between the parts here" in shown.out.splitlines()
    assert "sends here" in shown.out
    packed = run("export", board, "--to", "model-package", "-o", tmp_path / "package")
    assert f"note: not here, nor in {tmp_path / 'package'}: part-0.onnx (laptop), part-2.onnx (laptop)" in packed.err
    package = json.loads((tmp_path / "package" / "manifest.json").read_text())
    assert package["additional_metadata"]["graphcut"]["elsewhere"] == dict(open_present(board).manifest.elsewhere)
    assert run("export", board, "--to", "js", "-o", web).code == 0
    whole = graphcut.open_cascade(parts)
    assert open_present(web).parts == whole.parts[1:2]
    assert open_present(web).manifest.reads == whole.parts[1].reads
    assert graphcut.verify_files(web)
    refused = run("export", board, "--to", "lingualinked", "-o", tmp_path / "maps")
    message = f"lingualinked takes all parts, and {board} lacks part-0.onnx (laptop), part-2.onnx (laptop)"
    assert (refused.code, refused.error[0]) == (2, message)
    compared = run("verify", board)
    hint = "this folder has other parts alone: `graphcut run` runs them, and `graphcut verify DIR --files` checks them"
    assert (compared.code, compared.error) == (3, (f"{board}/part-0.onnx (laptop) is missing", hint))


@pytest.mark.parametrize("name", ["part-1.onnx", "part-1.onnx.data"])
def test_what_a_device_has_lost_is_found(run: Run, parts: Path, name: str, tmp_path: Path) -> None:
    run("fetch", parts, "--device", "board 1", "-o", tmp_path / "board")
    (tmp_path / "board" / name).unlink()
    checked = run("verify", tmp_path / "board", "--files", "--json")
    assert (checked.code, f"/{name}" in checked.out, '"elsewhere": [' in checked.out) == (1, True, True)
    assert run("show", tmp_path / "board").code == 3


def test_a_fetched_folder_to_which_all_parts_came_is_whole(run: Run, parts: Path, tmp_path: Path) -> None:
    for name in ("laptop", "board 1"):
        run("fetch", parts, "--device", name, "-o", tmp_path / "all")
    assert not (tmp_path / "all" / "fetched.json").exists()
    (tmp_path / "all" / "part-0.onnx").unlink()
    assert run("verify", tmp_path / "all", "--files").code == 1


@pytest.mark.parametrize("by", ["removal", "link"])
def test_a_run_with_a_lost_part_is_an_error_and_writes_nothing(run: Run, parts: Path, tmp_path: Path, by: str) -> None:
    lost = (parts / "part-2.onnx").rename(tmp_path / "real.onnx")
    said = f"{parts}/part-2.onnx (laptop) is missing"
    if by == "link":
        (parts / "part-2.onnx").symlink_to(lost)
        said = f"{parts}/part-2.onnx is a link to {str(lost)!r}, which is outside its folder"
    refused = run("run", parts, "--inputs", "random", "-o", tmp_path / "y.npz")
    assert (refused.code, refused.error[0]) == (3, said)
    assert not (tmp_path / "y.npz").exists()
    with pytest.raises(CascadeError, match="part-2"):
        graphcut.run(parts, {})


def test_devices_are_listed_with_their_commands(run: Run, parts: Path) -> None:
    shutil.move(parts / "part-2.onnx", parts / "elsewhere")
    done = run("show", parts, "--to", "devices")
    lines = done.out.splitlines()
    assert [line.split()[0] for line in lines[:3]] == ["device", "laptop", "board"]
    assert "1 of 2" in lines[1]
    assert "part-0.onnx, part-2.onnx" in lines[1]
    assert lines[3:] == [
        "",
        f"graphcut fetch {parts} --device laptop -o laptop",
        """ray start --address=HEAD:6379 --resources='{"dev:laptop": 1}'""",
        "",
        f"graphcut fetch {parts} --device 'board 1' -o 'board 1'",
        """ray start --address=HEAD:6379 --resources='{"dev:board 1": 1}'""",
    ]
    note = "on the head, where you call graphcut: --head --port=6379 instead of --address=HEAD:6379"
    assert done.err == f"note: {note}\n"


def test_a_cascade_without_devices_has_none_to_list(run: Run, tmp_path: Path) -> None:
    demos.write("llm", tmp_path / "llm.onnx", **SMALL)
    graphcut.split(tmp_path / "llm.onnx", Into(2), tmp_path / "two")
    refused = run("show", tmp_path / "two", "--to", "devices")
    assert (refused.code, refused.error[0]) == (2, f"{tmp_path}/two/cascade.json was not planned for devices")


@pytest.mark.parametrize("words", [("-o", "x.html"), ("--force",), ("--open",)], ids=" ".join)
def test_the_list_of_devices_is_no_drawing(run: Run, parts: Path, words: tuple[str, ...]) -> None:
    refused = run("show", parts, "--to", "devices", *words)
    assert (refused.code, refused.error[0].endswith(" does not apply to --to devices")) == (2, True)
