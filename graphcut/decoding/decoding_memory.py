"""What decoding needs in memory: the tensors of its longest steps, and what parts keep between steps."""

from collections.abc import Sequence
from math import inf, prod

from msgspec.structs import replace

from ..core.errors import UsageError
from ..running.in_process.memory_plan import (
    AvailableMemory,
    MemoryForecast,
    TensorSizes,
    boundary_bytes,
    predict_memory,
    tensor_sizes,
)
from ..running.values import bits_type, shape_of, symbol_sizes
from .decoder import Decoder
from .token_inputs import TokenChunk
from .token_sequences import TokenSequence


def predict_decoding(
    decoder: Decoder, memory: AvailableMemory, longest: tuple[int, int], sequences: int, *, prepacked: bool
) -> MemoryForecast:
    """What decoding a batch of `sequences` needs, and which parts stay loaded meanwhile.

    `longest` are the number of tokens of the longest prompt, and of the longest sequence. See `predict_memory` for
    the other arguments and for errors.
    """
    prompt, total = longest
    if decoder.presents:
        first = TokenChunk(0, ((0,) * min(prompt, decoder.most or prompt),) * sequences)
        last = TokenChunk(total - 1, ((0,),) * sequences)
    else:
        first = last = TokenChunk(0, ((0,) * total,) * sequences)
    cascade, steps = decoder.cascade, [_sizes(decoder, step) for step in (first, last)]
    held, same = kept_bytes(decoder, sequences, total), decoder.kept_constants
    kept = {name for row in decoder.kept.values() for state in row for name in (state.past, state.present)} | same
    # A part holds its own states twice while it runs, as inputs and as outputs. Here they are counted once, among all.
    # So is what it reads or writes of constants.
    pasts = [{state.past for state in decoder.kept.get(i, ())} for i in range(len(cascade.parts))]
    names = [past | same.intersection({*p.reads, *p.writes}) for past, p in zip(pasts, cascade.parts, strict=True)]
    own = [sum(held[name] for name in row) for row in names]
    # Sequences that share no step take turns, and each has its own.
    all_bytes = sum(held[name] for name in same.union(*pasts)) * (1 if decoder.batch_axes else sequences)
    sent = {name: 0 if name in kept else max(step.tensors[name] for step in steps) for name in cascade.tensors}
    activations = [max(0, max(step.activations[i] for step in steps) - past) for i, past in enumerate(own)]
    fed = [max(0, max(step.fed[i] for step in steps) - past) for i, past in enumerate(own)]
    sizes = TensorSizes(sent, activations, fed, is_exact=False)
    memory = replace(memory, base_bytes=memory.base_bytes + all_bytes + boundary_bytes(cascade, sizes))
    return predict_memory(cascade, sizes, memory, is_once=False, once=decoder.once, prepacked=prepacked)


def _sizes(decoder: Decoder, chunk: TokenChunk) -> TensorSizes:
    """The sizes of all tensors in a step."""
    shapes = {name: shape_of(value) for name, value in decoder.feeds(chunk, decoder.constants).items()}
    rows, presents = len(chunk.rows), decoder.presents
    after = {presents[name]: shape for name, shape in _state_shapes(decoder, rows, chunk.total).items()}
    return tensor_sizes(decoder.cascade, {**_state_shapes(decoder, rows, chunk.past), **after, **shapes})


def kept_bytes(decoder: Decoder, sequences: int, length: int) -> dict[str, int]:
    """The bytes of each state after so many tokens, and of what parts keep of constants."""
    tensors, shapes = decoder.cascade.tensors, _state_shapes(decoder, sequences, length)
    fed = {name: shape_of(value) for name, value in decoder.constants.items()}
    dims = {**decoder.cascade.manifest.dims, **symbol_sizes(fed, tensors)}
    states = {name: prod(shape) * bits_type(tensors[name].dtype).itemsize for name, shape in shapes.items()}
    return states | {name: tensors[name].bytes_for(dims)[0] for name in decoder.kept_constants}


def _state_shapes(decoder: Decoder, sequences: int, length: int) -> dict[str, tuple[int, ...]]:
    """The shapes of all states after so many tokens. One whose axis of tokens is not known grows where it is empty."""
    sent, shapes = decoder.begin(sequences)
    begins, axes = {**shapes, **{name: shape_of(value) for name, value in sent.items()}}, decoder.token_axes
    return {
        name: tuple(length if size == 0 and axes[name] in {i, None} else size for i, size in enumerate(shape))
        for name, shape in begins.items()
    }


def longest_of(decoder: Decoder, sequences: Sequence[TokenSequence]) -> tuple[int, int]:
    """The tokens of the longest prompt that fits, and of the longest sequence; of any if they come later."""
    most = inf if decoder.capacity is None else decoder.capacity
    fitting = [one for one in sequences if len(one.unfed) <= most]
    prompt = max((len(one.unfed) for one in fitting), default=most)
    if prompt == inf:
        message = "a memory limit needs to know how long a conversation becomes, and the model sets no limit"
        hint = "say it as context_length in a genai_config.json beside the model, and split again"
        raise UsageError(message, hint=hint)
    return int(prompt), int(min(prompt + max((one.max_tokens for one in fitting), default=1) - 1, most))
