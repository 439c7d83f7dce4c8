"""The command `graphcut verify`."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Final

import typer

from .application import GENERAL, check_apply, given_options
from .common_options import Optimized, OriginalOptions, Places, load
from .input_files import read_given
from .output import put_answer

_OF_FILES: Final = ("cascade_path", "--files", "--json", *GENERAL)


def verify(
    ctx: typer.Context,
    cascade_path: Path,
    original: OriginalOptions,
    inputs: Places = None,
    optimized: Optimized = "none",
    structural_only: bool = False,
    files_only: bool = False,
    as_json: bool = False,
) -> None:
    """Verify that a cascade or a sharded model equals its model.

    Exit code 1 if it does not. Without --inputs, two sets of inputs are generated from the seed. --files needs no
    model: it compares parts and weights with the digests in the manifest.

    Examples:
        graphcut verify llm.parts
        graphcut verify llm.parts --files
    """
    from ..drawing.verification_records import verification_record

    given = given_options(ctx)
    if structural_only:
        check_apply(given, ("--inputs", "--seed", "--optimize"), "--structural, which runs nothing")
    if files_only:
        check_apply(given, {*given}.difference(_OF_FILES), "--files, which needs no model and runs nothing")
        from .. import verify_files
        from ..drawing.terminal.verification import draw_file_verification

        files = verify_files(cascade_path)
        draw = partial(draw_file_verification, files)
        put_answer(verification_record(files), draw, as_json=as_json, is_yes=files.same)
        return
    from .. import open_cascade, original_of
    from .. import verify as verified
    from ..drawing.path_kinds import kind_of
    from ..drawing.terminal.verification import draw_verification

    cascade = load(cascade_path, None) if kind_of(cascade_path) == "model" else open_cascade(cascade_path)
    source = load(original.model or original_of(cascade), original.dims)  # the sizes of the manifest are to be verified
    feeds, seed, is_optimized = read_given(inputs, source), original.seed, optimized == "all"
    report = verified(source, cascade, inputs=feeds, seed=seed, optimized=is_optimized, structural_only=structural_only)
    draw = partial(draw_verification, report, cascade)
    put_answer(verification_record(report), draw, as_json=as_json, is_yes=report.same)
