"""Real exports and real architectures, cut at several places each."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import graphcut
from graphcut import At, Model, SessionConfig, verify

from cases import each, some
from conftest import FIXTURES
from light import LightNetwork, light_networks

EXPORTS = sorted(path.relative_to(FIXTURES) for path in FIXTURES.rglob("*.onnx"))
REFUSED = {
    # Its heads are 24 wide, and ONNX Runtime's GroupQueryAttention wants multiples of 16: only the proof is left.
    "tiny-qwen2-fp32": "head_size",
}
LIGHT = {network.name: network for network in light_networks()}


def cut_in_four(model: Model, folder: Path) -> graphcut.Cascade:
    """Cut at three valleys of the profile that lie apart."""
    analysis = graphcut.analyze(model)
    places = [point.node for point in analysis.cut_points]
    chosen = tuple(places[round((len(places) - 1) * i / 4)] for i in (1, 2, 3))
    return graphcut.split(model, graphcut.plan(analysis, At(chosen)), folder)


@each("export", EXPORTS)
def test_an_export_is_split_and_every_boundary_tensor_is_bit_identical(export: Path, tmp_path: Path) -> None:
    model = graphcut.load(FIXTURES / export)
    cascade = cut_in_four(model, tmp_path / "parts")
    report = verify(model, cascade)
    assert len(cascade.parts) >= 3
    assert report.proof.objections == graphcut.verify_files(cascade).objections == ()
    assert REFUSED.get(export.parent.name, "") in report.refusal
    is_refused = export.parent.name in REFUSED
    assert (len(report.runs), report.is_identical) == ((0, None) if is_refused else (2, True)), report.refusal


@pytest.mark.fuzz
@pytest.mark.parametrize("name", some([*LIGHT][::2], *[*LIGHT][1::2]))
def test_an_architecture_is_split_and_gives_its_reference_outputs(name: str, tmp_path: Path) -> None:
    network: LightNetwork = LIGHT[name]
    model = graphcut.load(network.path)
    cascade = cut_in_four(model, tmp_path / "parts")
    report = verify(model, cascade, inputs=[network.feeds])
    assert len(cascade.parts) >= 3
    assert report.proof.objections == graphcut.verify_files(cascade).objections == ()
    assert report.is_identical, report.first_difference
    outputs = graphcut.run(cascade, network.feeds, config=SessionConfig(optimize="none"))
    for ours, expected in zip(outputs.values(), network.expected.values(), strict=True):
        assert (ours.dtype, ours.shape) == (expected.dtype, expected.shape)
        np.testing.assert_allclose(ours, expected, rtol=network.rtol, atol=network.atol)
