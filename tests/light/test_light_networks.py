"""The light networks are there, with what onnx expects of them."""

from __future__ import annotations

import numpy as np

from . import LightNetwork, light_networks
from cases import each

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


@each("network", NETWORKS)
def test_its_answer_is_one_number_all_over(network: LightNetwork) -> None:
    """That networks give these answers, whole and in parts, is a claim of end_to_end/test_real_models.py."""
    for expected in network.expected.values():
        np.testing.assert_array_equal(expected, expected.flat[0])
