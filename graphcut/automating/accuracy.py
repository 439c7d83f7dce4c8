"""What a conversion costs in accuracy: outputs of two models on the same inputs, and the perplexity of a text."""

import re
from collections.abc import Sequence
from math import exp, inf
from typing import Final, NamedTuple

import msgspec
import numpy as np

from ..core.errors import RecordError, UsageError
from ..core.product import Product
from ..core.states import LOGITS
from ..core.tensors import NON_NUMPY_TYPES
from ..costs.facts import states_of_model
from ..decoding.token_inputs import TokenChunk, input_array, role_of
from ..decoding.tokenizer import package
from ..loading.model import Model
from ..running.stage import SessionConfig
from ..running.values import Array, Feeds, is_numeric_tensor, to_array
from ..verifying.differences import error_between
from ..verifying.numerical import run_whole

Outputs = list[dict[str, Array]]

_LIMIT: Final = re.compile(r"(snr|max|mean|top1|perplexity)([<>])=?(\d+(?:\.\d*)?(?:[eE][-+]?\d+)?)")


class Figures(Product, msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How far outputs are from those of another model over all inputs: each figure that of the worst output."""

    snr: float | None  #: 10 log10 of the squares of the outputs over those of the differences; null if not finite.
    max: float | None  #: the largest difference; null if a shape differs, or only one of two numbers is finite.
    mean: float | None  #: the mean difference, likewise.
    top1: float | None = None  #: how often the largest logit is the same one; null without an output called logits.
    perplexity: float | None = None  #: of the text; null if none was given.


def unmet(limits: Sequence[str], figures: Figures | None) -> str:
    """The first of limits like `snr>30` that figures break, if any. Without figures only their form is checked."""
    for limit in limits:
        if (found := _LIMIT.fullmatch(limit.replace(" ", ""))) is None:
            message = f"the limit {limit!r}: expected snr, max, mean, top1 or perplexity, < or >, and a number"
            raise UsageError(message, hint="for example 'snr>30'")
        value = getattr(figures, found[1], None)
        if figures is not None and value is None:
            needs = "a text" if found[1] == "perplexity" else "an output called logits"
            raise UsageError(f"the limit {limit!r}: {found[1]} needs {needs}", hint="limit snr, max or mean instead")
        if value is not None and not (value >= float(found[3]) if found[2] == ">" else value <= float(found[3])):
            return limit
    return ""


def compared_outputs(model: Model) -> list[str]:
    """The outputs that figures are about: tensors of numbers; of a decoder without its states, if it has others."""
    kinds, states = model.tensors, {state.present for state in states_of_model(model)}
    plain = [n for n in model.graph.writes if is_numeric_tensor(kinds[n]) and kinds[n].dtype not in NON_NUMPY_TYPES]
    return [name for name in plain if name not in states] or plain


def outputs_of(model: Model, inputs: Sequence[Feeds], names: Sequence[str]) -> Outputs:
    """Outputs of a model for each of the inputs, with ONNX Runtime's graph optimizations on."""
    as_used = SessionConfig(threads=1, is_checked=False)  # graph optimizations on
    runs = (run_whole(model, feeds, names, config=as_used) for feeds in inputs if names)
    return [{name: to_array(value, model.tensors[name]) for name, value in run.items()} for run in runs]


def figures_of(before: Outputs, after: Outputs, perplexity: float | None = None) -> Figures:
    """The figures of the outputs `after` against those `before`, for the same inputs."""
    pairs = {name: [(a[name], b[name]) for a, b in zip(before, after, strict=True)] for name in before[0]}
    snr, largest, mean = zip(*map(_difference, pairs.values()), strict=True)
    top1 = [_agreement(found) for name, found in pairs.items() if LOGITS.search(name.lower())]
    return Figures(snr=min(snr), max=max(largest), mean=max(mean), top1=min(top1, default=None), perplexity=perplexity)


def _difference(pairs: Sequence[tuple[Array, Array]]) -> tuple[float, float, float]:
    """SNR, largest and mean difference of an output."""
    error = error_between([a for a, _ in pairs], [b for _, b in pairs])
    if error.broken:
        return -inf, inf, inf
    gaps = np.concatenate([np.abs(a[a != b].astype(np.float64) - b[a != b]) for a, b in pairs])
    gaps = gaps[np.isfinite(gaps)]  # two NaN are no difference
    return error.db, float(gaps.max(initial=0)), float(gaps.sum() / (sum(a.size for a, _ in pairs) or 1))


def _agreement(pairs: Sequence[tuple[Array, Array]]) -> float:
    same = [a.argmax(-1) == b.argmax(-1) if a.shape == b.shape else np.zeros(1) for a, b in pairs if a.size]
    return float(np.concatenate([found.ravel() for found in same]).mean())


class Text(NamedTuple):
    """The first tokens of a text, and what a decoder is fed to predict each from those before it."""

    ids: Array
    feeds: Feeds
    logits: str  #: the output with their scores.


def read_text(text: str, model: Model) -> Text:
    """A text as tokens of a model, by the tokenizer beside it.

    Raises:
        UsageError: a package is missing, or the model is no decoder.
        RecordError: the tokenizer can't be read.
    """
    file, tokenizers = model.path.parent / "tokenizer.json", package("tokenizers")
    try:
        found = tokenizers.Tokenizer.from_file(str(file)).encode(text).ids[:512]
    except Exception as error:  # the package raises nothing more specific
        raise RecordError(f"{file} can't be read: {error}", hint="put the model's tokenizer there") from error
    chunk, states = TokenChunk(0, (tuple(found),)), {state.past: state.start for state in states_of_model(model)}
    logits, feeds = [name for name in model.graph.writes if LOGITS.search(name.lower())], dict[str, Array]()
    for name in (name for name in model.graph.reads if name not in model.graph.weights):
        tensor, start = model.tensors[name], states.get(name)
        if role := role_of(tensor):
            feeds[name] = input_array(role, tensor, chunk)
        elif start is not None:
            feeds[name] = np.zeros([size if isinstance(size, int) else 1 for size in start], tensor.dtype)
        else:
            message = f"perplexity needs a decoder: the input {name!r} is neither a state nor known to be of tokens"
            raise UsageError(message, hint="leave out `text`")
    if len(found) < 2 or len(logits) != 1:
        raise UsageError("perplexity needs two tokens or more and an output called logits", hint="leave out `text`")
    return Text(np.array(found), feeds, logits[0])


def perplexity(model: Model, text: Text) -> float:
    """E to the mean negative log-likelihood of the tokens of a text."""
    (outputs,) = outputs_of(model, [text.feeds], [text.logits])
    scores = outputs[text.logits].astype(np.float64)[0, :-1]
    if len(scores) != len(text.ids) - 1:
        raise UsageError(f"{model.title} has logits of the last token alone", hint="leave out `text`")
    scores -= scores.max(-1, keepdims=True)
    return exp(float((np.log(np.exp(scores).sum(-1)) - scores[np.arange(len(scores)), text.ids[1:]]).mean()))
