"""`graphcut plan`, `split` with goals, and `measure`, as somebody meets them who has never seen them."""

from __future__ import annotations

import json
import os
import re
import shlex
import stat
from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import graphcut
from graphcut import Across, Into, Within, demos
from graphcut.core.units import duration, given_bytes, size, sizes_as_given
from graphcut.costs.tables import read_table, shipped_tables
from graphcut.planning.goals import Goal, Recomputing

from cases import crossed, each, some
from command_line import SMALL, Result, Run, holdings, parts, run
from control_flow import write_model

__all__ = ["parts", "run"]

LAST = "/lm_head/MatMul"
FIRST_LAYER = "/model/layers.0/add_1"
CLUSTER = """
[[devices]]
name = "pi"
memory_bytes = "20MiB"
flops_per_s = 1e10

[[devices]]
name = "jetson"
memory_bytes = "40MiB"
flops_per_s = 5e11

[[devices]]
name = "laptop"
flops_per_s = 2e11

[[links]]
between = ["pi", "jetson"]
bytes_per_s = "200MB"
"""
GOALS: Mapping[str, Sequence[str]] = {
    "at": ("--at-nodes", FIRST_LAYER),
    "into": ("--num-splits", "3"),
    "layers": ("--num-splits", "3", "--count", "layers"),
    "bytes": ("--num-splits", "3", "--count", "bytes"),
    "within": ("--memory", "39KiB", "--count", "files"),
    "counted": ("--memory", "20MB", "--count", "activations,cache", "--count", "inputs"),
    "throughput": ("--cluster", "CLUSTER"),
    "decode": ("--cluster", "CLUSTER", "--objective", "decode", "--in-flight", "3"),
    "heads": ("--heads", "logits"),
}


@pytest.fixture(scope="session")
def house(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Models and a cluster, for reading only."""
    home = tmp_path_factory.mktemp("house")
    demos.write("llm", home / "llm.onnx", hidden=16, layers=3, heads=2, kv_heads=1, vocab=32)
    for name in ("unet", "resnet", "multitask", "control-flow"):
        write_model(name, home / f"{name}.onnx")
    demos.write("llm", home / "layer.onnx", **{**SMALL, "layers": 1})
    (home / "cluster.toml").write_text(CLUSTER)
    return home


@pytest.fixture
def llm(house: Path) -> Path:
    return house / "llm.onnx"


def goal(house: Path, name: str) -> list[str]:
    return [word.replace("CLUSTER", str(house / "cluster.toml")) for word in GOALS[name]]


def size_text(name: str, number: int) -> str:
    """A size in units like that which the options of a goal give."""
    with sizes_as_given():
        given_bytes(next((word for word in GOALS[name] if word[0].isdigit()), "1MiB"))
        return size(number)


def as_json(result: Result) -> Any:  # noqa: ANN401 - JSON
    assert result.code == 0, result.err
    return json.loads(result.out)


@pytest.fixture(scope="session")
def printed() -> dict[str, str]:
    """What `plan` prints for each of the goals that were planned already; their plan files are beside the models.

    Like these for all tests of a worker, which may come back to this file after tests of another one.
    """
    return {}


@pytest.fixture
def planned(run: Run, house: Path, printed: dict[str, str]) -> Callable[[str], tuple[str, Path]]:
    """What `plan` prints for a goal, and its file, which is what it prints as JSON: planned once for all tests."""

    def plan_of(name: str) -> tuple[str, Path]:
        file = house / f"{name}.plan.json"
        if name not in printed:
            result = run("plan", house / "llm.onnx", *goal(house, name), "-o", file)
            assert result.code == 0, result.err
            printed[name] = result.out
        return printed[name], file

    return plan_of


def bytes_of(part: Path) -> int:
    data = part.with_name(f"{part.name}.data")
    return part.stat().st_size + (data.stat().st_size if data.exists() else 0)


# What a plan shows


@pytest.mark.parametrize("name", GOALS)
def test_text_and_json_have_the_same_figures(planned: Callable[[str], tuple[str, Path]], name: str) -> None:
    out, file = planned(name)
    lines, record = out.splitlines(), json.loads(file.read_text(encoding="utf-8"))
    start = next(i for i, line in enumerate(lines) if line.startswith("part "))
    titles = re.split(r"  +", lines[start].strip())
    for row, part in zip(lines[start + 1 :], record["parts"], strict=False):
        line = re.sub("━+ *│", "bar", row)
        cells = dict(zip(titles, re.split(r"  +", line.strip()), strict=True))
        assert cells["up to"] == part["nodes"][-1]
        assert cells["nodes"] == f"{part['predicted']['nodes']:,}"
        if predicted := part["predicted"]:
            if name not in {"counted", "throughput", "decode"}:  # these count more than files
                assert cells["weights and graph"] == size_text(name, predicted["written_bytes"])
            assert cells["activations"] == size_text(name, predicted["activation_bytes"])
            assert cells["receives"] == (size_text(name, found) if (found := predicted["received_bytes"]) else "-")
            assert cells["time"] == duration(predicted["busy_s"])
    rows = [row for kind in ("sequential", "residual") for row in record[kind].values()]
    sent = {tensor for row in rows for tensors in row.values() for tensor in tensors}
    written = {tensor for part in record["parts"] for tensor in part["writes"]}
    assert sent <= written
    number = len(record["parts"])
    assert lines[1].startswith(f"Cut into {number} parts. " if number > 1 else "One part holds the whole model. ")


def test_the_json_of_a_plan_is_its_plan_file(run: Run, llm: Path) -> None:
    said = as_json(run("plan", llm, "--num-splits", "2", "-o", "said.json", "--json"))
    assert said == json.loads(Path("said.json").read_text(encoding="utf-8"))
    assert (said["format"], said["gap"]) == ("graphcut.plan/1", 0.0)
    assert [*said["sequential"]] == ["0"]
    assert {*said["sequential"]["0"]["1"]} <= {*said["parts"][0]["writes"]} & {*said["parts"][1]["reads"]}


@crossed(
    ("objective", "model"),
    ["throughput", "latency", "bytes", "devices"],
    ["unet", "control-flow", "multitask"],
    times=1,
    together=1,
)
def test_nothing_is_better_than_its_bound(run: Run, house: Path, model: str, objective: str) -> None:
    result = run("plan", house / f"{model}.onnx", "--cluster", house / "cluster.toml", "--objective", objective)
    assert result.code == 0, result.err
    assert "gap of -" not in result.out
    assert "gap of 0.0%" not in result.out, "what equals its bound is proven"


def test_a_plan_names_the_speed_that_its_times_assume(run: Run, llm: Path) -> None:
    """Without a cluster they are those of a machine that nobody has named."""
    out = run("plan", llm, "--num-splits", "2").out
    assert "100 GFLOP/s" in out


@crossed(("model", "parts"), ["llm", "unet", "resnet", "multitask"], [2, 3], times=1, together=4)
def test_the_predicted_time_is_that_of_the_slowest_part(run: Run, house: Path, model: str, parts: int) -> None:
    record = as_json(run("plan", house / f"{model}.onnx", "--num-splits", parts, "--json"))
    slowest = max(part["predicted"]["busy_s"] for part in record["parts"])
    assert record["outcome"]["value"] == pytest.approx(slowest, rel=0.02)


def test_no_plan_by_layers_is_faster_than_the_one_by_time(run: Run, llm: Path) -> None:
    """Least of all than one of which it is result that no cut does better."""
    slowest = {}
    for by in ("time", "layers", "bytes", "flops"):
        parts = as_json(run("plan", llm, "--num-splits", 3, "--count", by, "--json"))["parts"]
        slowest[by] = max(part["predicted"]["busy_s"] for part in parts)
    assert slowest["time"] == min(slowest.values())


def test_more_parts_than_layers_still_compute_what_is_cheaper_than_sending(run: Run, tmp_path: Path) -> None:
    demos.write("llm", tmp_path / "llm.onnx", hidden=16, layers=8, heads=2, kv_heads=1, vocab=32)
    slowest = []
    for count in (8, 10):
        record = as_json(run("plan", tmp_path / "llm.onnx", "--num-splits", count, "--json"))
        slowest.append(max(part["predicted"]["busy_s"] for part in record["parts"]))
    assert slowest[1] <= slowest[0]


# What is asked wrongly

ANY_GOAL = "use one of --num-splits 4, --memory 2GB, --cluster FILE, --heads, --at-nodes NAMES"


@pytest.mark.parametrize(
    ("words", "error"),
    [
        ("", ("no cut requested", ANY_GOAL)),
        ("--num-splits 2 --heads", ("--num-splits and --heads are different goals", ANY_GOAL)),
        ("split", ("no cut requested", f"{ANY_GOAL}, --plan FILE")),
        ("--num-splits 0 --memory 1MB", ("a model can't have 0 parts", "allow 1 or more")),
        ("--heads --at-nodes x", ("--at-nodes and --heads are different goals", ANY_GOAL)),
        ("--num-splits 0", ("a model can't be cut into 0 parts", "ask for 1 or more")),
        ("--num-splits -1", ("a model can't be cut into -1 parts", "ask for 1 or more")),
        ("--memory lots", ("'lots' is not a size", "write it like 512MiB, 2GB or 1.5GiB")),
        ("--memory 0", ("a part can't have 0 bytes", "allow more, such as --memory 512MiB")),
        (
            "--memory 1MB --count disk",
            ("--count can't be 'disk'", "it is one or more of files, activations, inputs, cache"),
        ),
        ("--memory 1MB --count files,cache", ("--count files,cache: files are counted alone", "leave the others out")),
        ("--heads logit", ("the model has no output 'logit'", r"did you mean 'logits'\? its outputs: logits, .*")),
        ("--heads logits,logits", ("output 'logits' is in two heads", "name each output once")),
        ("--num-splits 2 --pin x", ("--pin x: expected NODE=PART", "for example --pin .*=1")),
        ("--num-splits 2 --pin x=1", ("no node or tensor is called 'x'", ".*")),
        ("--num-splits 2 --avoid x", ("no node or tensor is called 'x'", ".*")),
        ("--num-splits 2 --avoid x*y", (r"no node or tensor matches 'x\*y'", ".*")),
        ("--num-splits 2 --dim nope=3", ("llm.onnx has no symbolic dimension 'nope'", "its symbolic dimensions: .*")),
        (
            "--num-splits 2 --cost-model no.csv",
            (
                "no.csv can't be read: No such file or directory",
                "name a CSV file; cost models that come with .*Phi-3.5-mini.*",
            ),
        ),
        (
            "split --plan no.json",
            ("no.json can't be read: No such file or directory", "`graphcut plan MODEL -o FILE` .*"),
        ),
        ("--cluster no.toml", ("no.toml can't be read: No such file or directory", "name a TOML file .*")),
        ("--cluster CLUSTER --objective decode --in-flight 0", ("0 sequences can't be in flight", ".*1 or more")),
        ("--num-splits 2 --profile decode:0", ("--profile decode:0: expected prefill or decode.*", "for example .*")),
        ("--num-splits 2 --count size", ("--count can't be 'size'", ".*one or more of time, layers, .*")),
        ("--num-splits 2 --count time,bytes", ("--count time,bytes: --num-splits balances one", "name one of them")),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_misuse_has_a_message_and_a_hint(
    run: Run, house: Path, tmp_path: Path, words: str, error: tuple[str, str]
) -> None:
    filled = words.replace("CLUSTER", str(house / "cluster.toml")).split()
    command = filled.pop(0) if "split" in filled else "plan"
    result = run(command, house / "llm.onnx", *filled, "-o", tmp_path / "out")
    assert result.code == (3 if " no." in words else 2), result.err
    for pattern, line in zip(error, result.error, strict=True):
        assert re.fullmatch(pattern, line), line
    assert holdings(tmp_path) == set()


@pytest.mark.parametrize(
    ("option", "owner"),
    [("--count cache", "--num-splits or --memory"), ("--objective bytes", "--cluster")],
)
def test_an_option_of_another_goal_is_refused(run: Run, llm: Path, option: str, owner: str) -> None:
    """Adding the goal it belongs to would make two goals."""
    name, value = option.split()
    result = run("plan", llm, "--at-nodes", FIRST_LAYER, name, value)
    assert result.code == 2
    assert result.error[0] == f"{name} applies to {owner}, not to --at-nodes"
    assert "leave" in result.error[1] or "instead" in result.error[1]


@pytest.mark.parametrize("words", [("--ranks", 2), ("--sum",)])
def test_ranks_of_a_plan_need_a_cluster(run: Run, tmp_path: Path, words: tuple[object, ...]) -> None:
    told = run("plan", tmp_path / "none.onnx", "--num-splits", 2, *words).error[0]
    assert told == f"{words[0]} applies to --cluster"


@pytest.mark.parametrize(
    "words",
    [
        "--at-nodes NODE --prove",
        "--at-nodes NODE --inside-layers never",
        "--heads logits --prove",
        "--heads logits --inside-layers never",
        "--cluster CLUSTER --in-flight 2",
        "--cluster CLUSTER --ranks 2:1",
    ],
)
def test_an_option_that_would_do_nothing_is_refused_by_its_name(run: Run, house: Path, words: str) -> None:
    places = {"NODE": FIRST_LAYER, "CLUSTER": house / "cluster.toml"}
    result = run("plan", house / "llm.onnx", *(places.get(word, word) for word in words.split()))
    assert (result.code, words.split()[2]) == (2, result.error[0].split()[0])


@pytest.mark.parametrize("number", [10**6, 10**20])
def test_too_many_parts_are_refused(run: Run, llm: Path, number: int) -> None:
    result = run("plan", llm, "--num-splits", number)
    assert "defect" not in result.err
    assert result.code in {2, 4}
    assert re.search(r"into [\d,]+ parts at most", result.error[0])


def test_a_number_of_parts_and_a_budget_are_both_kept(run: Run, llm: Path, tmp_path: Path) -> None:
    """At most so many parts of at most so many bytes, in units like those given; else no plan fits."""
    words = (llm, "--count", "files", "--memory", "40kB", "--num-splits")
    needed = len(as_json(run("plan", *words[:-1], "--json"))["parts"])
    for number in (needed, needed + 1):
        assert len(as_json(run("plan", *words, number, "--json"))["parts"]) == needed
    for command in ("plan", "split"):
        refused = run(command, *words, needed - 1, "-o", tmp_path / "out")
        assert (refused.code, holdings(tmp_path)) == (4, set())
        told = rf"this (needs|has) {needed} parts of at most 40 kB.*, and at most {needed - 1} may be made"
        assert re.fullmatch(told, refused.error[0])
    assert f"in at most {needed} parts, at most 40 kB per part" in run("plan", *words, needed).out


@each(
    ("units", "options"),
    [
        ("kB MB", ("--memory", "2MB")),
        ("KiB MiB", ("--memory", "2000KiB")),
        ("KiB MiB", ("--memory", "2000000")),
        ("KiB MiB", ("--num-splits", 2)),
    ],
)
def test_all_sizes_of_a_command_are_in_units_like_the_given_one(
    run: Run, house: Path, units: str, options: Sequence[object]
) -> None:
    for command, more in (("plan", ()), ("split", ("-o", "parts")), ("auto", ("-o", "auto"))):
        result = run(command, house / "unet.onnx", *options, *more)
        assert result.code == 0, result.err
        found = set(re.findall(r"\d ([kKMG]i?B)(?!/)", result.out + result.err))
        assert set() < found <= set(units.split()), result.out


# Goals that nothing meets


@crossed(
    ("model", "more"),
    ["layer", "unet", "resnet", "multitask", "control-flow"],
    [(), ("--inside-layers", "always")],
    times=1,
    together=1,
)
def test_an_impossible_budget_names_one_that_works(
    run: Run, house: Path, tmp_path: Path, model: str, more: Sequence[str]
) -> None:
    words = ("plan", house / f"{model}.onnx", *more, "-o", tmp_path / "plan.json", "-q")
    result = run(*words, "--memory", 1000)
    assert (result.code, holdings(tmp_path)) == (4, set())
    budgets = re.findall(r"--memory (\d+) \(", result.error[1])
    assert run(*words, "--memory", budgets[0]).code == 0
    again = run("split", house / f"{model}.onnx", "--plan", tmp_path / "plan.json", "-o", tmp_path / "out", "-q")
    assert again.code == 0, again.err
    parts = [file for file in (tmp_path / "out").iterdir() if file.suffix == ".onnx"]
    assert max(map(bytes_of, parts)) <= int(budgets[0])


@pytest.mark.parametrize("count", ["files", "activations", "activations,inputs,cache"])
def test_the_size_in_a_refusal_is_above_the_limit(run: Run, house: Path, count: str) -> None:
    layer = house / "layer.onnx"
    result = run("plan", layer, "--memory", 1, "--count", count)
    needed = int(re.findall(r"--memory (\d+) \(", result.error[1])[0])
    again = run("plan", layer, "--memory", int(needed * 0.999), "--count", count)
    assert again.code == 4
    if numbers := re.search(r"alone takes ([\d.]+ \w+), more than the budget of ([\d.]+ \w+)", again.error[0]):
        units = {"B": 1.0, "KiB": 2.0**10, "MiB": 2.0**20}
        wanted, allowed = (float(text.split()[0]) * units[text.split()[1]] for text in numbers.groups())
        assert wanted > allowed


@pytest.mark.parametrize("goal", ["memory", "cluster"])
def test_an_edited_plan_over_its_budget_is_refused(run: Run, llm: Path, tmp_path: Path, goal: str) -> None:
    (tmp_path / "cluster.toml").write_text(
        "".join(f'[[devices]]\nname = "d{i}"\nmemory_bytes = "1GB"\n' for i in range(2))
    )
    words = {
        "memory": ("--memory", "1GB", "--count", "activations"),
        "cluster": ("--cluster", tmp_path / "cluster.toml"),
    }
    assert run("plan", llm, *words[goal], "-o", tmp_path / "plan.json").code == 0
    text = (tmp_path / "plan.json").read_text()
    (tmp_path / "plan.json").write_text(re.sub(r'"memory_bytes": 1000000000', '"memory_bytes": 20000', text))
    result = run("split", llm, "--plan", tmp_path / "plan.json", "-o", tmp_path / "parts")
    assert result.code == 4
    assert re.fullmatch(r"part 0 needs [\d,]+ bytes, but the plan allows 20,000", result.error[0])


def test_a_model_too_large_for_any_device_names_the_largest_device(run: Run, llm: Path, tmp_path: Path) -> None:
    """All devices together have room for it; what is too big is one segment for one device."""
    text = "".join(f'[[devices]]\nname = "d{i}"\nmemory_bytes = "1MB"\n' for i in range(8))
    (tmp_path / "cluster.toml").write_text(text)
    result = run("plan", llm, "--cluster", tmp_path / "cluster.toml")
    assert result.code == 4
    assert "1 MB" in re.findall(r"[\d.]+ [kM]B", result.error[0]), "what the largest device holds, as its file says it"


def test_where_no_division_fits_the_sizes_that_were_assumed_are_said(run: Run, llm: Path, tmp_path: Path) -> None:
    """Each layer fits, all together do not, with the activations of 512 tokens; with those of 16 they do."""
    text = "".join(f'[[devices]]\nname = "d{i}"\nmemory_bytes = "1.4MB"\n' for i in range(3))
    (tmp_path / "cluster.toml").write_text(text)
    words = ("plan", llm, "--cluster", tmp_path / "cluster.toml")
    refused = run(*words)
    assert (refused.code, "activations for batch=1, seq=512, past=0, total=512" in refused.error[0]) == (4, True)
    assert refused.error[1].endswith("; or set smaller sizes with --dim")
    assert run(*words, "--dim", "seq=16", "--dim", "total=16").code == 0


def test_unsatisfiable_pins_and_unknown_parts_are_different_errors(run: Run, llm: Path) -> None:
    result = run("plan", llm, "--num-splits", 2, "--pin", f"{LAST}=0")
    assert result.code == 4
    assert result.error[0] == "no cut into 2 parts puts every pinned node into its part"
    assert "there is no part 7" in run("plan", llm, "--num-splits", 2, "--pin", f"{LAST}=7").error[0]


def test_the_cost_of_limits_is_shown(run: Run, llm: Path) -> None:
    free = run("plan", llm, "--num-splits", 2, "--count", "flops").out
    pinned = run("plan", llm, "--num-splits", 2, "--count", "flops", "--pin", "/model/layers.1/add_1=0").out
    value = re.search(r"^FLOPs of the heaviest part +([\d.]+ \w+);", free, re.MULTILINE)
    assert value is not None
    assert re.search(rf"^limits +{re.escape('/model/layers.1/add_1')} in p0$", pinned, re.MULTILINE)
    assert re.search(rf"^without pins +{re.escape(value[1])}$", pinned, re.MULTILINE)


# From a plan to its parts


@crossed(("name", "recompute"), ["layers", "within", "throughput"], ["auto", "never"], times=1, together=1)
def test_plan_save_replay_verify(run: Run, house: Path, tmp_path: Path, name: str, recompute: Recomputing) -> None:
    words = (*goal(house, name), "--recompute", recompute)
    planned = run("plan", house / "llm.onnx", *words, "-o", tmp_path / "plan.json")
    assert planned.code == 0
    assert planned.err.splitlines()[0] == f"wrote {tmp_path / 'plan.json'}"
    following = planned.err.splitlines()[1].removeprefix("next: ")
    assert run(*shlex.split(following)[1:], "-o", tmp_path / "replayed", "-q").code == 0
    model, limits = graphcut.load(house / "llm.onnx"), graphcut.Limits(recompute=recompute)
    cluster = graphcut.read_cluster(house / "cluster.toml")
    goals: dict[str, Goal] = {
        "layers": Into(3, "layers"),
        "within": Within(39 * 1024, ()),
        "throughput": Across(cluster),
    }
    made = graphcut.plan(graphcut.analyze(model), goals[name], limits=limits)
    files = holdings(graphcut.split(model, made, tmp_path / "planned").root)
    assert files == holdings(tmp_path / "replayed") > {"cascade.json"}
    for file in files:
        assert (tmp_path / "planned" / file).read_bytes() == (tmp_path / "replayed" / file).read_bytes(), file
    if recompute == "auto" and "--count" not in words:  # the same files once more are no error
        assert run("split", house / "llm.onnx", *goal(house, name), "-o", tmp_path / "planned", "-q").code == 0
    verified = run("verify", tmp_path / "replayed")
    assert (verified.code, verified.out.splitlines()[0]) == (
        0,
        "✓ the cascade matches the model: same structure, runs are bit-identical",
    )
    again = json.loads((tmp_path / "plan.json").read_text())
    constants = {node.name for node in model.graph.nodes if node.is_constant}
    assert any(set(part["replicas"]) - constants for part in again["parts"]) == (recompute == "auto")


@pytest.mark.parametrize("model", ["unet", "resnet", "multitask", "control-flow"])
def test_every_demo_split_in_three_verifies(run: Run, house: Path, tmp_path: Path, model: str) -> None:
    assert run("split", house / f"{model}.onnx", "--num-splits", 3, "-o", tmp_path / "out", "-q").code == 0
    verified = run("verify", tmp_path / "out")
    assert verified.code == 0, verified.out


def test_heads_depend_only_on_the_trunk(run: Run, house: Path, tmp_path: Path) -> None:
    assert run("split", house / "multitask.onnx", "--heads", "-o", tmp_path / "out", "-q").code == 0
    record = as_json(run("show", tmp_path / "out", "--to", "json"))
    sources = {source for kind in ("sequential", "residual") for source in record[kind]}
    assert sources == {"0"}
    assert run("verify", tmp_path / "out").code == 0


def test_heads_may_stand_before_the_model(run: Run, house: Path) -> None:
    model = house / "multitask.onnx"
    assert run("plan", "--heads", model).out == run("plan", model, "--heads").out
    assert run("plan", "--prove", model, "--num-splits", 2).out == run("plan", model, "--num-splits", 2).out


def test_a_saved_plan_counts_sizes_for_the_dimensions_it_names(run: Run, llm: Path, tmp_path: Path) -> None:
    planned = run("plan", llm, "--num-splits", 3, "-o", tmp_path / "plan.json").out
    shown = run("show", tmp_path / "plan.json", "--model", llm).out
    assert "≥" not in planned
    assert "seq=512" in shown
    assert "≥" not in shown


def test_a_plan_for_another_model_is_refused_with_a_command_that_works(run: Run, house: Path, tmp_path: Path) -> None:
    assert run("plan", house / "llm.onnx", "--num-splits", 2, "-o", tmp_path / "plan.json").code == 0
    result = run("split", house / "unet.onnx", "--plan", tmp_path / "plan.json", "-o", tmp_path / "out")
    assert result.code == 2
    assert result.error[0].endswith("is a plan for llm.onnx, not for unet.onnx: the graphs differ")
    advised = shlex.split(result.error[1].partition("graphcut ")[2].rstrip("`"))
    assert run(*advised).code == 0


# Where a plan goes


def test_an_existing_file_is_kept_without_force(run: Run, llm: Path, tmp_path: Path) -> None:
    goal = tmp_path / "plan.json"
    goal.write_text("mine")
    result = run("plan", llm, "--num-splits", 2, "-o", goal)
    hint = "choose another name, or add --force"
    assert (result.code, result.error) == (2, (f"{goal} already exists", hint))
    assert goal.read_text() == "mine"
    assert run("plan", llm, "--num-splits", 2, "-o", goal, "--force").code == 0
    assert goal.read_text() != "mine"


@pytest.mark.parametrize("command", ["plan", "measure"])
def test_a_pipe_is_never_replaced(run: Run, llm: Path, tmp_path: Path, command: str) -> None:
    """Renamed over, /dev/null would be gone for everybody."""
    goal = tmp_path / "pipe"
    os.mkfifo(goal)
    words = ("--num-splits", 2) if command == "plan" else ("--computed",)
    assert run(command, llm, *words, "-o", goal, "--force").code in {2, 3}
    assert stat.S_ISFIFO(goal.lstat().st_mode)


def test_a_missing_folder_is_an_error_before_planning(
    run: Run, llm: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def never(*_: object, **__: object) -> None:
        raise AssertionError("planned for nothing")

    monkeypatch.setattr("graphcut.planning.planner.plan", never)
    result = run("plan", llm, "--num-splits", 2, "-o", tmp_path / "none" / "plan.json")
    assert result.code in {2, 3}
    assert "defect" not in result.error[1]


@pytest.mark.parametrize("command", ["plan", "split"])
def test_an_interrupt_while_planning_leaves_nothing(
    run: Run, llm: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, command: str
) -> None:
    def interrupted(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("graphcut.planning.searching.plan_into", interrupted)
    result = run(command, llm, "--num-splits", 2, "-o", tmp_path / "out")
    assert (result.code, result.out, holdings(tmp_path)) == (130, "", set())


# Why


@pytest.mark.parametrize("name", ["into", "layers", "within", "throughput"])
def test_a_saved_plan_explains_each_cut(run: Run, planned: Callable[[str], tuple[str, Path]], name: str) -> None:
    printed, file = planned(name)
    record, out = json.loads(file.read_text(encoding="utf-8")), run("show", file).out
    cuts = re.findall(r"^cut (\d+) after (.+)$", out, re.MULTILINE)
    assert [int(number) for number, _ in cuts] == list(range(len(record["parts"]) - 1))
    assert [place for _, place in cuts] == [reason["chosen"]["after"] for reason in record["reasons"]]
    shown = out.replace(" of `graphcut split`", "")  # `show` has no option of `plan`
    assert set(printed.splitlines()) <= set(shown.splitlines())


def test_next_best_places_are_no_better_than_a_proven_plan_and_in_order(run: Run, house: Path) -> None:
    for model, recompute in (("llm", "auto"), ("resnet", "never")):
        made = as_json(run("plan", house / f"{model}.onnx", "--num-splits", 3, "--recompute", recompute, "--json"))
        assert made["outcome"]["is_optimal"]
        for reason in made["reasons"]:
            costs = [cut["cost"] for cut in (reason["chosen"], *reason["alternatives"])]
            assert all(a <= b * (1 + 1e-9) for a, b in pairwise(costs)), (model, reason)


# Cost models


def test_a_computed_cost_model_of_the_same_model_changes_nothing(run: Run, house: Path, tmp_path: Path) -> None:
    for model in ("unet", "llm"):
        table = tmp_path / f"{model}.csv"
        assert run("measure", house / f"{model}.onnx", "--computed", "-o", table).code == 0
        words = ("plan", house / f"{model}.onnx", "--num-splits", 2, "--json")
        own, given = (
            as_json(result)["outcome"]["value"] for result in (run(*words), run(*words, "--cost-model", table))
        )
        assert given == pytest.approx(own, rel=0.02), model


def test_a_computed_cost_model_names_its_sizes(run: Run, llm: Path, tmp_path: Path) -> None:
    result = run("measure", llm, "--computed", "-o", tmp_path / "costs.csv")
    assert re.search(r"seq=\d+|sizes count .*seq.* as 1", result.out + result.err)
    bound = run("measure", llm, "--computed", "-o", tmp_path / "bound.csv", "--dim", "seq=7", "--dim", "batch=1")
    assert "seq=7" in bound.out


def test_a_plan_by_a_measured_cost_model_is_split(run: Run, house: Path, tmp_path: Path) -> None:
    table = tmp_path / "unet.csv"
    measured = run("measure", house / "unet.onnx", "-o", table, "--rounds", 1)
    assert measured.code == 0, measured.err
    assert " measured" in measured.out.splitlines()[0]
    assert run("plan", house / "unet.onnx", "--num-splits", 2, "--cost-model", table, "-o", "plan.json").code == 0
    result = run("split", house / "unet.onnx", "--plan", "plan.json", "-o", tmp_path / "out", "-q")
    assert result.code == 0, result.err
    assert run("verify", tmp_path / "out", "--structural").code == 0


def test_the_sizes_of_a_measured_cost_model_are_those_that_it_says(run: Run, house: Path, tmp_path: Path) -> None:
    computed = run("measure", house / "unet.onnx", "-o", "computed.csv", "--computed")
    measured = run("measure", house / "unet.onnx", "-o", "measured.csv", "--rounds", 1)
    assert "count batch as 1" in computed.out
    assert "sizes assume batch=1; set others with --dim" in measured.out
    own, found = (read_table(tmp_path / f"{name}.csv").rows for name in ("computed", "measured"))
    assert sum(row.num_flops for row in found) == sum(row.num_flops for row in own)
    np.savez(tmp_path / "three.npz", image=np.zeros((3, 3, 64, 64), np.float32))
    given = run("measure", house / "unet.onnx", "-o", "given.csv", "--rounds", 1, "--inputs", "three.npz")
    assert given.out.splitlines()[0].endswith("batch=3")
    assert "sizes" not in given.out


@pytest.mark.fuzz
@pytest.mark.parametrize("name", some([*shipped_tables()][:2], *[*shipped_tables()][2:]))
def test_a_shipped_cost_model_is_used_by_its_name(run: Run, llm: Path, name: str) -> None:
    record = as_json(run("plan", llm, "--num-splits", 2, "--cost-model", name, "--json"))
    assert record["coverage"]["matched"] > 0


def test_a_cost_model_that_matches_nothing_is_reported(run: Run, house: Path, tmp_path: Path) -> None:
    """Nothing of the plan comes from it, and who gave it believes that all does."""
    table = tmp_path / "llm.csv"
    assert run("measure", house / "llm.onnx", "--computed", "-o", table).code == 0
    result = run("plan", house / "unet.onnx", "--num-splits", 2, "--cost-model", table)
    assert "matched no node" in result.out + result.err


def test_a_device_whose_compiler_is_not_here_is_not_planned_for(run: Run, llm: Path, tmp_path: Path) -> None:
    """A plan for it would only be tried on another machine."""
    cluster = '[[devices]]\nname = "npu"\nprovider = "NoSuchExecutionProvider"\ncompiles = true\n'
    (tmp_path / "cluster.toml").write_text(cluster)
    refused = run("plan", llm, "--cluster", tmp_path / "cluster.toml")
    assert refused.code == 3
    assert "NoSuchExecutionProvider" in refused.error[0]
    (tmp_path / "cluster.toml").write_text(cluster.replace("true", "false"))
    assert run("plan", llm, "--cluster", tmp_path / "cluster.toml").code == 0


def test_a_calibrated_device_is_planned_for(run: Run, llm: Path, tmp_path: Path) -> None:
    """The file can be named with --cluster as it is, and shows what was measured."""
    made = run("measure", "machine", "--seconds", 0, "-o", tmp_path / "device.toml")
    assert made.code == 0, made.err
    assert re.search(r"FLOP/s, .*B/s of memory bandwidth, .* to start a node$", made.out.strip())
    assert "measured in 3 rounds; half of them took up to" in made.err
    assert run("plan", llm, "--cluster", tmp_path / "device.toml").code == 0
    assert run("measure", "machine", "-o", tmp_path / "device.toml").code == 2  # it exists


@pytest.mark.parametrize(
    ("words", "refusal"),
    [
        ("MODEL --seconds 3", "--seconds does not apply to a model"),
        ("MODEL --insecure", "--insecure does not apply to a model"),
        ("MODEL --computed --rounds 3", "--rounds does not apply to a model that is not run"),
        ("MODEL --computed --memory-limit 1MB", "--memory-limit does not apply to a model that is not run"),
        ("MODEL --computed --inputs x.npz", "--inputs does not apply to a model that is not run"),
        ("MODEL --computed --threads 1", "--threads does not apply to a model that is not run"),
        ("machine --rounds 3", "--rounds does not apply to this machine"),
        ("machine --dim n=2", "--dim does not apply to this machine"),
        ("machine --computed", "--computed does not apply to this machine"),
        ("cluster --threads 2", "--threads does not apply to a cluster"),
        ("config.json --profile decode:2", "--profile does not apply to a config.json"),
    ],
)
def test_options_that_would_not_change_what_is_measured_are_refused(
    run: Run, llm: Path, tmp_path: Path, words: str, refusal: str
) -> None:
    result = run("measure", *words.replace("MODEL", str(llm)).split(), "-o", tmp_path / "new")
    assert (result.code, result.error[0], holdings(tmp_path)) == (2, refusal, set())


def test_float16_between_parts_is_said_by_split_and_by_verify(run: Run, tmp_path: Path) -> None:
    demos.write("llm", tmp_path / "llm.onnx", hidden=16, layers=2, heads=2, kv_heads=1, vocab=32)
    words = ("--num-splits", 2, "--boundary-dtype", "float16", "-o", "plan.json")
    assert run("plan", "llm.onnx", *words).code == 0
    split = run("split", "llm.onnx", "--plan", "plan.json")
    assert "float32 tensors are sent as float16: outputs differ from the model's" in " ".join(split.out.split())
    verified = run("verify", tmp_path / "llm.parts")
    assert "same structure, runs differ by what float16 loses" in " ".join(verified.out.split())
