"""The command `graphcut shard`."""

import sys
from pathlib import Path
from typing import Annotated, Literal

from typer import Option

from ..core.errors import UsageError
from ..core.text import shell_word
from .common_options import AsJson, Dims, Force, ModelPath, Output, load
from .output import print_json, say, say_next, settings

Ranks = Annotated[int | None, Option(metavar="N", min=2, help="The number of ranks that layers are divided among.")]
Shares = Annotated[str | None, Option(metavar="N:N...", help="The share of each rank.", show_default="equal shares")]
Exact = Annotated[bool, Option("--exact/--sum", help="Join pieces before they are summed over, or add partial sums.")]


def shard(
    model: ModelPath,
    output: Annotated[Path | None, Output(help="The .onnx file.", show_default="MODEL.sharded.onnx")] = None,
    ranks: Ranks = None,
    shares: Shares = None,
    exact: Exact = True,
    weights: Annotated[
        Literal["copy", "share"], Option(help="copy: all weights. share: slices that are ranges refer to MODEL's file.")
    ] = "copy",
    dim: Dims = None,
    force: Force = False,
    as_json: AsJson = False,
) -> None:
    """Divide the layers of a model among ranks (tensor parallelism).

    The result is one ordinary model, in which every layer that can be divided stands once for each rank.
    """
    from ..drawing.json_records import sharding_record
    from ..surgery.sharding import describe
    from ..surgery.sharding import shard as sharded

    if ranks is None and shares is None:
        raise UsageError("neither --ranks nor --shares is given", hint="for example --ranks 2, or --shares 3:1")
    mode: Literal["exact", "sum"] = "exact" if exact else "sum"
    parts = parsed_shares(shares)
    opened = load(model, dim)
    sharding = sharded(opened, output, ranks=ranks, shares=parts, mode=mode, weights=weights, force=force)
    if as_json:
        print_json(sharding_record(sharding))
        return
    if settings.is_quiet:
        sys.stdout.write(f"{sharding.path}\n")
        return
    sys.stdout.write("".join(f"{line}\n" for line in describe(sharding)))
    say(f"wrote {sharding.path}")
    say_next(f"graphcut verify {shell_word(str(sharding.path))}")


def parsed_shares(text: str | None) -> tuple[int, ...] | None:
    """The shares in a text like `3:1`."""
    try:
        return None if text is None else tuple(int(number) for number in text.split(":"))
    except ValueError:
        raise UsageError(f"--shares {text}: expected numbers such as 3:1:1:1", hint="one for each rank") from None
