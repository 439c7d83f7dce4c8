"""Nodes of Ray without the processes that no test needs: they take as much processor time as the rest of a node.

`python ray_nodes.py start ...` is `ray start ...` for such a node, and `python ray_nodes.py FILE ...` runs a program
whose nodes are such.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path
from runpy import run_path
from typing import Any

import pytest
from ray._private import node, services  # noqa: TID251 - only where Ray is installed

AGENT = "for file; do echo -1 >$file.new; mv $file.new $file; done; while kill -0 $PPID; do sleep 5; done"
"""In place of what watches a node, and of what makes environments on it: it only says that it is there."""
PORTS = {
    "--dashboard": ("metrics_agent", "metrics_export", "dashboard_agent_listen"),
    "--runtime_env": ("runtime_env_agent",),
}
START = services.start_ray_process


def without_agents(command: list[str], *arguments: Any, **options: Any) -> Any:  # noqa: ANN401 - those of Ray
    """Start a process of Ray, with `AGENT` instead of its agents."""
    for i, word in enumerate(command):
        option, is_agent, agent = word.partition("_agent_command=")
        if is_agent:
            where = dict(re.findall(r"--(session-dir|node-id)=(\S+)", agent))
            ports = PORTS[option]
            files = " ".join(f"{where['session-dir']}/{port}_port_{where['node-id']}" for port in ports)
            command[i] = f'{option}{is_agent}sh -c "{AGENT}" {option} {files}'
    return START(command, *arguments, **options)


def without_extras(patch: pytest.MonkeyPatch) -> None:
    """The nodes that this process starts have no agents, no dashboard, no server for clients elsewhere."""
    patch.setattr(services, "start_ray_process", without_agents)
    for extra in ("start_api_server", "start_ray_client_server"):
        patch.setattr(node.Node, extra, lambda *_, **__: None)


if __name__ == "__main__":
    with pytest.MonkeyPatch.context() as patched:
        without_extras(patched)
        if sys.argv[1].endswith(".py"):
            sys.argv = sys.argv[1:]
            sys.path[0] = str(Path(sys.argv[0]).parent)
            run_path(sys.argv[0], run_name="__main__")
        else:
            from ray.scripts.scripts import main  # noqa: TID251 - it takes a second

            main()  # type: ignore[no-untyped-call]
