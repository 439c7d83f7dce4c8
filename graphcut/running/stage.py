"""One part, loaded and ready: the one place that builds ONNX Runtime sessions for parts."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import onnxruntime as ort

from ..cascade import Cascade, Part, digest_of
from ..errors import RunError
from .values import Value, Values, owned, to_array, to_value, travels_as_ort_value

_CPU: Final = "CPUExecutionProvider"


@dataclass(frozen=True)
class Policy:
    """How sessions are built.

    Attributes:
        optimized: with ONNX Runtime's graph optimisations. Without them a cascade is bit-identical to its model.
        prepacked: copy weights into the layout that is fastest. Without it they stay on disk and are mapped; results
            may then differ in the last bits from those of a prepacked session.
        threads: for one operator; 0 leaves it to ONNX Runtime.
        arena: keep freed memory for the next run. Without it, what a part leaves behind goes back at once.
        provider: the execution provider; None for that of the part's device, or else the processor.
        options: what this provider is told, in its own words.
    """

    optimized: bool = True
    prepacked: bool = True
    threads: int = 0
    arena: bool = True
    provider: str | None = None
    options: Mapping[str, str] = field(default_factory=dict)


def session_options(policy: Policy) -> ort.SessionOptions:
    """The options that every session of graphcut has."""
    options = ort.SessionOptions()
    options.log_severity_level = 4  # what goes wrong is raised, and said by us
    levels = ort.GraphOptimizationLevel
    options.graph_optimization_level = levels.ORT_ENABLE_ALL if policy.optimized else levels.ORT_DISABLE_ALL
    options.intra_op_num_threads = policy.threads
    # Threads of one session that spin while another one works make a cascade two to four times slower.
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")
    options.enable_cpu_mem_arena = policy.arena
    if not policy.prepacked:
        options.add_session_config_entry("session.disable_prepacking", "1")
    return options


class Stage:
    """A part with its session."""

    def __init__(self, cascade: Cascade, part: Part, *, policy: Policy) -> None:
        """Load `part`.

        Raises:
            RunError: the file is not what the manifest says, or ONNX Runtime refuses it.
        """
        self.part = part
        self._tensors = {name: cascade.tensors[name] for name in (*part.reads, *part.writes)}
        self._is_all_numbers = all(map(travels_as_ort_value, self._tensors.values()))
        file = cascade.file(part)
        check_unchanged(cascade, part)
        try:
            self._session = ort.InferenceSession(
                os.fspath(file), session_options(policy), providers=_providers(cascade, part, policy)
            )
        except Exception as error:
            raise RunError(
                f"{file} can't be loaded: {tidy(error)}", hint="`graphcut verify` checks a cascade"
            ) from error

    def step(self, held: Values) -> dict[str, Value]:
        """Run the part on what it reads of `held`, and return what it writes."""
        fed = {name: held[name] for name in self.part.reads if name in held}
        try:
            if self._is_all_numbers:
                made = self._session.run_with_ort_values(list(self.part.writes), fed)
                return dict(zip(self.part.writes, made, strict=True))
            return self._step_with_objects(fed)
        except RunError:
            raise
        except Exception as error:
            raise RunError(f"{self.part.file} failed: {tidy(error)}", hint="do the inputs fit together?") from error

    def _step_with_objects(self, fed: Values) -> dict[str, Value]:
        # Strings, lists, dicts and None go in and out by another door, which takes no OrtValues.
        tensors = self._tensors
        arrays = {name: to_array(value, tensors[name]) for name, value in fed.items()}
        made = self._session.run(list(self.part.writes), arrays)
        pairs = zip(self.part.writes, map(owned, made), strict=True)
        return {name: to_value(value, tensors[name]) for name, value in pairs}


def check_unchanged(cascade: Cascade, part: Part) -> None:
    """A part's file is the one that was written when the model was cut.

    Raises:
        RunError: it is not, or can't be read.
    """
    file = cascade.file(part)
    try:
        raw = file.read_bytes()
    except OSError as error:
        raise RunError(f"{file} can't be read: {error.strerror}", hint="copy the whole cascade again") from None
    if digest_of(raw) != part.sha256:
        raise RunError(
            f"{file} was changed after the model was cut", hint="copy it again, or split the model again"
        ) from None


def _providers(cascade: Cascade, part: Part, policy: Policy) -> list[tuple[str, dict[str, str]]]:
    planned = next((host.provider for host in cascade.manifest.devices if host.name == part.device), _CPU)
    provider = policy.provider or planned
    known = ort.get_available_providers()
    if provider not in known:
        raise RunError(
            f"{part.file} is to run with {provider}, which this ONNX Runtime does not have",
            hint=f"it has {', '.join(known)}; choose one with --provider, or install the ONNX Runtime of that device",
        )
    chosen = [(provider, dict(policy.options))]
    return chosen if provider == _CPU else [*chosen, (_CPU, {})]


def tidy(error: Exception) -> str:
    """ONNX Runtime's words without its error number and the places in its source, in one line."""
    text = " ".join(str(error).split())
    _, found, rest = text.partition(" : FAIL : ")
    return (rest if found else text)[:500]


def folder_entry(folder: Path) -> tuple[str, str]:
    """The session option that says where a model that comes as bytes has its weights."""
    return "session.model_external_initializers_file_folder_path", os.fspath(folder.resolve())
