"""The command `graphcut cluster`."""

from pathlib import Path
from typing import Annotated, Literal

from typer import Argument, Option

from .common_options import Force, Output
from .output import check_output, print_line, say


def cluster(
    action: Annotated[Literal["measure"], Argument(metavar="measure", help="Measure devices and links.")],  # noqa: ARG001
    output: Annotated[Path, Output(help="The cluster file (TOML).")],
    seconds: Annotated[float, Option(metavar="S", min=0, help="How long devices are measured, at once.")] = 10.0,
    insecure: Annotated[bool, Option("--insecure", help="Accept a cluster without a token.")] = False,
    force: Force = False,
) -> None:
    """Measure the devices and links of a Ray cluster, for --cluster.

    Of each machine that `ray start --resources` calls a device: FLOP/s, memory bandwidth, free memory, and bytes per
    second and latency of its link. Needs a cluster that is otherwise idle.
    """
    from ..benchmarking.calibration import calibrate_cluster, save_cluster

    check_output(output, force=force)
    save_cluster(*calibrate_cluster(seconds, insecure=insecure), output)
    for line in output.read_text(encoding="utf-8").splitlines():
        print_line(line)
    say(f"wrote {output}")
