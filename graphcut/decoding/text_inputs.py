"""Texts as the inputs of a model that does not generate: one that makes vectors or scores of them."""

from collections.abc import Sequence

import numpy as np

from ..core.errors import UsageError
from ..core.manifest import CascadeLike, open_cascade
from ..running.values import Array
from .token_inputs import TokenChunk, input_array, role_of
from .tokenizer import Tokenizer


def text_inputs(cascade: CascadeLike, texts: Sequence[str]) -> dict[str, Array]:
    """The inputs for texts, a row each; shorter ones are padded at their end, which the mask says.

    Texts are cut off where `sentence_bert_config.json` says.

    Raises:
        UsageError: there are no texts, the cascade has no tokenizer, an input that must be fed is none of tokens, or
            several texts don't fit into one batch.
        RecordError: a file of the tokenizer can't be understood.
    """
    cascade = open_cascade(cascade, check_files=False)
    tokenizer, tensors = Tokenizer(cascade), {name: cascade.tensors[name] for name in cascade.needed}
    known = ((name, role_of(tensor)) for name, tensor in tensors.items())
    roles = {name: role for name, role in known if role in {"ids", "mask", "types", "positions"}}
    if other := next((name for name in tensors if name not in roles), None):
        raise UsageError(f"{other!r} can't be made of a text", hint="feed arrays with `run(...)`")
    rows = [tokenizer.encode(text, most=tokenizer.most) for text in texts]
    longest, batch = max(map(len, rows), default=0), {(t.shape or (None,))[0] for t in tensors.values()}
    is_padded = any(len(row) < longest for row in rows)
    if not rows or any(isinstance(size, int) and size != len(rows) for size in batch) or not longest:
        raise UsageError(f"{len(rows)} texts don't fit the batch of the model", hint="give as many as it takes")
    if is_padded and "mask" not in roles.values():
        raise UsageError("texts of other lengths need a mask, and the model reads none", hint="give them one by one")
    missing = tuple(longest - len(row) for row in rows) if is_padded else ()
    padded = tuple((*row, *[0] * (longest - len(row))) for row in rows)
    chunks = {role: TokenChunk(0, padded, missing if role == "mask" else ()) for role in roles.values()}
    made = {name: input_array(role, tensors[name], chunks[role]) for name, role in roles.items()}
    return {n: np.broadcast_to(one, (len(rows), *one.shape[1:])) if one.ndim > 1 else one for n, one in made.items()}
