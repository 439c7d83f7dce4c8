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
from graphcut.decoding.prefix_cache import PIECE

from pages import ROOT
from tokenizers_by_hand import folder_with

httpx = pytest.importorskip("httpx", reason="needs httpx")
BUSY_S = 120.0  #: a request may take so long: workers start at the first one, and httpx waits for 5 s otherwise.
NEEDED = ("openai", "fastapi")  # imported where they are used, since every worker of pytest imports this file
pytestmark = pytest.mark.skipif(not all(map(find_spec, NEEDED)), reason="needs openai and ray[serve]")

MOST = 8
MODEL = "any"


class Served(NamedTuple):
    """Clients of a server (of HTTP, and OpenAI's), what it serves, and what is in its processes' environment."""

    web: Any
    client: Any
    cascade: Cascade
    mark: str

    def count(self, name: str) -> int:
        lines = self.web.get("/metrics").text.splitlines()
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

    made = tmp_path_factory.mktemp("m")
    cascade, port, mark = (
        graphcut.split(folder_with("qwen", made), Into(2), made / "model.parts"),
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
            "RAY_worker_niceness": "0",  # else the other tests would keep it waiting
            "RAY_prestart_worker_first_driver": "0",
            "RAY_enable_worker_prestart": "0",
            "RAY_SERVE_PROXY_READY_CHECK_TIMEOUT_S": "60",  # 5 s are too few on a busy machine
            "RAY_SERVE_PROXY_HEALTH_CHECK_TIMEOUT_S": "60",
        }
        log = Path(folder) / "log"
        with log.open("wb") as output:
            process = subprocess.Popen(
                [sys.executable, ROOT / "tests/ray_nodes.py", ROOT / "examples/serve/serve.py", cascade.root, *words],
                env=environment, stdout=output, stderr=output,
            )  # fmt: skip
        try:
            url, began = f"http://127.0.0.1:{port}", time.monotonic()
            web = httpx.Client(base_url=url, timeout=BUSY_S)
            while not is_ready(web):
                assert process.poll() is None, log.read_text()
                assert time.monotonic() - began < 240, log.read_text()
                time.sleep(0.2)
            client = openai.OpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0)
            yield Served(web, client, cascade, mark)
        finally:
            process.send_signal(signal.SIGINT)
            process.wait(30)
            for left in marked(mark):
                os.kill(left, signal.SIGKILL)


def is_ready(web: Any) -> bool:  # noqa: ANN401 - a client
    try:
        return bool(web.get("/metrics").status_code == 200)
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
    messages = [{"role": "user", "content": "Hello 🚀" * 10}]
    ids = Tokenizer(served.cascade).chat(messages)
    expected = said(served.cascade, ids, 12)
    found = served.client.chat.completions.create(model=MODEL, messages=messages, max_completion_tokens=12)
    assert (found.choices[0].message.content, found.choices[0].message.role) == (expected, "assistant")
    pieces = list(served.client.chat.completions.create(model=MODEL, messages=messages, max_tokens=12, stream=True))
    assert "".join(piece.choices[0].delta.content for piece in pieces) == expected
    messages += [{"role": "assistant", "content": expected}, {"role": "user", "content": "And?"}]
    later = served.client.chat.completions.create(model=MODEL, messages=messages, max_tokens=12)
    assert later.choices[0].message.content == said(served.cascade, Tokenizer(served.cascade).chat(messages), 12)
    assert later.usage.prompt_tokens_details.cached_tokens == len(ids) // PIECE * PIECE > 0


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
    with pytest.raises(openai.BadRequestError, match="top_p can't be 7"):
        create(model=MODEL, prompt="a", top_p=7)
    with pytest.raises(openai.BadRequestError, match="is outside the vocabulary"):
        create(model=MODEL, prompt=[99999], max_tokens=4, stream=True)


CHAT = {"messages": [{"role": "user", "content": "Hi"}]}
TEXT = {"prompt": "Hi"}


@pytest.mark.parametrize(
    ("body", "said"),
    [
        (
            {**CHAT, "response_format": {"type": "json_object"}},
            'not supported: response_format={"type": "json_object"}',
        ),
        ({"prompt": ["a"] * 9}, "9 prompts, and at most 8 are worked on"),
        ({**CHAT, "tool_choice": "required"}, 'not supported: tool_choice="required"'),
        ({**CHAT, "functions": [{"name": "f"}]}, 'not supported: functions=[{"name": "f"}]'),
        ({**CHAT, "top_logprobs": 2}, "top_logprobs needs logprobs to be true"),
        ({**CHAT, "logprobs": 2}, "logprobs is 2, not of the type bool"),
        ({**CHAT, "max_tokens": 0}, "can't generate 0 tokens"),
        ({**CHAT, "max_completion_tokens": 0}, "can't generate 0 tokens"),
        ({**CHAT, "foo": 1}, "not supported: foo=1"),
        ({}, "messages has no message"),
        ({"messages": []}, "messages has no message"),
        (
            {"messages": [{"role": "tool", "content": "x"}]},
            "messages[0].role is not system, developer, user or assistant",
        ),
        (
            {"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "x"}}]}]},
            "messages[0].content is not a text",
        ),
        ({**TEXT, "max_tokens": 0}, "can't generate 0 tokens"),
        ({**TEXT, "max_tokens": True}, "max_tokens is true, not of the type int"),
        ({**TEXT, "temperature": "hot"}, 'temperature is "hot", not of the type float'),
        ({**TEXT, "stop": ""}, "stop is not a text or a list of texts, none of them empty"),
        ({**TEXT, "logprobs": 99}, "logprobs is 99, not 0 to 20"),
        ({**TEXT, "n": 2}, "not supported: n=2"),
        ({}, "prompt is not a text, a list of token ids, or a list of these"),
        ({"prompt": ["a", 3]}, "prompt is not a text, a list of token ids, or a list of these"),
        ([], "the body is not a JSON object"),
        (
            {"messages": [{"role": "user", "content": [{"type": "text", "text": 5}]}]},
            "messages[0].content is not a text",
        ),
    ],
)
def test_what_would_change_the_answer_and_is_not_supported_is_refused(served: Served, body: Any, said: str) -> None:  # noqa: ANN401
    is_chat = "messages" in said or "messages" in body
    found = served.web.post(f"/v1/{'chat/' if is_chat else ''}completions", json=body)
    error = found.json()["error"]
    assert (found.status_code, error["message"], error["type"]) == (400, said, "invalid_request_error")
    assert error.keys() == {"message", "type", "param", "code"}


@pytest.mark.parametrize(
    ("body", "param", "said"),
    [
        ({"max_tokens": 0}, "max_tokens", "can't generate 0 tokens"),
        ({"temperature": -1}, "temperature", "temperature can't be -1"),
        ({"top_k": -1}, "top_k", "top_k can't be -1"),
        ({"top_p": 7}, "top_p", "top_p can't be 7"),
        ({"repetition_penalty": 0}, "repetition_penalty", "repetition_penalty can't be 0"),
        ({"prompt": [[5], [99999]]}, "prompt", "token id 99999 of prompt 1 is outside the vocabulary"),
        ({"prompt": [[5], [5] * 10_000]}, "prompt", "prompt 1 has 10,000 tokens"),
        ({"prompt": ""}, "prompt", "the prompt is empty"),
        ({"prompt": [[5, -1]]}, "prompt", "the prompt has -1, which is not a token id"),
        ({"prompt": "\ud800"}, None, "the body has half of a surrogate pair, which is no character"),
        ({"model": "\ud800"}, None, "the body has half of a surrogate pair, which is no character"),
    ],
)
def test_an_error_names_the_parameter_and_the_prompt_of_the_request(
    served: Served, body: dict[str, Any], param: str | None, said: str
) -> None:
    found = served.web.post("/v1/completions", content=json.dumps(TEXT | {"max_tokens": 2} | body))
    error = found.json()["error"]
    assert (found.status_code, error["param"]) == (400, param)
    assert error["message"].startswith(said)


def test_errors_and_models_have_the_shape_of_openai(served: Served) -> None:
    import openai

    (model,) = served.client.models.list()
    assert (model.object, model.owned_by, model.id) == ("model", "graphcut", served.cascade.root.name)
    assert served.web.post("/v1/completions", content=b"{").json()["error"]["type"] == "invalid_request_error"
    missing = served.web.get("/v1/nothing")
    assert (missing.status_code, missing.json()["error"]["type"]) == (404, "not_found_error")
    with pytest.raises(openai.BadRequestError) as caught:
        served.client.completions.create(model=MODEL, prompt="a", n=2)
    assert caught.value.param == "n"


def test_several_prompts_and_log_probabilities(served: Served) -> None:
    tokenizer, create = Tokenizer(served.cascade), served.client.completions.create
    prompts = [tokenizer.encode(text) for text in ("The fox", "A dog")]
    expected = [said(served.cascade, prompt, 6) for prompt in prompts]
    for given in (["The fox", "A dog"], prompts):
        found = create(model=MODEL, prompt=given, max_tokens=6, logprobs=2)
        assert [(one.index, one.text) for one in found.choices] == list(enumerate(expected))
        assert found.usage.completion_tokens == 12
    for choice in found.choices:
        assert [max(top.values()) for top in choice.logprobs.top_logprobs] == choice.logprobs.token_logprobs
        assert "".join(choice.logprobs.tokens).startswith(choice.text[:3])
    pieces = list(
        create(model=MODEL, prompt=prompts, max_tokens=6, stream=True, stream_options={"include_usage": True})
    )
    texts = ["", ""]
    for piece in pieces[:-1]:
        texts[piece.choices[0].index] += piece.choices[0].text
    assert (texts, pieces[-1].choices, pieces[-1].usage.completion_tokens) == (expected, [], 12)
    message = [{"role": "user", "content": [{"type": "text", "text": "Hi"}]}]
    chat = served.client.chat.completions.create(model=MODEL, messages=message, max_tokens=3, logprobs=True)
    rows = chat.choices[0].logprobs.content
    assert [(len(row.top_logprobs), bytes(row.bytes).decode() == row.token) for row in rows] == [(0, True)] * 3


def test_inputs_of_the_model_are_run(served: Served) -> None:
    reads, tensors = served.cascade.manifest.reads, served.cascade.tensors
    feeds = {name: np.zeros((1, 2, 0, 16), tensors[name].dtype) for name in reads if "past" in name}
    feeds |= {"input_ids": np.array([[3, 1, 4]]), "attention_mask": np.ones((1, 3), np.int64)}
    expected = graphcut.run(served.cascade, feeds)
    file = io.BytesIO()
    np.savez(file, allow_pickle=False, **feeds)
    raw = served.web.post("/run", content=file.getvalue(), headers={"content-type": "application/octet-stream"})
    found = np.load(io.BytesIO(raw.content))
    assert {name: found[name].tolist() for name in found} == {name: value.tolist() for name, value in expected.items()}
    few = {name: value.tolist() for name, value in feeds.items() if "past" not in name}
    refused = served.web.post("/run", content=json.dumps(few))
    assert "nothing is fed for it" in refused.json()["error"]["message"]
    feeds["attention_mask"] = np.ones((1, 2, 2), np.int64)
    wrong = served.web.post("/run", content=json.dumps({name: value.tolist() for name, value in feeds.items()}))
    assert [refused.status_code, wrong.status_code] == [400, 400]
    for body in (b"", b"PK\x03\x04junkjunk", json.dumps({"input_ids": [[2**70]]})):
        kind = "application/octet-stream" if isinstance(body, bytes) else "application/json"
        damaged = served.web.post("/run", content=body, headers={"content-type": kind})
        assert (damaged.status_code, damaged.json()["error"]["type"]) == (400, "invalid_request_error")
    for text, said in (
        ("[1]", "the body is not a JSON object"),
        ('{"input_ids": [[1], [2, 3]]}', "input 'input_ids' is "),
    ):
        unlike = served.web.post("/run", content=text)
        assert (unlike.status_code, unlike.json()["error"]["message"][: len(said)]) == (400, said)
    deep = served.web.post("/v1/completions", content="[" * 100_000)
    assert (deep.status_code, deep.json()["error"]["type"]) == (400, "invalid_request_error")


def test_the_example_is_short() -> None:
    files = (ROOT / "examples" / "serve").glob("*.py")
    assert max(len(file.read_text(encoding="utf-8").splitlines()) for file in files) < 220


def test_it_is_healthy(served: Served) -> None:
    assert served.web.get("/-/healthz").text == "success"
