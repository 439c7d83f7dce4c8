"""The files beside a language model that say how text becomes tokens, and the check that they belong to it."""

from collections.abc import Iterable
from pathlib import Path
from typing import Any, TypeVar, get_args

import msgspec

from ...core.errors import RecordError, UsageError
from ...core.manifest import State, TextFile
from ...core.states import LOGITS
from ...core.wiring import Tensor

_Content = TypeVar("_Content")


class _Added(msgspec.Struct):
    id: int


class _Vocabulary(msgspec.Struct):
    vocab: dict[str, int] | list[Any]


class _TokenizerFile(msgspec.Struct):
    """What counts of a tokenizer.json of Hugging Face's tokenizers."""

    model: _Vocabulary
    added_tokens: list[_Added] = []


def text_files(folder: Path) -> tuple[TextFile, ...]:
    """The names of such files in a folder."""
    return tuple(name for name in get_args(TextFile) if (folder / name).is_file())


def check_tokenizer(path: Path, states: Iterable[State], outputs: Iterable[Tensor]) -> None:
    """Refuse a tokenizer with tokens that the decoder with these states and outputs has no logits for (UsageError).

    One with fewer tokens than logits is usual: models are padded. A model without states may be no decoder, and one
    whose number of logits is not fixed may have any tokenizer.
    """
    shapes = [tensor.shape for tensor in outputs if LOGITS.search(tensor.name.lower()) and tensor.shape]
    if not any(True for _ in states) or len(shapes) != 1 or not isinstance(shapes[0][-1], int):
        return
    content = read_json(path, _TokenizerFile)
    vocab = content.model.vocab
    ids = range(len(vocab)) if isinstance(vocab, list) else vocab.values()
    largest = max((*ids, *(token.id for token in content.added_tokens)), default=-1)
    if largest >= shapes[0][-1]:
        raise UsageError(
            f"{path} has token ids up to {largest:,}, and the model scores {shapes[0][-1]:,} tokens",
            hint="put the tokenizer of this model there, or move this one away",
        )


def read_json(path: Path, kind: type[_Content]) -> _Content:
    """The content of a JSON file.

    Raises:
        RecordError: it can't be read, or is of another kind.
    """
    try:
        return msgspec.json.decode(path.read_bytes(), type=kind)
    except (OSError, msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        why = error.strerror if isinstance(error, OSError) else error
        raise RecordError(f"{path} can't be read: {why}", hint="take the file of the model") from None
