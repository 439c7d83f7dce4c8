"""`graphcut simulate`, as somebody meets it who has never seen it."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
from test_command import Say, say

import graphcut
from graphcut import demos

__all__ = ["say"]

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
    model = graphcut.load(home / "llm.onnx", dims={"batch": 1, "seq": 64, "past": 0})
    analysis = graphcut.analyze(model)
    made = graphcut.plan(analysis, graphcut.Across(graphcut.read_cluster(home / "cluster.toml")))
    graphcut.save_plan(made, model, home / "plan.json")
    graphcut.split(model, made, home / "parts")
    graphcut.save_plan(graphcut.plan(analysis, graphcut.Into(3)), model, home / "anywhere.json")
    return home


def simulated(say: Say, *words: object) -> Any:  # noqa: ANN401 - JSON
    said = say("simulate", *words, "--json")
    assert (said.code, said.err) == (0, "")
    return json.loads(said.out)


def test_a_plan_is_played_on_the_cluster_that_it_was_made_for(say: Say, house: Path) -> None:
    said = say("simulate", house / "plan.json", "--requests", "50")
    assert (said.code, said.err) == (0, "")
    lines = said.out.splitlines()
    assert lines[0] == f"{house / 'plan.json'}  50 requests, at most 4 in flight, seed 0"
    assert re.fullmatch(
        r"[\d.]+ answers a second\. The busiest device, (pi|jetson), computes for [\d.]+ % of the time"
        r"( and fetches for [\d.e-]+ %)?\.",
        lines[1],
    )
    assert lines[3].startswith("latency  mean ")
    assert {line.partition(" ")[0] for line in lines} >= {"device", "pi", "jetson", "link"}
    assert "failures" not in said.out


def test_the_record_says_what_the_screen_says(say: Say, house: Path) -> None:
    record = simulated(say, house / "plan.json", "--requests", "50", "--seed", "7")
    assert record["schema"] == "graphcut.simulated/1"
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
    screen = say("simulate", house / "plan.json", "--requests", "50", "--seed", "7").out
    assert f"{record['per_s']:.4g} answers a second" in screen


def test_a_cascade_needs_to_be_told_of_a_cluster(say: Say, house: Path) -> None:
    complaint = say("simulate", house / "parts").complaint
    assert complaint[0].endswith("parts is a cascade, which has no device speeds")
    assert complaint[1] == "name a cluster file with --cluster FILE"
    of_plan = simulated(say, house / "plan.json", "--requests", "50")
    of_parts = simulated(say, house / "parts", "--cluster", house / "cluster.toml", "--requests", "50")
    assert of_parts["total_s"] == pytest.approx(of_plan["total_s"], rel=5e-3)


def test_a_plan_for_no_cluster_is_spread_over_the_one_that_is_named(say: Say, house: Path) -> None:
    complaint = say("simulate", house / "anywhere.json").complaint
    assert complaint[0] == "the plan was not made for a cluster, so it has no device speeds"
    found = simulated(say, house / "anywhere.json", "--cluster", house / "cluster.toml", "--requests", "5")
    assert sorted(part for device in found["devices"] for part in device["parts"]) == [0, 1, 2]
    assert [bool(device["parts"]) for device in found["devices"]] == [True, True]


def test_requests_come_at_a_rate_and_too_many_are_told(say: Say, house: Path) -> None:
    free = simulated(say, house / "plan.json", "--requests", "200")
    slow = simulated(say, house / "plan.json", "--requests", "200", "--rate", f"{free['per_s'] / 10}/s")
    assert slow["rate_per_s"] == free["per_s"] / 10
    assert slow["window"] is None
    assert slow["latency"]["p50"] < free["latency"]["p50"]
    fast = say("simulate", house / "plan.json", "--requests", "200", "--rate", free["per_s"] * 2)
    note = "note: requests arrive faster than they are answered: the longer the run, the higher the latency"
    assert note in fast.out
    assert note not in say("simulate", house / "plan.json", "--requests", "200", "--rate", free["per_s"] / 2).out


def test_what_a_failure_costs_stands_beside_the_run_without(say: Say, house: Path) -> None:
    words = (house / "plan.json", "--requests", "100", "--fail", "pi@0.5+3")
    record = simulated(say, *words)
    assert record["without_failures"]["without_failures"] is None
    assert record["total_s"] > record["without_failures"]["total_s"] + 3
    assert [device["failures"] for device in record["devices"]] == [1, 0]
    said = say("simulate", *words)
    rows = [line.split() for line in said.out.splitlines()]
    assert ["cost", "of", "failures", "with", "without"] in rows
    assert ["answered", "100", "100"] in rows


def test_a_device_that_is_gone_goes_to_whoever_has_room(say: Say, house: Path) -> None:
    record = simulated(say, house / "plan.json", "--requests", "100", "--fail", "pi@0.5")
    assert (record["answered"], record["stopped"]) == (100, "")
    assert record["devices"][1]["steps"] > 100


def test_a_run_that_can_not_go_on_says_no(say: Say, house: Path, tmp_path: Path) -> None:
    (tmp_path / "small.toml").write_text(CLUSTER.replace('name = "jetson"', 'name = "jetson"\nmemory_bytes = "1kB"'))
    said = say("simulate", house / "plan.json", "--cluster", tmp_path / "small.toml", "--fail", "pi@0.5")
    assert said.code == 1
    assert re.search(
        r"^✗ stopped after 1\.5 s, \d+ requests answered: pi is lost \(it failed\), and no", said.out, re.MULTILINE
    )


def test_losses_of_a_cluster_file_are_played_and_told(say: Say, house: Path) -> None:
    words = (house / "plan.json", "--cluster", house / "faulty.toml", "--requests", "100")
    assert simulated(say, *words)["lost"] > 0
    assert re.search(r"^\d+ messages lost and sent again$", say("simulate", *words).out, re.MULTILINE)


def test_many_devices_are_told_by_what_they_run(say: Say, house: Path) -> None:
    record = simulated(say, house / "plan.json", "--copies", "20", "--requests", "200")
    assert len(record["devices"]) == 40
    said = say("simulate", house / "plan.json", "--copies", "20", "--requests", "200")
    assert f"{record['per_s']:,.0f} answers a second" in said.out
    rows = [line for line in said.out.splitlines() if line.startswith("20 devices  part ")]
    assert len(rows) == 2
    assert re.search(r"^… \d+ more links, used for at most [\d.]+ %$", said.out, re.MULTILINE)


def test_a_narrow_terminal_and_plain_letters_do(say: Say, house: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "60")
    said = say("simulate", house / "plan.json", "--requests", "50", "--fail", "pi@1+1")
    assert max(len(line) for line in said.out.splitlines() if not line.startswith(str(house))) <= 60


@pytest.mark.parametrize(
    ("words", "said"),
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
        (("--rate", "2", "--closed", "3"), "a rate excludes a number of requests in flight"),
        (("--requests", "0"), "0 requests can't be simulated"),
        (("--copies", "0"), "0 copies can't run anything"),
    ],
)
def test_what_is_not_meant_is_refused(say: Say, house: Path, words: tuple[str, ...], said: str) -> None:
    found = say("simulate", house / "plan.json", *words)
    assert found.code == 2
    assert found.complaint[0] == said
    assert found.complaint[1]


def test_a_model_is_to_be_planned_first(say: Say, house: Path) -> None:
    found = say("simulate", house / "llm.onnx")
    assert found.code == 2
    assert found.complaint == (
        f"{house / 'llm.onnx'} is a model that is not cut",
        "`graphcut plan MODEL ... -o FILE` plans it",
    )
