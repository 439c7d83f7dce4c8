"""examples/serve on loopback, with the client of OpenAI: one server for all tests."""

from __future__ import annotations

import io
import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from importlib.util import find_spec
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple
from uuid import uuid4

import numpy as np
import pytest

import graphcut
from graphcut import Cascade, Into, Tokenizer

from pages import ROOT
from tokenizers_by_hand import folder_with

httpx = pytest.importorskip("httpx", reason="needs httpx")
NEEDED = ("openai", "fastapi")  # imported where they are used, since every worker of pytest imports this file
pytestmark = pytest.mark.skipif(not all(map(find_spec, NEEDED)), reason="needs openai and ray[serve]")

MOST = 8
MODEL = "any"


class Served(NamedTuple):
    """The address of a server, a client, what it serves, and what is in the environment of its processes."""

    url: str
    client: Any
    cascade: Cascade
    mark: str

    def count(self, name: str) -> int:
        lines = httpx.get(f"{self.url}/metrics").text.splitlines()
        return int(dict(line.removeprefix("graphcut_").split() for line in lines).get(name, 0))

    def workers(self) -> list[int]:
        """The processes that run parts."""
        return [process for process in marked(self.mark) if b"process_worker" in read(process, "cmdline")]


def read(process: int, name: str) -> bytes:
    try:
        return Path(f"/proc/{process}/{name}").read_bytes()
    except OSError:
        return b""


def marked(mark: str) -> list[int]:
    everything = [int(entry.name) for entry in Path("/proc").iterdir() if entry.name.isdigit()]
    return [process for process in everything if mark.encode() in read(process, "environ")]


def free_port() -> int:
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return int(one.getsockname()[1])


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    if not Path("/proc/self/environ").exists():
        pytest.skip("needs /proc")
    import openai

    cascade, port, mark = (
        graphcut.split(folder_with("qwen", tmp_path_factory.mktemp("m")), Into(2)),
        free_port(),
        uuid4().hex,
    )
    words = ["--port", str(port), "--most", str(MOST), "--via", "processes"]
    with TemporaryDirectory(prefix="gc") as folder:  # sockets have short names
        environment = {
            **os.environ,
            "RAY_ADDRESS": "local",
            "RAY_TMPDIR": folder,
            "MARK": mark,
            "PYTHONPATH": str(ROOT),
        }
        log = Path(folder) / "log"
        with log.open("wb") as output:
            process = subprocess.Popen(
                [sys.executable, str(ROOT / "examples/serve/serve.py"), str(cascade.root), *words],
                env=environment, stdout=output, stderr=output,
            )  # fmt: skip
        try:
            url, began = f"http://127.0.0.1:{port}", time.monotonic()
            while not is_ready(url):
                assert process.poll() is None, log.read_text()
                assert time.monotonic() - began < 120, log.read_text()
                time.sleep(0.2)
            client = openai.OpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0)
            yield Served(url, client, cascade, mark)
        finally:
            process.send_signal(signal.SIGINT)
            process.wait(30)
            for left in marked(mark):
                os.kill(left, signal.SIGKILL)


def is_ready(url: str) -> bool:
    try:
        return bool(httpx.get(f"{url}/metrics").status_code == 200)
    except httpx.TransportError:
        return False


def said(cascade: Cascade, prompt: list[int], max_tokens: int) -> str:
    """What Python says."""
    tokenizer = Tokenizer(cascade)
    (tokens,) = graphcut.generate(cascade, [prompt], stop=tokenizer.stop, max_tokens=max_tokens).all()
    stream = tokenizer.stream(prompt)
    return "".join(stream.add(token) for token in tokens if token not in tokenizer.stop) + stream.end()


def test_completions(served: Served) -> None:
    prompt = Tokenizer(served.cascade).encode("The fox 🚀")
    expected = said(served.cascade, prompt, 12)
    for given in ("The fox 🚀", prompt):
        found = served.client.completions.create(model=MODEL, prompt=given, max_tokens=12)
        assert (found.choices[0].text, found.choices[0].finish_reason) == (expected, "length")
        assert (found.usage.prompt_tokens, found.usage.completion_tokens) == (len(prompt), 12)
    pieces = list(served.client.completions.create(model=MODEL, prompt="The fox 🚀", max_tokens=12, stream=True))
    assert "".join(piece.choices[0].text for piece in pieces) == expected
    assert [piece.choices[0].finish_reason for piece in pieces] == [None] * (len(pieces) - 1) + ["length"]
    assert len(pieces) > 4


def test_chat_whose_past_is_not_computed_again(served: Served) -> None:
    messages = [{"role": "user", "content": "Hello 🚀"}]
    ids = Tokenizer(served.cascade).chat(messages)
    expected = said(served.cascade, ids, 12)
    found = served.client.chat.completions.create(model=MODEL, messages=messages, max_completion_tokens=12)
    assert (found.choices[0].message.content, found.choices[0].message.role) == (expected, "assistant")
    pieces = list(served.client.chat.completions.create(model=MODEL, messages=messages, max_tokens=12, stream=True))
    assert "".join(piece.choices[0].delta.content for piece in pieces) == expected
    messages += [{"role": "assistant", "content": expected}, {"role": "user", "content": "And?"}]
    later = served.client.chat.completions.create(model=MODEL, messages=messages, max_tokens=12)
    assert later.choices[0].message.content == said(served.cascade, Tokenizer(served.cascade).chat(messages), 12)
    assert later.usage.prompt_tokens_details.cached_tokens >= len(ids)


def test_stop_strings_and_seeds(served: Served) -> None:
    text = said(served.cascade, Tokenizer(served.cascade).encode("The fox"), 40)
    for stop in (text[5:7], ["never", text[5:7]]):
        found = served.client.completions.create(model=MODEL, prompt="The fox", max_tokens=40, stop=stop)
        assert (found.choices[0].text, found.choices[0].finish_reason) == (text[: text.index(text[5:7])], "stop")
    drawn = [
        served.client.completions.create(model=MODEL, prompt="The fox", max_tokens=12, temperature=2, seed=seed)
        for seed in (1, 1, 2)
    ]
    texts = [one.choices[0].text for one in drawn]
    assert texts[0] == texts[1] != texts[2]


def test_more_than_the_bound_are_refused_and_who_hangs_up_frees_a_sequence(served: Served) -> None:
    import openai

    def ask(number: int) -> Any:  # noqa: ANN401 - a stream
        try:
            return served.client.completions.create(model=MODEL, prompt=[3, number], max_tokens=3000, stream=True)
        except openai.RateLimitError as error:
            return error

    with ThreadPoolExecutor(20) as threads:
        found = list(threads.map(ask, range(20)))
    refused = [one for one in found if isinstance(one, openai.RateLimitError)]
    streams = [one for one in found if not isinstance(one, openai.RateLimitError)]
    assert (len(streams), len(refused)) == (MOST, 20 - MOST)
    assert (refused[0].status_code, refused[0].response.headers["retry-after"]) == (429, "1")
    assert "8 requests are being worked on" in str(refused[0])
    assert served.count("open") == MOST
    assert served.count("refused_total") == 20 - MOST
    for stream in streams:
        next(iter(stream))
        stream.close()
    began = time.monotonic()
    while served.count("open"):
        assert time.monotonic() - began < 20
        time.sleep(0.05)
    assert served.client.completions.create(model=MODEL, prompt="The fox", max_tokens=2).usage.completion_tokens == 2


def test_a_client_that_hangs_up_before_the_answer_frees_its_sequence(served: Served) -> None:
    import openai

    impatient = served.client.with_options(timeout=0.2)
    with pytest.raises(openai.APITimeoutError):
        impatient.completions.create(model=MODEL, prompt="The fox", max_tokens=4000)
    began = time.monotonic()
    while served.count("open"):
        assert time.monotonic() - began < 20
        time.sleep(0.05)


def test_a_killed_worker_is_not_noticed(served: Served) -> None:
    before = served.workers()
    assert len(before) == 2
    stream = served.client.completions.create(model=MODEL, prompt="The dog", max_tokens=200, stream=True)
    pieces = iter(stream)
    text = next(pieces).choices[0].text
    os.kill(before[0], signal.SIGKILL)
    text += "".join(piece.choices[0].text for piece in pieces)
    assert text == said(served.cascade, Tokenizer(served.cascade).encode("The dog"), 200)
    assert len(set(served.workers()) - set(before)) == 1


def test_requests_that_make_no_sense_get_400_with_a_reason(served: Served) -> None:
    import openai

    create = served.client.completions.create
    with pytest.raises(openai.BadRequestError, match="has 10,000 tokens, and the model takes 4096"):
        create(model=MODEL, prompt=[5] * 10_000, max_tokens=4)
    with pytest.raises(openai.BadRequestError, match=" is empty"):
        create(model=MODEL, prompt="", max_tokens=4)
    with pytest.raises(openai.BadRequestError, match="not supported: logprobs"):
        create(model=MODEL, prompt="a", logprobs=2)
    with pytest.raises(openai.BadRequestError, match="top_p can't be 7"):
        create(model=MODEL, prompt="a", top_p=7)
    assert httpx.post(f"{served.url}/v1/completions", content=b"{").status_code == 400


def test_inputs_of_the_model_are_run(served: Served) -> None:
    reads, tensors = served.cascade.manifest.reads, served.cascade.tensors
    feeds = {name: np.zeros((1, 2, 0, 16), tensors[name].dtype) for name in reads if "past" in name}
    feeds |= {"input_ids": np.array([[3, 1, 4]]), "attention_mask": np.ones((1, 3), np.int64)}
    expected = graphcut.run(served.cascade, feeds)
    file = io.BytesIO()
    np.savez(file, allow_pickle=False, **feeds)
    raw = httpx.post(f"{served.url}/run", content=file.getvalue(), headers={"content-type": "application/octet-stream"})
    found = np.load(io.BytesIO(raw.content))
    assert {name: found[name].tolist() for name in found} == {name: value.tolist() for name, value in expected.items()}
    few = {name: value.tolist() for name, value in feeds.items() if "past" not in name}
    refused = httpx.post(f"{served.url}/run", content=json.dumps(few))
    assert "nothing is fed for it" in refused.json()["error"]["message"]


def test_the_example_is_short() -> None:
    assert len((ROOT / "examples" / "serve" / "serve.py").read_text(encoding="utf-8").splitlines()) < 150


def test_it_is_healthy(served: Served) -> None:
    assert httpx.get(f"{served.url}/-/healthz").text == "success"
