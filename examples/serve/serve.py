"""Serve a cascade over HTTP with Ray Serve: as OpenAI's API has it, and any model as JSON or npz."""

import argparse
import io
import json
from asyncio import wrap_future
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import closing
from functools import cached_property
from os.path import abspath
from typing import Any

import numpy as np
import ray  # noqa: TID251 - the rule is for the package
from answers import Answers
from fastapi import FastAPI, Request, Response
from fastapi.responses import JSONResponse, StreamingResponse
from openai_api import BAD_INPUT, RefusedError, asked, blaming, body_of, error_of
from ray import serve  # noqa: TID251 - likewise
from speech_and_vectors import embeddings, silence, texts_to_embed, transcription, vector_of
from starlette.concurrency import iterate_in_threadpool
from starlette.exceptions import HTTPException

import graphcut

OPTIONS = {"host": "127.0.0.1", "port": 8000, "most": 16, "via": "threads", "max_context": 0, "cache_bytes": 1 << 30}
NPZ = "application/octet-stream"
MOST_SAID = 448  #: the maximum number of tokens of a transcription; that of the model may be less.
ERRORS = (HTTPException, RefusedError, graphcut.GraphcutError, *BAD_INPUT)


async def refused(_: Request, error: Exception) -> Response:
    """An error as OpenAI's clients read it."""
    status, content = error_of(error)
    return JSONResponse(content, status, {"Retry-After": "1"} if status == 429 else {})


def array_of(name: str, value: object, dtype: str | None) -> Any:  # noqa: ANN401 - an array
    """The value of an input of /run."""
    try:
        return np.asarray(value, dtype)
    except (TypeError, ValueError, OverflowError) as error:
        raise RefusedError(f"input {name!r} is not an array of {dtype or 'one type'}: {error}", name) from None


app = FastAPI(exception_handlers=dict.fromkeys(ERRORS, refused))


@serve.ingress(app)
class Server:
    """A cascade. If it has a tokenizer, a service decodes."""

    def __init__(self, folder: str, settings: dict[str, Any]) -> None:
        self.cascade, self.settings, self.counts = graphcut.open_cascade(folder), settings, Counter[str](running=0)
        self.service: Any = None
        self.vector, self.heard = vector_of(self.cascade), silence(self.cascade)
        if "tokenizer.json" in self.cascade.manifest.text_files:
            self.tokenizer = graphcut.Tokenizer(self.cascade)
            settings["max_context"] = settings["max_context"] or self.tokenizer.max_context
            if self.vector is None:
                self.service = graphcut.DecodingService(self.cascade, inputs=self.heard, **settings)

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
        given, types = dict(np.load(io.BytesIO(raw)) if is_npz else body_of(raw)), self.cascade.tensors
        outputs = await self.outputs_of(
            {n: array_of(n, value, types[n].dtype if n in types else None) for n, value in given.items()}
        )
        np.savez(file := io.BytesIO(), **outputs)
        found = {name: value.tolist() for name, value in outputs.items()}
        return Response(file.getvalue(), media_type=NPZ) if is_npz else JSONResponse(found)

    async def outputs_of(self, feeds: dict[str, Any]) -> Any:  # noqa: ANN401 - arrays by name
        """The outputs for inputs by name."""
        self.admit()
        self.counts["running"] += 1
        try:
            return await wrap_future(self.pipeline.submit(feeds))
        except graphcut.RunError as error:
            # What is missing, unknown or of the wrong type or shape: the pipeline goes on.
            raise RefusedError(f"{error}: {error.hint}", status=500 if self.pipeline.error else 400) from None
        finally:
            self.counts["running"] -= 1

    @app.post("/v1/embeddings")
    async def embed(self, request: Request) -> dict[str, Any]:
        """A vector for each text."""
        if self.vector is None or "tokenizer.json" not in self.cascade.manifest.text_files:
            raise RefusedError("the model makes no vectors of texts", status=404)
        texts = texts_to_embed(body := body_of(await request.body()))
        with blaming("input"):
            feeds = graphcut.text_inputs(self.cascade, texts)
        rows = (await self.outputs_of(feeds))[self.vector]
        return embeddings(body, rows, sum(len(self.tokenizer.encode(text)) for text in texts))

    @app.post("/v1/audio/transcriptions")
    async def transcribe(self, request: Request) -> Response:
        """What is said in a WAV file."""
        if self.service is None or not self.heard:
            raise RefusedError("the model does not hear", status=404)
        kind, tokenizer = request.headers.get("content-type", ""), self.tokenizer
        asks = transcription(await request.body(), kind, self.cascade, tokenizer.sampling)
        self.admit()
        how: dict[str, Any] = {"max_tokens": MOST_SAID, "stop": tokenizer.stop, "sampling": asks.sampling}
        with closing(self.service.stream([], inputs=asks.inputs, **how)) as stream:
            tokens = [token async for token in iterate_in_threadpool(iter(stream))]
        text = tokenizer.decode([token for token in tokens if token not in tokenizer.stop]).strip()
        return Response(text, media_type="text/plain") if asks.is_plain else JSONResponse({"text": text})

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
        ask = asked(body_of(await request.body()), self.tokenizer, is_chat=is_chat)
        self.admit(len(ask.prompts))
        with blaming("messages" if is_chat else "prompt"):
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
    # Ray Serve would start the server on any machine of the cluster; the folder is on this one.
    here = {"label_selector": {"ray.io/node-id": ray.get_runtime_context().get_node_id()}}
    # What is beyond --most gets to the server too: it is refused, and does not wait.
    deployment = serve.deployment(max_ongoing_requests=1000, ray_actor_options=here)(Server)
    serve.run(deployment.bind(given.pop("folder"), given), blocking=True)
