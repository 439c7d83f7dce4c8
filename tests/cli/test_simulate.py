"""`graphcut simulate`, as somebody meets it who has never seen it."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

import graphcut
from graphcut import demos

from command_line import Run, llm, own_llm, own_parts, parts, run

__all__ = ["llm", "own_llm", "own_parts", "parts", "run"]

CLUSTER = """
[[devices]]
name = "pi"
flops_per_s = 1e9
link_bytes_per_s = 1e8

[[devices]]
name = "jetson"
flops_per_s = 3e9
link_bytes_per_s = 1e8
"""
FAULTY = f"""{CLUSTER}
[[faults]]
device = "jetson"
loss = 0.2
"""


@pytest.fixture(scope="module")
def house(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A plan for a cluster, one for none, and a cascade, for reading only."""
    home = tmp_path_factory.mktemp("house")
    demos.write("llm", home / "llm.onnx", hidden=64, layers=4, heads=2, kv_heads=1, vocab=64)
    (home / "cluster.toml").write_text(CLUSTER)
    (home / "faulty.toml").write_text(FAULTY)
    model = graphcut.load(home / "llm.onnx", dims={"batch": 1, "seq": 64, "past": 0, "total": 64})
    analysis = graphcut.analyze(model)
    made = graphcut.plan(analysis, graphcut.Across(graphcut.read_cluster(home / "cluster.toml")))
    graphcut.save_plan(made, model, home / "plan.json")
    graphcut.split(model, made, home / "parts")
    graphcut.save_plan(graphcut.plan(analysis, graphcut.Into(3)), model, home / "anywhere.json")
    return home


def simulated(run: Run, *words: object) -> Any:  # noqa: ANN401 - JSON
    result = run("simulate", *words, "--json")
    assert (result.code, result.err) == (0, "")
    return json.loads(result.out)


def test_a_plan_is_simulated_on_its_cluster(run: Run, house: Path) -> None:
    result = run("simulate", house / "plan.json", "--requests", "50")
    assert (result.code, result.err) == (0, "")
    lines = result.out.splitlines()
    assert lines[0] == f"{house / 'plan.json'}  50 requests, at most 4 in flight, seed 0"
    assert re.fullmatch(
        r"[\d.]+ answers a second\. The busiest device, (pi|jetson), computes for [\d.]+ % of the time"
        r"( and fetches for [\d.e-]+ %)?\.",
        lines[1],
    )
    assert lines[2] == "note: times are estimates (shares 58 % off at most where measured)"
    assert lines[4].startswith("latency  mean ")
    assert {line.partition(" ")[0] for line in lines} >= {"device", "pi", "jetson", "link"}
    assert "failures" not in result.out


def test_json_and_text_agree(run: Run, house: Path) -> None:
    record = simulated(run, house / "plan.json", "--requests", "50", "--seed", "7")
    assert record["format"] == "graphcut.simulated/1"
    assert record["source"] == str(house / "plan.json")
    told = (
        "requests",
        "answered",
        "failed",
        "stopped",
        "rate_per_s",
        "window",
        "seed",
        "lost",
        "restarted",
        "without_failures",
    )
    assert [record[name] for name in told] == [50, 50, 0, "", None, 4, 7, 0, 0, None]
    assert record["per_s"] == pytest.approx(50 / record["total_s"])
    assert [(device["name"], len(device["parts"]), device["steps"]) for device in record["devices"]] == [
        ("pi", 1, 50),
        ("jetson", 1, 50),
    ]
    screen = run("simulate", house / "plan.json", "--requests", "50", "--seed", "7").out
    assert f"{record['per_s']:,.4g} answers a second" in screen


def test_a_cascade_needs_a_cluster_file(run: Run, house: Path) -> None:
    error = run("simulate", house / "parts").error
    assert error[0].endswith("parts is a cascade, which has no device speeds")
    assert error[1] == "name a cluster file with --cluster"
    of_plan = simulated(run, house / "plan.json", "--requests", "50")
    of_parts = simulated(run, house / "parts", "--cluster", house / "cluster.toml", "--requests", "50")
    assert of_parts["total_s"] == pytest.approx(of_plan["total_s"], rel=5e-3)


def test_a_plan_that_is_not_json_is_no_cascade(run: Run, house: Path) -> None:
    (house / "broken.json").write_text("{")
    assert run("simulate", house / "broken.json").error[0].startswith(f"{house / 'broken.json'} is not JSON: ")
    (house / "broken.json").write_text("{}", encoding="utf-16")
    assert (
        run("simulate", house / "broken.json").error[0]
        == f"{house / 'broken.json'} is not JSON: it begins with a byte order mark"
    )


def test_a_plan_without_a_cluster_uses_the_given_one(run: Run, house: Path) -> None:
    error = run("simulate", house / "anywhere.json").error
    assert error[0] == "the plan was not made for a cluster, so it has no device speeds"
    found = simulated(run, house / "anywhere.json", "--cluster", house / "cluster.toml", "--requests", "5")
    assert sorted(part for device in found["devices"] for part in device["parts"]) == [0, 1, 2]
    assert [bool(device["parts"]) for device in found["devices"]] == [True, True]


def test_sizes_that_nobody_gave_are_said_and_can_be_given(run: Run, house: Path) -> None:
    demos.write("resnet", house / "resnet.onnx")
    model = graphcut.load(house / "resnet.onnx")
    parts = graphcut.split(model, graphcut.plan(model, graphcut.Into(2)), house / "resnet.parts").root
    words = (parts, "--cluster", house / "cluster.toml", "--requests", "5")
    note = "note: sizes assume batch=1; set others with --dim"
    assert note in run("simulate", *words).out.splitlines()
    assert "assume" not in run("simulate", *words, "--dim", "batch=4").out
    one, four = simulated(run, *words), simulated(run, *words, "--dim", "batch=4")
    assert (one["assumed"], four["assumed"]) == ({"batch": 1}, {})
    carried = [{(link["source"], link["target"]): link["bytes"] for link in found["links"]} for found in (one, four)]
    assert carried[1] == {ends: 4 * number for ends, number in carried[0].items()}
    assert run("simulate", house / "plan.json", "--dim", "seq=4").error[0].endswith("are for fixed sizes")
    made = graphcut.plan(model, graphcut.Across(graphcut.read_cluster(house / "cluster.toml")))
    graphcut.save_plan(made, model, house / "resnet.json")
    note = "note: sizes assume batch=1; plan for others with --dim"
    assert note in run("simulate", house / "resnet.json", "--requests", "5").out.splitlines()


def test_a_plan_for_decoding_has_as_many_requests_in_flight_as_sequences(run: Run, house: Path) -> None:
    model = graphcut.load(house / "llm.onnx")
    cluster = graphcut.read_cluster(house / "cluster.toml")
    made = graphcut.plan(model, graphcut.Across(cluster, "decode", 3))
    graphcut.save_plan(made, model, house / "decode.json")
    assert simulated(run, house / "decode.json", "--requests", "5")["window"] == 3


def test_a_rate_above_the_throughput_is_noted(run: Run, house: Path) -> None:
    free = simulated(run, house / "plan.json", "--requests", "200")
    slow = simulated(run, house / "plan.json", "--requests", "200", "--rate", f"{free['per_s'] / 10}/s")
    assert slow["rate_per_s"] == free["per_s"] / 10
    assert slow["window"] is None
    assert slow["latency"]["p50"] < free["latency"]["p50"]
    fast = run("simulate", house / "plan.json", "--requests", "200", "--rate", free["per_s"] * 2)
    note = "note: requests arrive faster than they are answered: the longer the run, the higher the latency"
    assert note in fast.out
    assert note not in run("simulate", house / "plan.json", "--requests", "200", "--rate", free["per_s"] / 2).out


def test_a_failure_is_compared_with_the_run_without(run: Run, house: Path) -> None:
    words = (house / "plan.json", "--requests", "100", "--fail", "pi@0.5+3")
    record = simulated(run, *words)
    assert record["without_failures"]["without_failures"] is None
    # Meanwhile jetson ends what it has.
    assert record["without_failures"]["total_s"] + 2.9 < record["total_s"]
    assert [device["failures"] for device in record["devices"]] == [1, 0]
    result = run("simulate", *words)
    rows = [line.split() for line in result.out.splitlines()]
    assert ["cost", "of", "failures", "with", "without"] in rows
    assert ["answered", "100", "100"] in rows


def test_the_parts_of_a_failed_device_move(run: Run, house: Path) -> None:
    record = simulated(run, house / "plan.json", "--requests", "100", "--fail", "pi@0.5")
    assert (record["answered"], record["stopped"]) == (100, "")
    assert record["devices"][1]["steps"] > 100


def test_a_simulation_that_stops_is_exit_1(run: Run, house: Path, tmp_path: Path) -> None:
    (tmp_path / "small.toml").write_text(CLUSTER.replace('name = "jetson"', 'name = "jetson"\nmemory_bytes = "1kB"'))
    result = run("simulate", house / "plan.json", "--cluster", tmp_path / "small.toml", "--fail", "pi@0.5")
    assert result.code == 1
    assert re.search(
        r"^✗ stopped after 1\.5 s, \d+ requests answered: pi is lost \(it failed\), and no", result.out, re.MULTILINE
    )


def test_losses_of_a_cluster_file_are_simulated(run: Run, house: Path) -> None:
    words = (house / "plan.json", "--cluster", house / "faulty.toml", "--requests", "100")
    assert simulated(run, *words)["lost"] > 0
    assert re.search(r"^\d+ messages lost and sent again$", run("simulate", *words).out, re.MULTILINE)


def test_many_devices_are_grouped_by_part(run: Run, house: Path) -> None:
    record = simulated(run, house / "plan.json", "--copies", "20", "--requests", "200")
    assert len(record["devices"]) == 40
    result = run("simulate", house / "plan.json", "--copies", "20", "--requests", "200")
    assert f"{record['per_s']:,.4g} answers a second" in result.out
    rows = [line for line in result.out.splitlines() if line.startswith("20 devices  part ")]
    assert len(rows) == 2
    assert re.search(r"^… \d+ more links, used for at most [\d.]+ %$", result.out, re.MULTILINE)


def test_a_narrow_terminal_is_enough(run: Run, house: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "60")
    result = run("simulate", house / "plan.json", "--requests", "50", "--fail", "pi@1+1")
    assert max(len(line) for line in result.out.splitlines() if not line.startswith(str(house))) <= 60


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--fail", "pi"), "--fail pi: expected NAME@SECONDS"),
        (("--fail", "pi@soon"), "--fail pi@soon: expected NAME@SECONDS"),
        (("--fail", "pi@1+2+3"), "--fail pi@1+2+3: expected NAME@SECONDS"),
        (
            ("--fail", "pi@-1"),
            "--fail pi@-1: at_s of a failure of 'pi' can't be -1: expected a finite number of 0 or more",
        ),
        (("--fail", "mac@1"), "there is no device 'mac' to fail"),
        (("--rate", "fast"), "--rate fast: expected requests per second"),
        (("--rate", "2/h"), "--rate 2/h: expected requests per second"),
        (("--rate", "2", "--in-flight", "3"), "a rate excludes a number of requests in flight"),
        (("--requests", "0"), "0 requests can't be simulated"),
        (("--copies", "0"), "0 copies can't run anything"),
    ],
)
def test_wrong_values_are_misuse(run: Run, house: Path, words: tuple[str, ...], message: str) -> None:
    found = run("simulate", house / "plan.json", *words)
    assert found.code == 2
    assert found.error[0] == message
    assert found.error[1]


def test_a_model_must_be_planned_first(run: Run, house: Path) -> None:
    found = run("simulate", house / "llm.onnx")
    assert found.code == 2
    assert found.error == (
        f"{house / 'llm.onnx'} is a model that is not cut",
        "`graphcut plan MODEL -o FILE` writes a plan of it",
    )


def test_a_plan_that_is_not_there_is_missing_and_not_a_model(run: Run, house: Path) -> None:
    hint = "name a plan, which `graphcut plan MODEL -o FILE` writes, or the folder of a cascade"
    found = run("simulate", house / "nothing.json")
    assert (found.code, found.error) == (3, (f"{house / 'nothing.json'} does not exist", hint))
    (house / "plan.txt").write_text("a drawing")
    said = f"{house / 'plan.txt'} is no plan and no cascade: it is not JSON"
    assert run("simulate", house / "plan.txt").error[0] == said
    (house / "loop").symlink_to(house / "loop")
    for words in (("show",), ("analyze",), ("fetch", "-o", house / "out")):
        assert run(*words, house / "loop").error[0].endswith("is a symbolic link to itself, where nothing is")


def test_simulate_and_run_draw_the_same_picture(run: Run, own_llm: Path, own_parts: Path) -> None:
    """Of the simulated requests and of the measured ones: each run of a part, as a picture and for other viewers."""
    home = own_llm.parent
    (home / "cluster.toml").write_text('[[devices]]\nname = "a"\n[[devices]]\nname = "b"\n', encoding="utf-8")
    ways = {
        "simulated": ("simulate", own_parts, "--cluster", home / "cluster.toml", "--requests", "1"),
        "measured": ("run", own_parts, "--inputs", "random", "-o", home / "out.npz", "--via", "threads", "--force"),
    }
    for name, words in ways.items():
        for suffix in (".svg", ".json"):
            result = run(*words, "--trace", home / f"{name}{suffix}")
            assert result.code == 0
            assert f"wrote {home / name}{suffix}" in result.err
        printed = run(*words, "--trace", "-").out
        run(*words, "--trace", home / f"{name}.txt")
        assert "1 exchange between devices" in (home / f"{name}.txt").read_text("utf-8")
        assert re.search(r"^schedule  the first of 1 request: .*, 1 exchange between devices$", printed, re.MULTILINE)
        assert run(*words, "--trace", home / f"{name}.svg").code == (2 if name == "simulated" else 0)
        drawn = (home / f"{name}.svg").read_text(encoding="utf-8")
        assert re.findall(r"part \d, request \d", drawn) == ["part 0, request 1", "part 1, request 1"]
        events = json.loads((home / f"{name}.json").read_text(encoding="utf-8"))["traceEvents"]
        assert sum(event["ph"] == "X" for event in events) == 2
