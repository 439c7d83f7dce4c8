"""One part, loaded and ready: the one place that builds ONNX Runtime sessions for parts."""

from __future__ import annotations

import os
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Final

import onnxruntime as ort
from onnxruntime.capi.onnxruntime_pybind11_state import OrtValueVector

from ..core.errors import RunError
from ..core.manifest import Cascade, Part, digest_of
from .values import Value, Values, copied, is_numeric_tensor, to_array, to_value

_CPU: Final = "CPUExecutionProvider"
_SMALL_BYTES: Final = "65536"
_NOWHERE: Final[Values] = MappingProxyType({})


@dataclass(frozen=True)
class SessionConfig:
    """How sessions are built.

    Attributes:
        optimized: with ONNX Runtime's graph optimisations. Without them a cascade is bit-identical to its model.
        prepacked: copy weights into the layout that is fastest. Without it they stay on disk and are mapped; results
            may then differ in the last bits from those of a prepacked session.
        threads: for one operator; 0 leaves it to ONNX Runtime.
        arena: keep freed memory for the next run. Without it, a tensor goes back as soon as nothing needs it, which
            takes least memory, and a little time.
        provider: the execution provider; None for that of the part's device, or else the processor.
        options: what this provider is told, in its own words.
        is_checked: run a part only if its file is the one that was written when the model was cut.
    """

    optimized: bool = True
    prepacked: bool = True
    threads: int = 0
    arena: bool = True
    provider: str | None = None
    options: Mapping[str, str] = field(default_factory=dict)
    is_checked: bool = True


def session_options(config: SessionConfig) -> ort.SessionOptions:
    """The options that every session of graphcut has."""
    options = ort.SessionOptions()
    options.log_severity_level = 4  # what goes wrong is raised, and said by us
    levels = ort.GraphOptimizationLevel
    options.graph_optimization_level = levels.ORT_ENABLE_ALL if config.optimized else levels.ORT_DISABLE_ALL
    options.intra_op_num_threads = config.threads
    # Threads of one session that spin while another one works make a cascade two to four times slower.
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")
    options.enable_cpu_mem_arena = config.arena
    options.enable_mem_pattern = config.arena  # a pattern is one block for all activations, and outputs come on top
    if not config.prepacked:
        options.add_session_config_entry("session.disable_prepacking", "1")
        # A weight that is transposed would be so once and for all, and lie in memory a second time.
        options.add_session_config_entry("optimization.constant_folding_max_output_size_in_bytes", _SMALL_BYTES)
    return options


class Stage:
    """A part with its session."""

    def __init__(self, cascade: Cascade, part: Part, *, config: SessionConfig) -> None:
        """Load `part`.

        Raises:
            RunError: the file is not what the manifest says, or ONNX Runtime refuses it.
        """
        self.part = part
        self._writes = list(part.writes)
        self._tensors = {name: cascade.tensors[name] for name in (*part.reads, *part.writes)}
        self._is_all_numbers = all(map(is_numeric_tensor, self._tensors.values()))
        file = cascade.file(part)
        if config.is_checked:
            check_unchanged(cascade, part)
        providers = _providers(cascade, part, config)
        try:
            self._session = ort.InferenceSession(os.fspath(file), session_options(config), providers=providers)
        except Exception as error:
            raise RunError(
                f"{file} can't be loaded: {ort_message(error)}", hint="`graphcut verify` checks a cascade"
            ) from error

    def step(self, held: Values, into: Values = _NOWHERE) -> dict[str, Value]:
        """Run the part on what it reads of `held`, and return what it writes, in the tensors of `into` that fit."""
        fed = {name: held[name] for name in self.part.reads if name in held}
        try:
            if self._is_all_numbers:
                with suppress(Exception):  # sizes may hang on values, and then nobody knows them before
                    if given := {name: into[name] for name in self.part.writes if name in into}:
                        return self._step_into(fed, given)
                return self._step_with_tensors(fed)
            return self._step_with_objects(fed)
        except RunError:
            raise
        except Exception as error:
            raise RunError(
                f"{self.part.file} failed: {ort_message(error)}", hint="do the inputs fit together?"
            ) from error

    def close(self) -> None:
        """Let go of the session and all it holds, whoever still refers to this stage, which can't run any more."""
        del self._session

    def _step_with_tensors(self, fed: Values) -> dict[str, Value]:
        # The method that InferenceSession wraps: what the wrapper adds takes five times as long as the call itself.
        values = {name: value._get_c_value() for name, value in fed.items()}  # noqa: SLF001 - see above
        made = self._session._sess.run_with_ort_values(values, self._writes, None)  # noqa: SLF001 - see above
        return {name: _alone(made[i]) for i, name in enumerate(self._writes)}

    def _step_into(self, fed: Values, given: Values) -> dict[str, Value]:
        binding = self._session.io_binding()
        for name, value in fed.items():
            binding.bind_ortvalue_input(name, value)
        for name in self.part.writes:
            if name in given:
                binding.bind_ortvalue_output(name, given[name])
            else:
                binding.bind_output(name)
        self._session.run_with_iobinding(binding)
        made = zip(self.part.writes, binding.get_outputs(), strict=True)
        return {
            name: given[name] if name in given else _alone(value._get_c_value())  # noqa: SLF001 - as `_alone` wants it
            for name, value in made
        }

    def _step_with_objects(self, fed: Values) -> dict[str, Value]:
        # Strings, lists, dicts and None go in and out by another door, which takes no OrtValues.
        tensors = self._tensors
        arrays = {name: to_array(value, tensors[name]) for name, value in fed.items()}
        made = self._session.run(list(self.part.writes), arrays)
        pairs = zip(self.part.writes, map(copied, made), strict=True)
        return {name: to_value(value, tensors[name]) for name, value in pairs}


def _alone(value: object) -> ort.OrtValue:
    """The same tensor, which now lives no longer than somebody refers to it.

    What ONNX Runtime gives out are places in one vector: each keeps all outputs of its run alive.
    """
    vector = OrtValueVector()
    vector.push_back(value)
    return ort.OrtValue(vector[0])


def check_unchanged(cascade: Cascade, part: Part) -> None:
    """A part's file is the one that was written when the model was cut, and its data files are as long as they were.

    A mapped file that is too short would end the process, not the run.

    Raises:
        RunError: they are not, or can't be read.
    """
    file = cascade.file(part)
    try:
        raw = file.read_bytes()
        for name, expected in part.data.items():
            file = cascade.root / name
            if file.stat().st_size != expected:
                raise RunError(f"{file} was changed after the model was cut", hint="copy it again, or split again")
    except OSError as error:
        raise RunError(f"{file} can't be read: {error.strerror}", hint="copy the whole cascade again") from None
    file = cascade.file(part)
    if digest_of(raw) != part.sha256:
        raise RunError(
            f"{file} was changed after the model was cut", hint="copy it again, or split the model again"
        ) from None


def _providers(cascade: Cascade, part: Part, config: SessionConfig) -> list[tuple[str, dict[str, str]]]:
    planned = next((host.provider for host in cascade.manifest.devices if host.name == part.device), _CPU)
    provider = config.provider or planned
    known = ort.get_available_providers()
    if provider not in known:
        raise RunError(
            f"{part.file} is to run with {provider}, which this ONNX Runtime does not have",
            hint=f"it has {', '.join(known)}; choose one with --provider, or install the ONNX Runtime of that device",
        )
    chosen = [(provider, dict(config.options))]
    return chosen if provider == _CPU else [*chosen, (_CPU, {})]


def ort_message(error: Exception) -> str:
    """ONNX Runtime's words without its error number and the places in its source, in one line."""
    text = " ".join(str(error).split())
    _, found, rest = text.partition(" : FAIL : ")
    return (rest if found else text)[:500]


def external_weights_entry(folder: Path) -> tuple[str, str]:
    """The session option that says where a model that comes as bytes has its weights."""
    return "session.model_external_initializers_file_folder_path", os.fspath(folder.resolve())
