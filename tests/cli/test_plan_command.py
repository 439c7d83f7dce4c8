"""`graphcut plan`, `split` with goals, and `cost-model`, as somebody meets them who has never seen them."""

from __future__ import annotations

import json
import os
import re
import shlex
import stat
from collections.abc import Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from test_command import Said, Say, holdings, say

from graphcut import demos
from graphcut.core.units import duration, size
from graphcut.costs.tables import shipped_tables

__all__ = ["say"]

LAST = "/lm_head/MatMul"
FIRST_LAYER = "/model/layers.0/add_1"
CLUSTER = """
[[devices]]
name = "pi"
memory_bytes = "20MB"
flops_per_s = 1e10

[[devices]]
name = "jetson"
memory_bytes = "40MB"
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
    "layers": ("--num-splits", "3", "--by", "layers"),
    "bytes": ("--num-splits", "3", "--by", "bytes"),
    "within": ("--memory", "40kB"),
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
        demos.write(name, home / f"{name}.onnx")
    (home / "cluster.toml").write_text(CLUSTER)
    return home


@pytest.fixture
def llm(house: Path) -> Path:
    return house / "llm.onnx"


def goal(house: Path, name: str) -> list[str]:
    return [word.replace("CLUSTER", str(house / "cluster.toml")) for word in GOALS[name]]


def as_json(said: Said) -> Any:  # noqa: ANN401 - JSON
    assert said.code == 0, said.err
    return json.loads(said.out)


def bytes_of(part: Path) -> int:
    data = part.with_name(f"{part.name}.data")
    return part.stat().st_size + (data.stat().st_size if data.exists() else 0)


# What a plan shows


@pytest.mark.parametrize("name", GOALS)
def test_text_and_json_tell_the_same_figures(say: Say, house: Path, name: str) -> None:
    words = ("plan", house / "llm.onnx", *goal(house, name))
    lines, record = say(*words).out.splitlines(), as_json(say(*words, "--json"))
    start = next(i for i, line in enumerate(lines) if line.startswith("part "))
    titles = re.split(r"  +", lines[start].strip())
    for row, part in zip(lines[start + 1 :], record["parts"], strict=False):
        line = re.sub("━+ *│", "bar", row)
        cells = dict(zip(titles, re.split(r"  +", line.strip()), strict=True))
        assert cells["up to"] == part["nodes"][-1]
        assert cells["nodes"] == f"{len(part['nodes']) + len(part['replicas']):,}"
        if predicted := part["predicted"]:
            if name not in {"counted", "throughput", "decode"}:  # these count more than files
                assert cells["needs"] == size(predicted["written_bytes"])
            assert cells["activations"] == size(predicted["activation_bytes"])
            assert cells["receives"] == (size(predicted["received_bytes"]) if predicted["received_bytes"] else "-")
            assert cells["time"] == duration(predicted["busy_s"])
    rows = [row for kind in ("sequential", "residual") for row in record[kind].values()]
    crossing = {tensor for row in rows for tensors in row.values() for tensor in tensors}
    written = {tensor for part in record["parts"] for tensor in part["writes"]}
    assert crossing <= written
    number = len(record["parts"])
    assert lines[1].startswith(f"Cut into {number} parts. " if number > 1 else "One part holds the whole model. ")


@pytest.mark.parametrize("name", ["into", "within", "throughput", "heads"])
def test_the_same_question_gets_the_same_json(say: Say, house: Path, name: str) -> None:
    words = ("plan", house / "llm.onnx", *goal(house, name), "--json")
    assert say(*words).out == say(*words).out


@pytest.mark.parametrize("model", ["unet", "multitask", "control-flow"])
@pytest.mark.parametrize("objective", ["throughput", "latency", "bytes", "devices"])
def test_nothing_is_better_than_its_bound(say: Say, house: Path, model: str, objective: str) -> None:
    said = say("plan", house / f"{model}.onnx", "--cluster", house / "cluster.toml", "--objective", objective)
    assert said.code == 0, said.err
    assert "gap of -" not in said.out
    assert "gap of 0.0%" not in said.out, "what equals its bound is proven"


def test_a_plan_says_what_its_seconds_are_for(say: Say, llm: Path) -> None:
    """Without a cluster they are those of a machine that nobody has named."""
    out = say("plan", llm, "--num-splits", "2").out
    assert "100 GFLOP/s" in out


@pytest.mark.parametrize("parts", [2, 3])
def test_the_time_that_is_promised_is_that_of_the_slowest_part(say: Say, house: Path, parts: int) -> None:
    for model in ("llm", "unet", "resnet", "multitask"):
        record = as_json(say("plan", house / f"{model}.onnx", "--num-splits", parts, "--json"))
        slowest = max(part["predicted"]["busy_s"] for part in record["parts"])
        assert record["outcome"]["value"] == pytest.approx(slowest, rel=0.02), model


def test_no_plan_by_layers_is_faster_than_the_one_by_time(say: Say, llm: Path) -> None:
    """Least of all than one of which it is said that no cut does better."""
    slowest = {}
    for by in ("time", "layers", "bytes", "flops"):
        parts = as_json(say("plan", llm, "--num-splits", 3, "--by", by, "--json"))["parts"]
        slowest[by] = max(part["predicted"]["busy_s"] for part in parts)
    assert slowest["time"] == min(slowest.values())


def test_more_parts_than_layers_still_compute_what_is_cheaper_than_sending(say: Say, tmp_path: Path) -> None:
    demos.write("llm", tmp_path / "llm.onnx", hidden=16, layers=20, heads=2, kv_heads=1, vocab=32)
    slowest = []
    for parts in (20, 23):
        record = as_json(say("plan", tmp_path / "llm.onnx", "--num-splits", parts, "--json"))
        slowest.append(max(part["predicted"]["busy_s"] for part in record["parts"]))
    assert slowest[1] <= slowest[0]


# What is asked wrongly

ANY_GOAL = "use one of --num-splits 4, --memory 2GB, --cluster FILE, --heads, --at-nodes NAMES, --plan FILE"


@pytest.mark.parametrize(
    ("words", "complaint"),
    [
        ("", ("no cut requested", ANY_GOAL)),
        ("--num-splits 2 --memory 1MB", ("--num-splits and --memory are different goals", ANY_GOAL)),
        ("--heads --at-nodes x", ("--at-nodes and --heads are different goals", ANY_GOAL)),
        ("--num-splits 0", ("a model can't be cut into 0 parts", "ask for 1 or more")),
        ("--num-splits -1", ("a model can't be cut into -1 parts", "ask for 1 or more")),
        ("--memory lots", ("'lots' is not a size", "write it like 512MiB, 2GB or 1.5GiB")),
        ("--memory 0", ("a part can't have 0 bytes", "allow more, such as --memory 512MiB")),
        (
            "--memory 1MB --count disk",
            ("--count disk: not one of activations, inputs, cache", "for example --count activations"),
        ),
        ("--heads logit", ("the model has no output 'logit'", r"did you mean 'logits'\? its outputs: logits, .*")),
        ("--heads logits,logits", ("output 'logits' is in two heads", "name each output once")),
        ("--num-splits 2 --pin x", ("--pin x: expected NODE=PART", "for example --pin .*=1")),
        ("--num-splits 2 --pin x=1", ("no node or tensor is called 'x'", ".*")),
        ("--num-splits 2 --avoid x", ("no node or tensor is called 'x'", ".*")),
        ("--num-splits 2 --avoid x*y", (r"no node or tensor matches 'x\*y'", ".*")),
        ("--num-splits 2 --dim nope=3", ("llm.onnx has no symbolic dimension 'nope'", "its symbolic dimensions: .*")),
        (
            "--num-splits 2 --cost-model no.csv",
            ("there is no file no.csv", "cost models that come with .*Phi-3.5-mini.*"),
        ),
        ("--plan no.json", ("no.json can't be read: No such file or directory", "`graphcut plan MODEL .* -o FILE` .*")),
        ("--cluster no.toml", ("no.toml can't be read: No such file or directory", "name a TOML file .*")),
        ("--cluster CLUSTER --objective decode --in-flight 0", ("0 sequences can't be in flight", ".*1 or more")),
        ("--num-splits 2 --tokens 0", (".*'--tokens'.*", ".*--help.*")),
        ("--num-splits 2 --by size", (".*'--by'.*'size' is not one of .*", ".*--help.*")),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_misuse_is_told_in_two_lines(
    say: Say, house: Path, tmp_path: Path, words: str, complaint: tuple[str, str]
) -> None:
    filled = words.replace("CLUSTER", str(house / "cluster.toml")).split()
    said = say("split", house / "llm.onnx", *filled, "-o", tmp_path / "out")
    assert said.code == 2, said.err
    for pattern, line in zip(complaint, said.complaint, strict=True):
        assert re.fullmatch(pattern, line), line
    assert holdings(tmp_path) == set()


@pytest.mark.parametrize(
    ("option", "owner"),
    [("--by time", "--num-splits"), ("--count cache", "--memory"), ("--objective bytes", "--cluster")],
)
def test_an_option_without_its_goal_is_refused_and_the_hint_works(say: Say, llm: Path, option: str, owner: str) -> None:
    """Adding the goal it belongs to would make two goals."""
    name, value = option.split()
    said = say("plan", llm, "--at-nodes", FIRST_LAYER, name, value)
    assert said.code == 2
    assert said.complaint[0] == f"{name} applies to {owner}, not to --at-nodes"
    assert "leave" in said.complaint[1] or "instead" in said.complaint[1]


@pytest.mark.parametrize(
    "words",
    [
        "--at-nodes NODE --cost-model no.csv",
        "--at-nodes NODE --profile decode",
        "--at-nodes NODE --prove",
        "--at-nodes NODE --inside-layers",
        "--heads logits --prove",
        "--heads logits --inside-layers",
        "--plan PLAN --pin nothing=1",
        "--plan PLAN --avoid nothing",
        "--plan PLAN --cost-model no.csv",
        "--plan PLAN --recompute never",
        "--cluster CLUSTER --in-flight 2",
    ],
)
def test_an_option_that_would_do_nothing_is_refused(say: Say, house: Path, tmp_path: Path, words: str) -> None:
    plan = tmp_path / "plan.json"
    assert say("plan", house / "llm.onnx", "--num-splits", 2, "-o", plan).code == 0
    places = {"NODE": FIRST_LAYER, "PLAN": plan, "CLUSTER": house / "cluster.toml"}
    said = say("plan", house / "llm.onnx", *(places.get(word, word) for word in words.split()))
    assert said.code == 2


@pytest.mark.parametrize("number", [10**6, 10**20])
def test_more_parts_than_there_are_nodes_is_no_defect(say: Say, llm: Path, number: int) -> None:
    said = say("plan", llm, "--num-splits", number)
    assert "defect" not in said.err
    assert said.code in {2, 4}
    assert re.search(r"into [\d,]+ parts at most", said.complaint[0])


# Goals that nothing meets


@pytest.mark.parametrize("more", [(), ("--inside-layers",)], ids=["whole layers", "inside layers"])
@pytest.mark.parametrize("model", ["llm", "unet", "resnet", "multitask", "control-flow"])
def test_an_impossible_budget_names_one_that_works(
    say: Say, house: Path, tmp_path: Path, model: str, more: Sequence[str]
) -> None:
    words = ("split", house / f"{model}.onnx", *more, "-o", tmp_path / "out", "-q")
    said = say(*words, "--memory", 1000)
    assert (said.code, holdings(tmp_path)) == (4, set())
    budgets = re.findall(r"--memory (\d+) \(", said.complaint[1])
    again = say(*words, "--memory", budgets[0])
    assert again.code == 0, again.err
    parts = [file for file in (tmp_path / "out").iterdir() if file.suffix == ".onnx"]
    assert max(map(bytes_of, parts)) <= int(budgets[0])


@pytest.mark.parametrize("count", [(), ("--count", "activations")], ids=["files", "activations"])
def test_what_is_said_to_need_too_much_needs_more_than_is_allowed(say: Say, llm: Path, count: Sequence[str]) -> None:
    said = say("plan", llm, "--memory", 1, *count)
    needed = int(re.findall(r"--memory (\d+) \(", said.complaint[1])[0])
    again = say("plan", llm, "--memory", int(needed * 0.999), *count)
    assert again.code == 4
    if numbers := re.search(r"alone needs ([\d.]+ \w+), more than the budget of ([\d.]+ \w+)", again.complaint[0]):
        units = {"B": 1.0, "KiB": 2.0**10, "MiB": 2.0**20}
        wanted, allowed = (float(text.split()[0]) * units[text.split()[1]] for text in numbers.groups())
        assert wanted > allowed


def test_a_model_that_no_device_holds_says_what_is_missing(say: Say, llm: Path, tmp_path: Path) -> None:
    """All devices together have room for it; what is too big is one segment for one device."""
    text = "".join(f'[[devices]]\nname = "d{i}"\nmemory_bytes = "1MB"\n' for i in range(40))
    (tmp_path / "cluster.toml").write_text(text)
    said = say("plan", llm, "--cluster", tmp_path / "cluster.toml")
    assert said.code == 4
    sizes = re.findall(r"[\d.]+ [KM]iB", said.complaint[0])
    assert "977 KiB" in sizes, "what the largest device holds"


def test_pins_that_nothing_keeps_are_told_apart_from_parts_that_do_not_exist(say: Say, llm: Path) -> None:
    said = say("plan", llm, "--num-splits", 2, "--pin", f"{LAST}=0")
    assert said.code == 4
    assert said.complaint[0] == "no cut into 2 parts puts every pinned node into its part"
    assert "there is no part 7" in say("plan", llm, "--num-splits", 2, "--pin", f"{LAST}=7").complaint[0]


def test_what_a_constraint_costs_stands_beside_what_was_reached(say: Say, llm: Path) -> None:
    free = say("plan", llm, "--num-splits", 2, "--by", "flops").out
    pinned = say("plan", llm, "--num-splits", 2, "--by", "flops", "--pin", "/model/layers.1/add_1=0").out
    value = re.search(r"^FLOPs of the heaviest part +([\d.]+ \w+);", free, re.MULTILINE)
    assert value is not None
    assert re.search(rf"^limits +{re.escape('/model/layers.1/add_1')} in p0$", pinned, re.MULTILINE)
    assert re.search(rf"^without --pin +{re.escape(value[1])}$", pinned, re.MULTILINE)


# From a plan to its parts


@pytest.mark.parametrize("recompute", ["auto", "never"])
@pytest.mark.parametrize("name", ["layers", "within", "throughput"])
def test_plan_save_replay_verify(say: Say, house: Path, tmp_path: Path, name: str, recompute: str) -> None:
    words = (*goal(house, name), "--recompute", recompute)
    planned = say("plan", house / "llm.onnx", *words, "-o", tmp_path / "plan.json")
    assert planned.code == 0
    assert planned.err.splitlines()[0] == f"wrote {tmp_path / 'plan.json'}"
    following = planned.err.splitlines()[1].removeprefix("next: ")
    assert say(*shlex.split(following)[1:], "-o", tmp_path / "replayed", "-q").code == 0
    assert say("split", house / "llm.onnx", *words, "-o", tmp_path / "planned", "-q").code == 0
    for file in holdings(tmp_path / "planned"):
        assert (tmp_path / "planned" / file).read_bytes() == (tmp_path / "replayed" / file).read_bytes(), file
    verified = say("verify", tmp_path / "replayed")
    assert (verified.code, verified.out.splitlines()[0]) == (
        0,
        "✓ the cascade matches the model: outputs are bit-identical",
    )
    again = json.loads((tmp_path / "plan.json").read_text())
    assert recompute == "auto" or not any(part["repeats"] for part in again["parts"])


@pytest.mark.parametrize("model", ["unet", "resnet", "multitask", "control-flow"])
def test_every_demo_can_be_cut_by_number_and_does_what_it_did(
    say: Say, house: Path, tmp_path: Path, model: str
) -> None:
    assert say("split", house / f"{model}.onnx", "--num-splits", 3, "-o", tmp_path / "out", "-q").code == 0
    verified = say("verify", tmp_path / "out")
    assert verified.code == 0, verified.out


def test_heads_run_beside_each_other(say: Say, house: Path, tmp_path: Path) -> None:
    assert say("split", house / "multitask.onnx", "--heads", "-o", tmp_path / "out", "-q").code == 0
    record = as_json(say("show", tmp_path / "out", "--json"))
    sources = {source for kind in ("sequential", "residual") for source in record[kind]}
    assert sources == {"0"}
    assert say("verify", tmp_path / "out").code == 0


def test_heads_may_stand_before_the_model(say: Say, house: Path) -> None:
    model = house / "multitask.onnx"
    assert say("plan", "--heads", model).out == say("plan", model, "--heads").out
    assert say("plan", "--prove", model, "--num-splits", 2).out == say("plan", model, "--num-splits", 2).out


def test_a_replayed_plan_is_shown_like_the_one_that_was_saved(say: Say, llm: Path, tmp_path: Path) -> None:
    planned = say("plan", llm, "--num-splits", 3, "-o", tmp_path / "plan.json").out
    replayed = say("plan", llm, "--plan", tmp_path / "plan.json").out

    def table(text: str) -> list[str]:
        return [line for line in text.splitlines() if re.match(r"(part|p\d) ", line)]

    assert table(replayed) == table(planned)


def test_a_replayed_plan_counts_sizes_for_the_dimensions_it_names(say: Say, llm: Path, tmp_path: Path) -> None:
    planned = say("plan", llm, "--num-splits", 3, "-o", tmp_path / "plan.json").out
    replayed = say("plan", llm, "--plan", tmp_path / "plan.json").out
    assert "≥" not in planned
    assert "seq=512" in replayed
    assert "≥" not in replayed


def test_a_plan_for_another_model_is_refused_with_a_command_that_works(say: Say, house: Path, tmp_path: Path) -> None:
    assert say("plan", house / "llm.onnx", "--num-splits", 2, "-o", tmp_path / "plan.json").code == 0
    said = say("split", house / "unet.onnx", "--plan", tmp_path / "plan.json", "-o", tmp_path / "out")
    assert said.code == 2
    assert said.complaint[0].endswith("is a plan for llm.onnx, not for unet.onnx: the graphs differ")
    advised = shlex.split(said.complaint[1].partition("graphcut ")[2].rstrip("`"))
    assert say(*advised).code == 0


# Where a plan goes


def test_a_file_in_the_way_stays_unless_forced(say: Say, llm: Path, tmp_path: Path) -> None:
    goal = tmp_path / "plan.json"
    goal.write_text("mine")
    said = say("plan", llm, "--num-splits", 2, "-o", goal)
    hint = "choose another name with -o, or add --force"
    assert (said.code, said.complaint) == (2, (f"{goal} already exists", hint))
    assert goal.read_text() == "mine"
    assert say("plan", llm, "--num-splits", 2, "-o", goal, "--force").code == 0
    assert goal.read_text() != "mine"


@pytest.mark.parametrize("command", ["plan", "cost-model"])
def test_what_is_no_ordinary_file_is_never_replaced(say: Say, llm: Path, tmp_path: Path, command: str) -> None:
    """Renamed over, /dev/null would be gone for everybody."""
    goal = tmp_path / "pipe"
    os.mkfifo(goal)
    assert say(command, llm, *(("--num-splits", 2) if command == "plan" else ()), "-o", goal, "--force").code in {2, 3}
    assert stat.S_ISFIFO(goal.lstat().st_mode)


def test_a_folder_that_is_not_there_is_told_before_the_plan_is_made(
    say: Say, llm: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def never(*_: object, **__: object) -> None:
        raise AssertionError("planned for nothing")

    monkeypatch.setattr("graphcut.planning.plans.plan", never)
    said = say("plan", llm, "--num-splits", 2, "-o", tmp_path / "none" / "plan.json")
    assert said.code in {2, 3}
    assert "defect" not in said.complaint[1]


@pytest.mark.parametrize("command", ["plan", "split"])
def test_interrupted_while_it_plans_it_leaves_nothing(
    say: Say, llm: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, command: str
) -> None:
    def interrupted(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("graphcut.planning.plans.plan_into", interrupted)
    said = say(command, llm, "--num-splits", 2, "-o", tmp_path / "out")
    assert (said.code, said.out, holdings(tmp_path)) == (130, "", set())


# Why


@pytest.mark.parametrize("name", ["into", "layers", "within", "throughput"])
def test_each_cut_is_explained_by_what_crosses_and_what_else_there_is(say: Say, house: Path, name: str) -> None:
    words = ("plan", house / "llm.onnx", *goal(house, name))
    record, out = as_json(say(*words, "--json")), say(*words, "--explain").out
    cuts = re.findall(r"^cut (\d+) after (.+)$", out, re.MULTILINE)
    assert [int(number) for number, _ in cuts] == list(range(len(record["parts"]) - 1))
    assert [place for _, place in cuts] == [reason["chosen"]["after"] for reason in record["reasons"]]
    assert set(say(*words).out.splitlines()) <= set(out.splitlines())


def test_next_best_places_are_no_better_and_in_order(say: Say, house: Path) -> None:
    for model in ("llm", "unet", "resnet"):
        for reason in as_json(say("plan", house / f"{model}.onnx", "--num-splits", 3, "--json"))["reasons"]:
            costs = [cut["cost"] for cut in (reason["chosen"], *reason["alternatives"])]
            assert all(a <= b for a, b in pairwise(costs)), (model, reason)


@pytest.mark.parametrize("name", ["at", "heads"])
def test_what_the_user_chose_needs_no_reason_and_no_empty_line(say: Say, house: Path, name: str) -> None:
    words = ("plan", house / "llm.onnx", *goal(house, name))
    assert say(*words, "--explain").out == say(*words).out


# Cost models


def test_a_computed_cost_model_of_the_same_model_changes_nothing(say: Say, house: Path, tmp_path: Path) -> None:
    for model in ("unet", "llm"):
        table = tmp_path / f"{model}.csv"
        assert say("cost-model", house / f"{model}.onnx", "-o", table).code == 0
        words = ("plan", house / f"{model}.onnx", "--num-splits", 2, "--json")
        own, given = (as_json(said)["outcome"]["value"] for said in (say(*words), say(*words, "--cost-model", table)))
        assert given == pytest.approx(own, rel=0.02), model


def test_a_computed_cost_model_says_what_sizes_it_counts(say: Say, llm: Path, tmp_path: Path) -> None:
    said = say("cost-model", llm, "-o", tmp_path / "costs.csv")
    assert re.search(r"seq=\d+|sizes count .*seq.* as 1", said.out + said.err)
    bound = say("cost-model", llm, "-o", tmp_path / "bound.csv", "--dim", "seq=7", "--dim", "batch=1")
    assert "seq=7" in bound.out


def test_a_measured_cost_model_is_planned_with(say: Say, house: Path, tmp_path: Path) -> None:
    table = tmp_path / "unet.csv"
    measured = say("cost-model", house / "unet.onnx", "-o", table, "--measure", "--rounds", 1)
    assert measured.code == 0, measured.err
    assert " measured" in measured.out.splitlines()[0]
    said = say("split", house / "unet.onnx", "--num-splits", 2, "--cost-model", table, "-o", tmp_path / "out", "-q")
    assert said.code == 0, said.err
    assert say("verify", tmp_path / "out", "--structural").code == 0


@pytest.mark.parametrize("name", shipped_tables())
def test_a_shipped_cost_model_is_used_by_its_name(say: Say, llm: Path, name: str) -> None:
    record = as_json(say("plan", llm, "--num-splits", 2, "--cost-model", name, "--json"))
    assert record["coverage"]["matched"] > 0


@pytest.mark.parametrize("command", ["plan", "split"])
def test_a_cost_model_that_matches_nothing_is_not_passed_over(
    say: Say, house: Path, tmp_path: Path, command: str
) -> None:
    """Nothing of the plan comes from it, and who gave it believes that all does."""
    table = tmp_path / "llm.csv"
    assert say("cost-model", house / "llm.onnx", "-o", table).code == 0
    more = ("-o", tmp_path / "out") if command == "split" else ()
    said = say(command, house / "unet.onnx", "--num-splits", 2, "--cost-model", table, *more)
    assert "matched no node" in said.out + said.err


@pytest.mark.parametrize("words", ["--rounds 3", "--memory 1MB", "--inputs x.npz"])
def test_an_option_of_measuring_without_it_is_refused(say: Say, llm: Path, tmp_path: Path, words: str) -> None:
    said = say("cost-model", llm, "-o", tmp_path / "costs.csv", *words.split())
    assert (said.code, holdings(tmp_path)) == (2, set())
