"""Steps with small tensors go over a connection of graphcut's own, which only who knows the key can use."""

from multiprocessing import AuthenticationError

import numpy as np
import pytest

ray_channel = pytest.importorskip("graphcut.running.executors.ray_channel", reason="Ray is not installed")

from graphcut import RunError  # noqa: E402 - after the check
from graphcut.running.executors.protocol import Step  # noqa: E402 - after the check

STEP = Step(3, (0, 1), ("y",))


def doubled(step: Step, inputs: dict[str, np.ndarray]) -> object:
    if "x" not in inputs:
        return RunError("there is no x", hint="feed it")
    return ray_channel.StepResult((0.5,), step.request, {"y": 2 * inputs["x"]}, ("y",))


def test_a_step_and_its_error_come_back() -> None:
    channel = ray_channel.StepChannel(ray_channel.listen(doubled))
    for x in (np.arange(6, dtype=np.float16).reshape(2, 3), np.zeros((0, 4), np.int64), np.array(7, np.int32)):
        channel.send(STEP, {"x": x})
        answer = channel.receive()
        assert (answer.seconds, answer.memory_bytes, answer.small) == ((0.5,), 3, ("y",))
        assert (answer.inline["y"].dtype, answer.inline["y"].shape) == (x.dtype, x.shape)
        np.testing.assert_array_equal(answer.inline["y"], 2 * x)
    channel.send(STEP, {})
    error = channel.receive()
    assert (str(error), error.hint) == ("there is no x", "feed it")
    channel.close()
    with pytest.raises((EOFError, OSError)):
        channel.receive()


def test_who_does_not_know_the_key_is_refused_and_the_driver_is_not() -> None:
    address = ray_channel.listen(doubled)
    with pytest.raises((AuthenticationError, EOFError, OSError)):
        ray_channel.StepChannel(address._replace(key=b"guessed"))
    channel = ray_channel.StepChannel(address)
    channel.send(STEP, {"x": np.ones(1)})
    assert channel.receive().inline["y"].tolist() == [2]


def test_nothing_listens_where_ray_uses_tls(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RAY_USE_TLS", "1")
    assert ray_channel.listen(doubled) is None
