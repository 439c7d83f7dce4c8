"""Serve a cascade over HTTP with Ray Serve: a decoder as OpenAI's API has it, and any model as JSON or npz."""

import argparse
import io
import json
import secrets
import time
from asyncio import wrap_future
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import closing
from dataclasses import replace
from functools import cached_property
from os.path import abspath
from typing import Any

import numpy as np
from fastapi import FastAPI, HTTPException, Request, Response
from fastapi.responses import JSONResponse, StreamingResponse
from ray import serve  # noqa: TID251 - the rule is for the package
from starlette.concurrency import iterate_in_threadpool

import graphcut

OPTIONS = {"host": "127.0.0.1", "port": 8000, "most": 16, "via": "threads", "max_context": 0, "cache_bytes": 1 << 30}
NPZ = "application/octet-stream"
SAMPLING = ("temperature", "top_p", "top_k", "repetition_penalty", "seed")
UNSUPPORTED = ("best_of", "echo", "frequency_penalty", "logit_bias", "logprobs", "presence_penalty", "suffix", "tools")


async def refused(_: Request, error: Exception) -> Response:
    """An error as OpenAI's clients read it. It is of the request, unless a part failed."""
    code = getattr(error, "status_code", 500 if isinstance(error, graphcut.RunError) else 400)
    content = {"error": {"message": getattr(error, "detail", str(error)), "code": code}}
    return JSONResponse(content, code, {"Retry-After": "1"} if code == 429 else {})


app = FastAPI(exception_handlers=dict.fromkeys((HTTPException, graphcut.GraphcutError, TypeError, ValueError), refused))


@serve.ingress(app)
class Server:
    """A cascade. If it has a tokenizer, a service decodes."""

    def __init__(self, folder: str, settings: dict[str, Any]) -> None:
        self.cascade, self.settings, self.counts = graphcut.open_cascade(folder), settings, Counter[str](running=0)
        self.service: Any = None
        if "tokenizer.json" in self.cascade.manifest.text_files:
            self.tokenizer = graphcut.Tokenizer(self.cascade)
            settings["max_context"] = settings["max_context"] or self.tokenizer.max_context
            self.service = graphcut.DecodingService(self.cascade, **settings)

    def check_health(self) -> None:
        """Ray Serve starts a server again for which this raises."""
        if self.service is not None and self.service.error is not None:
            raise self.service.error

    @app.get("/metrics")
    async def metrics(self) -> Response:
        """Counters, as Prometheus reads them."""
        return Response("".join(f"graphcut_{name} {number}\n" for name, number in self._counted().items()))

    def _counted(self) -> dict[str, int]:
        return {**self.counts, "open": self.counts["running"] + len(self.service.streams if self.service else ())}

    def admit(self) -> None:
        """Count a request, and refuse it if enough others are worked on."""
        self.counts["requests_total"] += 1
        if (number := self._counted()["open"]) >= self.settings["most"]:
            self.counts["refused_total"] += 1
            raise HTTPException(429, f"{number} requests are being worked on, and no more may be")

    @cached_property
    def pipeline(self) -> graphcut.Pipeline:
        """For /run: parts are loaded at the first request, those of a decoder once more."""
        return graphcut.Pipeline(self.cascade, via=self.settings["via"], window=self.settings["most"])

    @app.post("/run")
    async def run(self, request: Request) -> Response:
        """The outputs for inputs by name: as npz if they are sent so, else as JSON."""
        raw, is_npz = await request.body(), request.headers.get("content-type") == NPZ
        given, types = dict(np.load(io.BytesIO(raw)) if is_npz else json.loads(raw)), self.cascade.tensors
        self.admit()
        self.counts["running"] += 1
        try:
            feeds = {n: np.asarray(value, types[n].dtype if n in types else None) for n, value in given.items()}
            outputs = await wrap_future(self.pipeline.submit(feeds))
        finally:
            self.counts["running"] -= 1
        np.savez(file := io.BytesIO(), **outputs)
        found = {name: value.tolist() for name, value in outputs.items()}
        return Response(file.getvalue(), media_type=NPZ) if is_npz else JSONResponse(found)

    @app.post("/v1/completions")
    @app.post("/v1/chat/completions")
    async def complete(self, request: Request) -> Response:
        """Continue `prompt`, a text or token ids, or answer `messages`."""
        body = dict(await request.json())
        if wrong := [name for name in UNSUPPORTED if body.get(name)] + ["n"] * (body.get("n", 1) != 1):
            raise HTTPException(400, f"not supported: {', '.join(wrong)}")
        kind, key, prompt = "text_completion", "text", body.get("prompt", ())
        if is_chat := request.url.path.endswith("/chat/completions"):
            kind, key = ("chat.completion.chunk", "delta") if body.get("stream") else ("chat.completion", "message")
            prompt = self.tokenizer.chat(body.get("messages", ()))
        ids = self.tokenizer.encode(prompt) if isinstance(prompt, str) else list(prompt)
        self.admit()
        how = {"seed": secrets.randbits(32)} | {name: body[name] for name in SAMPLING if body.get(name) is not None}
        most, sampling = body.get("max_completion_tokens") or body.get("max_tokens") or 256, self.tokenizer.sampling
        tokens = self.service.stream(ids, max_tokens=most, stop=self.tokenizer.stop, sampling=replace(sampling, **how))
        stop, count = body.get("stop") or [], Counter(prompt_tokens=len(ids), completion_tokens=0)
        text = self.tokenizer.stream(ids, [stop] if isinstance(stop, str) else stop)
        head = {"id": secrets.token_hex(8), "object": kind, "created": int(time.time()), "model": body.get("model", "")}

        async def pieces() -> AsyncIterator[str]:
            with closing(tokens):  # also where the client hangs up
                async for token in iterate_in_threadpool(iter(tokens)):
                    count["completion_tokens"] += 1
                    yield "" if token in self.tokenizer.stop else text.add(token)
                    if text.is_stopped:
                        return
                yield text.end()

        def record(piece: str, *, is_last: bool) -> dict[str, Any]:
            end = "length" if tokens.end in {"max_tokens", "full"} and not text.is_stopped else "stop"
            said = {"role": "assistant", "content": piece} if is_chat else piece
            usage = {"total_tokens": count.total(), "prompt_tokens_details": {"cached_tokens": tokens.sequence.reused}}
            choice = {"index": 0, "finish_reason": end if is_last else None, "logprobs": None, key: said}
            return {**head, "choices": [choice], **({"usage": {**count, **usage}} if is_last else {})}

        async def events() -> AsyncIterator[str]:
            async for piece in pieces():
                yield f"data: {json.dumps(record(piece, is_last=False))}\n\n" if piece else ""
            yield f"data: {json.dumps(record('', is_last=True))}\n\ndata: [DONE]\n\n"

        if body.get("stream"):
            return StreamingResponse(events(), media_type="text/event-stream")
        return JSONResponse(record("".join([piece async for piece in pieces()]), is_last=True))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=abspath)
    for name, default in OPTIONS.items():
        parser.add_argument(f"--{name.replace('_', '-')}", type=type(default), default=default)
    given = vars(parser.parse_args())
    serve.start(http_options={"host": given.pop("host"), "port": given.pop("port")})
    # What is beyond --most gets to the server too: it is refused, and does not wait.
    serve.run(serve.deployment(max_ongoing_requests=1000)(Server).bind(given.pop("folder"), given), blocking=True)
