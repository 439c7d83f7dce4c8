"""The light networks are there, run, and give what onnx expects of them."""

from __future__ import annotations

import numpy as np
import onnxruntime as ort
import pytest

from . import LightNetwork, light_networks

NETWORKS = tuple(light_networks())


def test_there_are_nine() -> None:
    assert [network.name for network in NETWORKS] == [
        "bvlc_alexnet",
        "densenet121",
        "inception_v1",
        "inception_v2",
        "resnet50",
        "shufflenet",
        "squeezenet",
        "vgg19",
        "zfnet512",
    ]


each_network = pytest.mark.parametrize("network", NETWORKS, ids=lambda network: network.name)


@each_network
def test_it_gives_the_expected_answer(network: LightNetwork) -> None:
    options = ort.SessionOptions()
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.log_severity_level = 4
    session = ort.InferenceSession(network.path, options, providers=["CPUExecutionProvider"])
    answers = dict(zip(network.expected, session.run(list(network.expected), network.feeds), strict=True))
    for name, expected in network.expected.items():
        assert answers[name].dtype == expected.dtype
        assert answers[name].shape == expected.shape
        np.testing.assert_allclose(answers[name], expected, rtol=network.rtol, atol=network.atol)


@each_network
def test_its_answer_is_one_number_all_over(network: LightNetwork) -> None:
    for expected in network.expected.values():
        np.testing.assert_array_equal(expected, expected.flat[0])
