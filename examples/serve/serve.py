"""Serve a cascade over HTTP with Ray Serve: a decoder as OpenAI's API has it, and any model as JSON or npz."""

import argparse
import io
import json
from asyncio import wrap_future
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import ExitStack, closing
from functools import cached_property
from os.path import abspath
from typing import Any

import numpy as np
import ray  # noqa: TID251 - the rule is for the package
from fastapi import FastAPI, Request, Response
from fastapi.responses import JSONResponse, StreamingResponse
from openai_api import Asked, RefusedError, asked, error_of, scores_of
from ray import serve  # noqa: TID251 - likewise
from starlette.concurrency import iterate_in_threadpool
from starlette.exceptions import HTTPException

import graphcut

OPTIONS = {"host": "127.0.0.1", "port": 8000, "most": 16, "via": "threads", "max_context": 0, "cache_bytes": 1 << 30}
NPZ = "application/octet-stream"
ERRORS = (HTTPException, RefusedError, graphcut.GraphcutError, TypeError, ValueError)


async def refused(_: Request, error: Exception) -> Response:
    """An error as OpenAI's clients read it."""
    status, content = error_of(error)
    return JSONResponse(content, status, {"Retry-After": "1"} if status == 429 else {})


app = FastAPI(exception_handlers=dict.fromkeys(ERRORS, refused))


class Answers:
    """The answers to the prompts of a request, which are decoded at the same time."""

    def __init__(self, service: graphcut.DecodingService, tokenizer: graphcut.Tokenizer, ask: Asked) -> None:
        self.tokenizer, self.ask, self.count = tokenizer, ask, 0
        how: dict[str, Any] = {"max_tokens": ask.max_tokens, "sampling": ask.sampling, "top": ask.top}
        self.scored = [0] * len(ask.prompts)
        self.texts = [tokenizer.stream(ids, ask.stop) for ids in ask.prompts]
        with ExitStack() as begun:  # all of them, or none
            self.streams = [
                begun.enter_context(closing(service.stream(ids, stop=tokenizer.stop, **how))) for ids in ask.prompts
            ]
            self.open = begun.pop_all()

    def usage(self) -> dict[str, Any]:
        """How many tokens there were."""
        prompt = sum(map(len, self.ask.prompts))
        cached = {"cached_tokens": sum(stream.sequence.reused for stream in self.streams)}
        counts = {"prompt_tokens": prompt, "completion_tokens": self.count, "total_tokens": prompt + self.count}
        return {**counts, "prompt_tokens_details": cached}

    async def pieces(self, index: int) -> AsyncIterator[tuple[str, int]]:
        """Pieces of text, each with the token with which it became certain."""
        text = self.texts[index]
        async for token in iterate_in_threadpool(iter(self.streams[index])):
            self.count += 1
            yield "" if token in self.tokenizer.stop else text.add(token), token
            if text.is_stopped:
                return

    def choice(self, index: int, piece: str, tokens: list[int], *, is_last: bool) -> dict[str, Any]:
        """The record of a piece of text, and of the tokens that made it certain."""
        stream, is_chat, logprobs = self.streams[index], self.ask.is_chat, None
        end = "length" if stream.end in {"max_tokens", "full"} and not self.texts[index].is_stopped else "stop"
        if self.ask.top is not None:
            begin = self.scored[index]
            self.scored[index] = stop = begin + len(tokens)
            scores = stream.sequence.scores[begin:stop]
            logprobs = scores_of(self.tokenizer, tokens, scores, is_chat=is_chat)
        key = "text" if not is_chat else "delta" if self.ask.is_streamed else "message"
        said = {"role": "assistant", "content": piece} if is_chat else piece
        return {"index": index, "finish_reason": end if is_last else None, "logprobs": logprobs, key: said}

    async def whole(self) -> AsyncIterator[dict[str, Any]]:
        """The choice for each prompt."""
        with self.open:  # closed also where the client hangs up
            for index, text in enumerate(self.texts):
                found = [piece async for piece in self.pieces(index)]
                said = "".join(piece for piece, _ in found) + text.end()
                yield self.choice(index, said, [token for _, token in found], is_last=True)

    async def events(self) -> AsyncIterator[str]:
        """The records of a stream: of each prompt in turn, and at last the usage, if it was asked for."""
        with self.open:
            for index, text in enumerate(self.texts):
                held = list[int]()
                async for piece, token in self.pieces(index):
                    held.append(token)
                    if piece:
                        yield self.event([self.choice(index, piece, held, is_last=False)])
                        held = []
                yield self.event([self.choice(index, text.end(), held, is_last=True)])
        yield (self.event([], usage=self.usage()) if self.ask.has_usage else "") + "data: [DONE]\n\n"

    def event(self, choices: list[Any], **more: object) -> str:
        """A line of a stream."""
        return f"data: {json.dumps({**self.ask.head, 'choices': choices, **more})}\n\n"


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

    def admit(self, prompts: int = 1) -> None:
        """Count a request, and refuse it if enough others are worked on."""
        self.counts["requests_total"] += 1
        if prompts > (most := self.settings["most"]):
            raise RefusedError(f"{prompts} prompts, and at most {most} are worked on", "prompt")
        if (number := self._counted()["open"]) + prompts > most:
            self.counts["refused_total"] += 1
            raise RefusedError(f"{number} requests are being worked on, and no more may be", status=429)

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
        except graphcut.RunError as error:
            # What is missing, unknown or of the wrong type or shape: the pipeline goes on.
            raise RefusedError(f"{error}: {error.hint}", status=500 if self.pipeline.error else 400) from None
        finally:
            self.counts["running"] -= 1
        np.savez(file := io.BytesIO(), **outputs)
        found = {name: value.tolist() for name, value in outputs.items()}
        return Response(file.getvalue(), media_type=NPZ) if is_npz else JSONResponse(found)

    @app.get("/v1/models")
    async def models(self) -> dict[str, Any]:
        """The only model; requests may name any."""
        name, created = self.cascade.root.name, int(self.cascade.path.stat().st_mtime)
        return {"object": "list", "data": [{"id": name, "object": "model", "created": created, "owned_by": "graphcut"}]}

    @app.post("/v1/completions")
    @app.post("/v1/chat/completions")
    async def complete(self, request: Request) -> Response:
        """Continue `prompt`, texts or token ids, or answer `messages`."""
        if self.service is None:
            raise RefusedError("the model has no tokenizer: only /run is served", status=404)
        is_chat = request.url.path.endswith("/chat/completions")
        ask = asked(json.loads(await request.body()), self.tokenizer, is_chat=is_chat)
        self.admit(len(ask.prompts))
        answers = Answers(self.service, self.tokenizer, ask)
        if not ask.is_streamed:
            choices = [choice async for choice in answers.whole()]
            return JSONResponse({**ask.head, "choices": choices, "usage": answers.usage()})
        events = answers.events()
        first = await anext(events)  # an error of the request has its status

        async def all_of() -> AsyncIterator[str]:
            yield first
            try:
                async for event in events:
                    yield event
            except graphcut.GraphcutError as error:
                yield f"data: {json.dumps(error_of(error)[1])}\n\n"

        return StreamingResponse(all_of(), media_type="text/event-stream")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=abspath)
    for name, default in OPTIONS.items():
        parser.add_argument(f"--{name.replace('_', '-')}", type=type(default), default=default)
    given = vars(parser.parse_args())
    ray.init(namespace="serve", include_dashboard=False)  # processes that no answer needs
    serve.start(http_options={"host": given.pop("host"), "port": given.pop("port")})
    # What is beyond --most gets to the server too: it is refused, and does not wait.
    serve.run(serve.deployment(max_ongoing_requests=1000)(Server).bind(given.pop("folder"), given), blocking=True)
