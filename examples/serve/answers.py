"""Answers in the form of OpenAI's API, as a whole or piece by piece, while they are decoded."""

import json
from collections.abc import AsyncIterator, Sequence
from contextlib import ExitStack, closing
from typing import Any

from openai_api import Asked
from starlette.concurrency import iterate_in_threadpool

import graphcut


class Answers:
    """The answers to the prompts of a request, which are decoded at the same time."""

    def __init__(self, service: graphcut.DecodingService, tokenizer: graphcut.Tokenizer, ask: Asked) -> None:
        self.tokenizer, self.ask, self.count = tokenizer, ask, 0
        how: dict[str, Any] = {"max_tokens": ask.max_tokens, "sampling": ask.sampling, "top": ask.top}
        self.scored = [0] * len(ask.prompts)
        self.texts = [tokenizer.stream(ids, ask.stop) for ids in ask.prompts]
        names = [f"prompt {i}" for i in range(len(ask.prompts))] if len(ask.prompts) > 1 else ["the prompt"]
        with ExitStack() as begun:  # all of them, or none
            asks = zip(ask.prompts, names, strict=True)
            streams = (service.stream(ids, stop=tokenizer.stop, name=name, **how) for ids, name in asks)
            self.streams = [begun.enter_context(closing(stream)) for stream in streams]
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


def scores_of(tokenizer: graphcut.Tokenizer, tokens: Sequence[int], scores: Sequence[Any], *, is_chat: bool) -> Any:  # noqa: ANN401
    """The log probabilities of tokens, as a completion or a chat has them."""
    texts = [tokenizer.decode([token]) for token in tokens]
    tops = [[(tokenizer.decode([token]), logprob) for token, logprob in found.top] for found in scores]
    if not is_chat:
        logprobs, likely = [found.logprob for found in scores], [dict(reversed(top)) for top in tops]
        offsets = [sum(map(len, texts[:i])) for i in range(len(texts))]
        return {"tokens": texts, "token_logprobs": logprobs, "top_logprobs": likely, "text_offset": offsets}

    def entry(text: str, logprob: float) -> dict[str, Any]:
        return {"token": text, "logprob": logprob, "bytes": list(text.encode())}

    rows = zip(texts, scores, tops, strict=True)
    return {"content": [{**entry(t, s.logprob), "top_logprobs": [entry(*one) for one in top]} for t, s, top in rows]}
