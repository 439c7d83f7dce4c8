"""Cases of `scripts/benchmark compare`: a planted fault is the first culprit, and without one there is none."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from conftest import ROOT

sys.path.insert(0, str(ROOT / "scripts"))

import benchmark_compare
from benchmark_compare import NOISES, cases, is_hit


@pytest.mark.parametrize("noise", ["none", "fp16"])
def test_a_planted_fault_is_the_first_culprit_and_without_one_there_is_none(
    noise: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A scale and a cast in a sentence encoder, with and without padding."""
    monkeypatch.setattr(benchmark_compare, "NOISES", {noise: NOISES[noise]})
    found = [*cases(tmp_path, ["MiniLM-like"], ["scale", "cast"], seed=5)]
    assert len(found) == 6
    for case in found:
        assert case.found.same is not bool(case.target), case.name
        assert not case.target or is_hit(case.found.culprits[0], case.target), case.name
