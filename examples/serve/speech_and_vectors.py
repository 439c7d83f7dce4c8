"""Requests for transcriptions and embeddings in the form of OpenAI's API, and their answers."""

import base64
import json
import wave
from collections.abc import Mapping, Sequence
from dataclasses import replace
from email import message_from_bytes
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

import numpy as np
from openai_api import RefusedError, blaming

import graphcut

FIELDS = {"file", "model", "response_format", "temperature", "prompt", "language"}  #: of a transcription.


def vector_of(cascade: graphcut.Cascade) -> str | None:
    """The output that has a vector for each text: the only one of a model without states; None if there is none."""
    tensors = [cascade.tensors[name] for name in cascade.manifest.writes]
    is_one = len(tensors) == 1 and len(tensors[0].shape or ()) == 2 and not cascade.manifest.states
    return tensors[0].name if is_one else None


def silence(cascade: graphcut.Cascade) -> dict[str, Any]:
    """The inputs for a second without sound; none if the model does not hear."""
    with TemporaryDirectory() as folder:
        path = Path(folder) / "silence.wav"
        with wave.open(str(path), "wb") as file:
            file.setparams((1, 2, 16_000, 0, "NONE", ""))
            file.writeframes(bytes(32_000))
        try:
            return dict(graphcut.read_inputs(path, cascade.manifest.reads, tensors=cascade.tensors))
        except graphcut.UsageError:
            return {}


class Transcription(NamedTuple):
    """What a request asks for."""

    inputs: dict[str, Any]
    sampling: graphcut.Sampling
    is_plain: bool  #: the answer is the text alone.


def transcription(raw: bytes, kind: str, cascade: graphcut.Cascade, sampling: graphcut.Sampling) -> Transcription:
    """What a form with a WAV file asks for. Raises RefusedError or UsageError."""
    message = message_from_bytes(f"Content-Type: {kind}\r\n\r\n".encode() + raw)
    parts: list[Any] = message.get_payload() if message.is_multipart() else []  # type: ignore[assignment]
    fields: dict[str, bytes] = {
        str(one.get_param("name", header="content-disposition")): one.get_payload(decode=True) for one in parts
    }
    texts = {name: value.decode() for name, value in fields.items() if name != "file"}
    known = {"response_format": ("json", "text"), "prompt": ("",), "language": ("en", "")}
    for name, value in texts.items():
        if name not in FIELDS or value not in known.get(name, (value,)):
            raise RefusedError(f"not supported: {name}={json.dumps(value)[:80]}", name)
    if not fields.get("file"):
        raise RefusedError("there is no file", "file")
    try:
        temperature = float(texts.get("temperature", 0))
    except ValueError:
        raise RefusedError(f"temperature is {texts['temperature']!r}, not a number", "temperature") from None
    with TemporaryDirectory() as folder:
        path = Path(folder) / "sound.wav"
        path.write_bytes(fields["file"])
        inputs = graphcut.read_inputs(path, cascade.manifest.reads, tensors=cascade.tensors)
    with blaming("temperature"):
        how = replace(sampling, temperature=temperature)
    return Transcription(dict(inputs), how, texts.get("response_format") == "text")


def texts_to_embed(body: Mapping[str, Any]) -> list[str]:
    """The texts of a request. Raises RefusedError."""
    known = {"input", "model", "encoding_format", "user"}
    if unknown := next((name for name, value in body.items() if name not in known and value is not None), None):
        raise RefusedError(f"not supported: {unknown}={json.dumps(body[unknown])[:80]}", unknown)
    if body.get("encoding_format", "float") not in {"float", "base64"}:
        raise RefusedError("encoding_format is neither float nor base64", "encoding_format")
    given = body.get("input")
    texts = [given] if isinstance(given, str) else given
    if not isinstance(texts, list) or not texts or not all(isinstance(text, str) and text for text in texts):
        raise RefusedError("input is not a text or a list of texts, none of them empty", "input")
    return texts


def embeddings(body: Mapping[str, Any], rows: Sequence[Any], tokens: int) -> dict[str, Any]:
    """The answer with a vector for each text."""
    is_packed = body.get("encoding_format") == "base64"  # what OpenAI's client asks for
    vectors = [np.asarray(row, "<f4") for row in rows]
    found = [base64.b64encode(row.tobytes()).decode() if is_packed else row.tolist() for row in vectors]
    data = [{"object": "embedding", "index": i, "embedding": one} for i, one in enumerate(found)]
    usage = {"prompt_tokens": tokens, "total_tokens": tokens}
    return {"object": "list", "data": data, "model": body.get("model", ""), "usage": usage}
