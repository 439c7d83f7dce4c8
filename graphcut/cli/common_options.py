"""Types and groups of options that several commands have, and what the values of options mean."""

from __future__ import annotations

import csv
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal, cast

from ..core.arguments import Optimization
from ..core.errors import CascadeError, UsageError
from .output import say

if TYPE_CHECKING:
    from .. import DecoderProfile, Model, SessionConfig
    from ..core.manifest import Cascade

Texts = list[str] | None  #: the values of an option that may be repeated.
Place = Path | None  #: a file or a folder, if it is named.
Places = list[Path] | None  #: files or folders, as above.
TRACES = (".json", ".svg", ".txt")  #: the ends of names of files for --trace; `-` is stdout.
ProfileText = Annotated[str | None, {"autocompletion": lambda: ["prefill", "decode"]}]
Optimized = Literal["none", "all"]  #: which graph optimizations ONNX Runtime makes, where some would prove nothing.


def _providers() -> list[str]:
    import onnxruntime

    return list(onnxruntime.get_available_providers())


@dataclass(frozen=True)
class SessionOptions:
    """How ONNX Runtime runs the parts."""

    provider: Annotated[str | None, {"autocompletion": _providers}] = None
    allow_fallback: bool = False
    optimize: Optimization = "all"
    insecure: bool = False

    def session_config(self) -> SessionConfig:
        from .. import SessionConfig

        provider, options = parsed_provider(self.provider or "")
        return SessionConfig(**{**asdict(self), "provider": provider or None, "options": options})


def parsed_provider(text: str) -> tuple[str, dict[str, str]]:
    """The name of a provider, or empty, and its options, from a text like `NAME,KEY=VALUE`; a UsageError if wrong."""
    words = names_in([text])
    names, options = [word for word in words if "=" not in word], [word for word in words if "=" in word]
    if len(names) > 1 or any(one.startswith("=") for one in options):
        raise UsageError(f"{text}: expected NAME,KEY=VALUE,...", hint="for example CUDAExecutionProvider,device_id=0")
    return next(iter(names), ""), dict(one.split("=", 1) for one in options)


@dataclass(frozen=True)
class OriginalOptions:
    """Options of the model that was cut, and of inputs that are generated for it."""

    model: Place = None
    dims: Texts = None
    seed: int = 0

    def load(self, cascade: Cascade) -> Model:
        """The model that `cascade` was cut from, with the sizes of the manifest."""
        from .. import find_source, load

        model = load(self.model or find_source(cascade), dims={**cascade.manifest.given_dims, **parsed_dims(self.dims)})
        if model.digest != cascade.manifest.source.graph:
            hint = "name the model that was cut with --model FILE, or split again"
            raise CascadeError(f"{cascade.path} was not cut from {model.path}: the graphs differ", hint=hint)
        return model


def load(path: Path, dims: Sequence[str] | None, states: Sequence[str] | None = None) -> Model:
    from .. import load

    return load(path, dims=parsed_dims(dims), states=parsed_states(states))


def parsed_states(texts: Sequence[str] | None) -> dict[str, str]:
    """Outputs by the inputs they become, from texts like `past=present`, each for another input; else a UsageError."""
    pairs: dict[str, str] = {}
    for text in texts or ():
        past, found, present = text.partition("=")
        if not (past and found and present):
            raise UsageError(f"--state {text}: expected INPUT=OUTPUT", hint="for example --state past=present")
        if past in pairs:
            raise UsageError(f"--state names the input {past!r} twice", hint="only one output can become it")
        pairs[past] = present
    return pairs


def output_names(text: str | None) -> tuple[str, ...] | None:
    """The names in the value of --outputs; None for all."""
    names = None if text is None else tuple(name.strip() for name in text.split(",") if name.strip())
    if names == ():
        raise UsageError(f"--outputs {text}: expected names of outputs", hint="for example --outputs logits")
    return names


def names_in(texts: Sequence[str]) -> tuple[str, ...]:
    """Names, repeated or comma-separated; a name with a comma stands in double quotes. Empty ones are left out."""
    return tuple(filter(None, listed_names(texts)))


def listed_names(texts: Sequence[str]) -> tuple[str, ...]:
    """The same with the empty ones, for names whose order counts."""
    return tuple(name.strip() for row in csv.reader(texts, skipinitialspace=True) for name in row)


def parsed_dims(texts: Sequence[str] | None) -> dict[str, int]:
    """Sizes by name, from texts like `seq=128`."""
    return dict(numbered("--dim", text, "NAME=N with N >= 0", "seq=128") for text in texts or ())


def parsed_profile(text: str | None) -> tuple[DecoderProfile | None, int | None]:
    """The kind of work in the value of --profile, and the number of tokens that it names, if any."""
    if text is None:
        return None, None
    kind, colon, number = text.partition(":")
    if kind not in {"prefill", "decode"} or (colon and not (number.isdecimal() and int(number))):
        message = f"--profile {text}: expected prefill or decode, and a number of tokens >= 1"
        raise UsageError(message, hint="for example --profile decode:512")
    return cast("DecoderProfile", kind), int(number) if colon else None


def numbered(option: str, text: str, expected: str, example: str) -> tuple[str, int]:
    """The name and the number in the value of an option."""
    name, _, number = text.rpartition("=")
    if not (name and number.isascii() and number.isdigit() and len(number) < 20):
        raise UsageError(f"{option} {text}: expected {expected}", hint=f"for example {option} {example}")
    return name, int(number)


def say_phases(stepwise: Sequence[str]) -> None:
    """Say that an .onnx file knows nothing of steps, if it is made of a pipeline of models that has some."""
    if stepwise:
        say("note: an .onnx file does not say what runs once and what at each step, as the pipeline of models does")


def say_gap(*sources: Cascade | Path) -> None:
    """Say which weights of cascades, or of models that are parts, were read but could not be compared with digests."""
    from ..core.file_checks import cascades_with, digest_gap

    cascades = (own for one in sources for own in (cascades_with(one) if isinstance(one, Path) else [one]))
    if gap := digest_gap([name for cascade in cascades for name in cascade.undigested]):
        say(f"note: {gap}")
