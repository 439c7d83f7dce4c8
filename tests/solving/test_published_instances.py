"""`scripts/benchmark plan` reads published instances of training as their authors do, against brute force."""

import itertools
import json
import random
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

from cases import FUZZ

BENCHMARK = Path(__file__).resolve().parents[2] / "scripts" / "benchmark"
LAYERS = 4
LOSS = 2 * LAYERS  # a backward node without a forward one


def training(seed: int, devices: int) -> dict[str, Any]:
    """A chain of layers, forward and back; each backward node reads what its layer wrote. The loss has no partner."""
    draw = random.Random(seed)  # noqa: S311 - the same instance each time
    forward, back = range(LAYERS), range(LAYERS, LOSS)
    edges = [*itertools.pairwise(forward), (LAYERS - 1, LOSS), (LOSS, LOSS - 1), *itertools.pairwise(reversed(back))]
    edges += [(node, node + LAYERS) for node in forward]
    cost = [draw.choice((0.5, 1.0, 4.0)) for _ in range(LOSS + 1)]
    return {
        "maxSizePerFPGA": 1 << 34,
        "maxFPGAs": devices,
        "maxCPUs": 1,
        "nodes": [
            {
                "id": node,
                "supportedOnFpga": 1,
                "cpuLatency": 1000,
                "fpgaLatency": draw.randint(1, 12),
                "isBackwardNode": node >= LAYERS,
                "size": 1,
                **({} if node == LOSS else {"colorClass": node % LAYERS}),
            }
            for node in range(LOSS + 1)
        ],
        "edges": [{"sourceId": a, "destId": b, "cost": cost[a]} for a, b in edges],
    }


def best(instance: dict[str, Any]) -> float:
    """The least load of the busiest device: the layers in order, the loss with the last one or after it."""
    wrote = {edge["sourceId"]: edge["cost"] for edge in instance["edges"]}
    found = []
    for places in itertools.combinations_with_replacement(range(instance["maxFPGAs"]), LAYERS + 1):
        home = {node["id"]: places[node["id"] % LAYERS if node["id"] < LOSS else LAYERS] for node in instance["nodes"]}
        sent = {(e["sourceId"], home[e["destId"]]) for e in instance["edges"]}
        sent = {(node, device) for node, device in sent if home[node] != device}
        load = [
            sum(node["fpgaLatency"] for node in instance["nodes"] if home[node["id"]] == device)
            + sum(wrote[node] for node, target in sent if target == device)
            + sum(wrote[node] for node in {node for node, _ in sent} if home[node] == device)
            for device in range(instance["maxFPGAs"])
        ]
        found.append(max(load))
    return float(min(found))


def test_only_forward_edges_order_the_parts_of_training(tmp_path: Path) -> None:
    instances = {f"{seed:02}-{devices}": training(seed, devices) for seed in range(FUZZ or 2) for devices in (2, 3)}
    for name, instance in instances.items():
        (tmp_path / f"{name}.json").write_text(json.dumps(instance))
    done = subprocess.run([sys.executable, BENCHMARK, "plan", tmp_path], capture_output=True, text=True, check=True)
    found = dict(re.findall(r"^(\S+), \d+ groups +([\d.]+) ms \(optimal\)", done.stdout, re.MULTILINE))
    assert found == {name: f"{best(instance):.4f}" for name, instance in instances.items()}
