"""Transcriptions and embeddings of examples/serve, with the client of OpenAI: its application in this process."""

from __future__ import annotations

import sys
import wave
from collections.abc import Callable, Iterator
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import graphcut

from families import FAMILIES
from pages import ROOT

NEEDED = ("httpx", "openai", "fastapi", "tokenizers")
pytestmark = [
    pytest.mark.skipif(not all(map(find_spec, NEEDED)), reason="needs openai, tokenizers and ray[serve]"),
    pytest.mark.filterwarnings("ignore::DeprecationWarning:ray"),
]

Opened = Callable[[str], tuple[graphcut.Cascade, Path, Any]]


@pytest.fixture
def opened(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Opened]:
    """Opens a family: its cascade in two parts, the folder of its models, and a client that asks the server of it."""
    import openai
    from ray import serve  # noqa: TID251 - the rule is for the package
    from starlette.testclient import TestClient

    monkeypatch.syspath_prepend(str(ROOT / "examples" / "serve"))
    monkeypatch.delitem(sys.modules, "serve", raising=False)
    module = import_module("serve")
    kept = list[Any]()

    def open_family(name: str) -> tuple[graphcut.Cascade, Path, Any]:
        folder = FAMILIES[name].write(tmp_path / "m")
        cascade = graphcut.split(graphcut.load(folder), graphcut.Into(2), tmp_path / "parts")
        server_class = next(one for one in module.Server.__mro__ if one.__name__ == "Server" and "run" in vars(one))
        server = server_class(
            str(cascade.root), {"most": 2, "via": "threads", "max_context": 0, "cache_bytes": 1 << 30}
        )
        monkeypatch.setattr(serve, "get_replica_context", lambda: SimpleNamespace(servable_object=server))
        web = TestClient(module.app)
        kept.extend((server, web))
        return cascade, folder, openai.OpenAI(base_url=f"{web.base_url}/v1", api_key="none", http_client=web)

    yield open_family
    for server in kept[::2]:
        if server.service is not None:
            server.service.close()


def said(path: Path, seed: int) -> Path:
    with wave.open(str(path), "wb") as file:
        file.setparams((1, 2, 16_000, 0, "NONE", ""))
        file.writeframes((np.random.default_rng(seed).normal(size=150) * 8000).astype("<i2").tobytes())
    return path


def test_a_sound_is_transcribed(tmp_path: Path, opened: Opened) -> None:
    import openai

    cascade, folder, client = opened("whisper, from samples")
    tokenizer, texts = graphcut.Tokenizer(cascade), []
    for seed in range(2):
        path = said(tmp_path / f"{seed}.wav", seed)
        inputs = graphcut.read_inputs(path, cascade.manifest.reads, tensors=cascade.tensors)
        (tokens,) = FAMILIES["whisper, from samples"].reference(folder, inputs, 63)  # two others are before them
        texts.append(tokenizer.decode([token for token in tokens if token not in tokenizer.stop]))
        with path.open("rb") as file:
            found = client.audio.transcriptions.create(model="any", file=file)
        assert found.text == texts[-1]
    assert texts[0] != texts[1]
    with path.open("rb") as file:
        assert client.audio.transcriptions.create(model="any", file=file, response_format="text") == texts[1]
    for how, message in (({"response_format": "srt"}, "not supported: response_format"), ({}, "is not a WAV file")):
        with pytest.raises(openai.BadRequestError, match=message):
            client.audio.transcriptions.create(model="any", file=b"no sound", **how)
    with pytest.raises(openai.NotFoundError, match="makes no vectors"):
        client.embeddings.create(model="any", input="ba du")


def test_texts_become_vectors(opened: Opened) -> None:
    import openai

    cascade, folder, client = opened("sentence encoder")
    texts = ["ba du fo", "ki"]
    (wanted,) = [FAMILIES["sentence encoder"].reference(folder, graphcut.text_inputs(cascade, texts))]
    for how in ({}, {"encoding_format": "float"}):
        found = client.embeddings.create(model="any", input=texts, **how)
        np.testing.assert_allclose([one.embedding for one in found.data], wanted, atol=1e-6)
        assert [one.index for one in found.data] == [0, 1]
        assert found.usage.prompt_tokens == int(graphcut.text_inputs(cascade, texts)["attention_mask"].sum())
    assert len(client.embeddings.create(model="any", input="ki").data) == 1
    for given, message in (([1, 2], "is not a text"), ("", "is not a text")):
        with pytest.raises(openai.BadRequestError, match=message):
            client.embeddings.create(model="any", input=given)
    with pytest.raises(openai.BadRequestError, match="not supported: dimensions=8"):
        client.embeddings.create(model="any", input="ki", dimensions=8)
    with pytest.raises(openai.NotFoundError, match="does not hear"):
        client.audio.transcriptions.create(model="any", file=b"no sound")
