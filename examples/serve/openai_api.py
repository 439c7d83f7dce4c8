"""Requests and answers in the form of OpenAI's API: what is supported, and what is refused with a reason."""

import json
import secrets
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any
from zipfile import BadZipFile

import graphcut

#: fields that would change the answer, and the values with which they don't.
NEUTRAL: Mapping[str, Sequence[Any]] = {
    "audio": (),
    "best_of": (1,),
    "echo": (False,),
    "frequency_penalty": (0,),
    "function_call": ("none", "auto"),  # without functions
    "functions": ([],),
    "logit_bias": ({},),
    "modalities": (["text"],),
    "n": (1,),
    "prediction": (),
    "presence_penalty": (0,),
    "reasoning_effort": ("none",),
    "response_format": ({"type": "text"},),
    "suffix": ("",),
    "tool_choice": ("none", "auto"),
    "tools": ([],),
    "verbosity": (),
    "web_search_options": (),
}
#: fields that don't.
IGNORED = {
    "metadata",
    "model",
    "parallel_tool_calls",
    "prompt_cache_key",
    "safety_identifier",
    "service_tier",
    "store",
    "user",
}
NUMBERS = {"temperature": float, "top_p": float, "repetition_penalty": float, "top_k": int, "seed": int}
MOST_TOP = 20  #: the maximum number of likely tokens with their log probabilities.


class RefusedError(Exception):
    """A request with an answer of another status; `param` is the field that is to blame."""

    def __init__(self, message: str, param: str | None = None, status: int = 400) -> None:
        super().__init__(message)
        self.param, self.status = param, status


#: what reading a request raises where the request is at fault: numbers too large, files cut off, lists too deep.
BAD_INPUT = (graphcut.UsageError, TypeError, ValueError, OverflowError, EOFError, RecursionError, BadZipFile)


def error_of(error: Exception) -> tuple[int, dict[str, Any]]:
    """The status and the body for an error. It is of the request, unless a part failed."""
    status = getattr(error, "status", None) or getattr(error, "status_code", None)
    status = status or (400 if isinstance(error, BAD_INPUT) else 500)
    kinds = {404: "not_found_error", 429: "rate_limit_error", 500: "server_error"}
    message = str(getattr(error, "detail", error))
    content = {"message": message, "type": kinds.get(status, "invalid_request_error")}
    return status, {"error": {**content, "param": getattr(error, "param", None), "code": None}}


@contextmanager
def blaming(field: str) -> Iterator[None]:
    """Refuse what graphcut refuses meanwhile: this field is to blame."""
    try:
        yield
    except graphcut.UsageError as error:
        raise RefusedError(str(error), field) from None


def body_of(raw: bytes) -> dict[str, Any]:
    """The JSON object that is the body of a request. Raises RefusedError."""
    try:
        body = json.loads(text := raw.decode())
        if "\\u" in text:
            json.dumps(body, ensure_ascii=False).encode()
    except UnicodeEncodeError:
        raise RefusedError("the body has half of a surrogate pair, which is no character") from None
    except (ValueError, RecursionError) as error:
        raise RefusedError(f"the body can't be read as JSON: {error}") from None
    if not isinstance(body, dict):
        raise RefusedError("the body is not a JSON object")
    return body


@dataclass(frozen=True)
class Asked:
    """What a request asks for."""

    prompts: list[list[int]]
    max_tokens: int
    sampling: graphcut.Sampling
    stop: list[str]
    top: int | None  #: the number of likely tokens with their log probabilities; None for no scores at all.
    is_chat: bool
    is_streamed: bool
    has_usage: bool  #: a stream ends with how many tokens were used.
    head: dict[str, Any]  #: what each record of the answer begins with.


def asked(given: Mapping[str, Any], tokenizer: graphcut.Tokenizer, *, is_chat: bool) -> Asked:
    """What the body of a request asks for. Raises RefusedError or UsageError."""
    body = {name: value for name, value in given.items() if value is not None}
    own = {"messages", "max_completion_tokens", "top_logprobs"} if is_chat else {"prompt"}
    known = {"max_tokens", "logprobs", "stop", "stream", "stream_options", *own, *NUMBERS, *IGNORED}
    for name, value in body.items():
        if name in NEUTRAL and any(value == neutral for neutral in NEUTRAL[name]):
            continue
        if name not in known:
            raise RefusedError(f"not supported: {name}={json.dumps(value)[:80]}", name)
    kind = "chat.completion" if is_chat else "text_completion"
    is_streamed, options = typed(body, "stream", bool, default=False), typed(body, "stream_options", dict, default={})
    if is_chat and is_streamed:
        kind += ".chunk"
    how = {name: typed(body, name, kind_of) for name, kind_of in NUMBERS.items() if name in body}
    sampling = replace(tokenizer.sampling, seed=secrets.randbits(32))
    for name, value in how.items():
        with blaming(name):
            sampling = replace(sampling, **{name: value % 2**64 if name == "seed" else value})
    lengths = {name: typed(body, name, int) for name in ("max_completion_tokens", "max_tokens") if name in body}
    if wrong := next((name for name, length in lengths.items() if length < 1), None):
        raise RefusedError(f"can't generate {lengths[wrong]} tokens", wrong)
    stop = body.get("stop", [])
    stop = [stop] if isinstance(stop, str) else stop
    if not isinstance(stop, list) or not all(isinstance(text, str) and text for text in stop):
        raise RefusedError("stop is not a text or a list of texts, none of them empty", "stop")
    model = typed(body, "model", str, default="")
    with blaming("messages"):
        prompts = [tokenizer.chat(messages_of(body))] if is_chat else prompts_of(body, tokenizer)
    return Asked(
        prompts,
        next(iter(lengths.values()), 256),
        sampling,
        stop,
        top_of(body, is_chat=is_chat),
        is_chat,
        is_streamed,
        bool(options.get("include_usage")),
        {"id": secrets.token_hex(8), "object": kind, "created": int(time.time()), "model": model},
    )


def typed(body: Mapping[str, Any], name: str, kind: type, default: Any = None) -> Any:  # noqa: ANN401 - of that type
    """The value of a field, if it is of this type."""
    value = body.get(name, default)
    is_right = isinstance(value, (int, float) if kind is float else kind) and isinstance(value, bool) == (kind is bool)
    if not is_right:
        raise RefusedError(f"{name} is {json.dumps(value)[:80]}, not of the type {kind.__name__}", name)
    return value


def top_of(body: Mapping[str, Any], *, is_chat: bool) -> int | None:
    """The number of likely tokens whose log probabilities are asked for, besides that of the token itself."""
    name = "top_logprobs" if is_chat else "logprobs"
    if is_chat and not typed(body, "logprobs", bool, default=False):
        if body.get(name):
            raise RefusedError("top_logprobs needs logprobs to be true", name)
        return None
    if name not in body:
        return 0 if is_chat else None
    if not 0 <= (top := typed(body, name, int)) <= MOST_TOP:
        raise RefusedError(f"{name} is {top}, not 0 to {MOST_TOP}", name)
    return int(top)


def prompts_of(body: Mapping[str, Any], tokenizer: graphcut.Tokenizer) -> list[list[int]]:
    """Texts or token ids: one prompt, or a list of them."""
    given = body.get("prompt")
    several = given if isinstance(given, list) and given and not isinstance(given[0], int) else [given]
    prompts: list[Any] = [tokenizer.encode(one) if isinstance(one, str) else one for one in several]
    if not all(isinstance(one, list) and all(type(token) is int for token in one) for one in prompts):
        raise RefusedError("prompt is not a text, a list of token ids, or a list of these", "prompt")
    return prompts


def messages_of(body: Mapping[str, Any]) -> list[dict[str, str]]:
    """The messages, with contents that are texts."""
    messages = typed(body, "messages", list, default=[])
    if not messages:
        raise RefusedError("messages has no message", "messages")
    return [message_of(message, f"messages[{i}]") for i, message in enumerate(messages)]


def message_of(message: object, place: str) -> dict[str, str]:
    """One of the messages; `place` says which."""
    known = {"role", "content", "name"}
    said = {n: value for n, value in message.items() if value is not None} if isinstance(message, dict) else {}
    if unknown := next((name for name in said if name not in known), None):
        raise RefusedError(f"not supported: {place}.{unknown}", "messages")
    if said.get("role") not in ("system", "developer", "user", "assistant"):
        raise RefusedError(f"{place}.role is not system, developer, user or assistant", "messages")
    content = said.get("content")
    if isinstance(content, list) and all(isinstance(piece, dict) and piece.get("type") == "text" for piece in content):
        texts = [piece.get("text") for piece in content]
        content = "".join(texts) if all(isinstance(text, str) for text in texts) else None
    if not isinstance(content, str):
        raise RefusedError(f"{place}.content is not a text", "messages")
    return {**said, "content": content, "role": "system" if said["role"] == "developer" else said["role"]}
