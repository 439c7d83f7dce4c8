"""One loaded part. The only place that builds ONNX Runtime sessions for parts."""

import os
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from time import perf_counter
from types import MappingProxyType
from typing import Any, Final

import onnxruntime as ort

from ..core.arguments import Optimization
from ..core.digests import version_of
from ..core.errors import OpeningError, RunError, check_word
from ..core.file_checks import check_unchanged
from ..core.manifest import Cascade, Part, SessionSettings
from ..core.tensors import Tensor
from .device_memory import OF_CPU, DeviceTensor, can_stay, device_memory, read_on_device
from .process_memory import return_freed_memory
from .providers import entries, fixed_sizes, open_session, ort_message
from .values import CPU_MEMORY, Value, Values, copied, from_array, is_numeric_tensor

_MOST_FOLDED_BYTES: Final = "65536"
"""With mapped weights, constants up to this size are folded. A larger one, such as a transposed weight, would be
computed at load time and held in memory as well (as it is by ONNX Runtime before 1.27, which lacks the option)."""

_CHECKED_S: Final = 0.05
"""Between steps as short as a token, data files are looked at this often: each look takes some microseconds."""

_REPLACED: Final = "copy it again, or split the model again; don't change a cascade while it runs"

_TOGETHER_BYTES: Final = 64 << 10  #: outputs of so many bytes are kept in memory together: to part them takes longer.

_NOTHING: Final[Mapping[str, Any]] = MappingProxyType({})

if CPU_MEMORY is not None:
    from onnxruntime.capi.onnxruntime_pybind11_state import OrtValueVector, SessionIOBinding


@dataclass(frozen=True)
class SessionConfig:
    """How sessions are built."""

    #: ONNX Runtime's graph optimizations. They are made in each part alone. Without them, the outputs of a cascade are
    #: those of its model without them bit for bit, see docs/reference/claims.md.
    optimize: Optimization = "all"
    #: copy weights into the layout that is fastest. Otherwise they are mapped from the file; results may then differ in
    #: the last bits from those of a prepacked session.
    prepacked: bool = True
    threads: int = 0  #: threads of one operator, where the device of a part sets none; 0 leaves it to ONNX Runtime.
    #: keep freed memory for the next run. Otherwise tensors are returned to the system when they are freed, which takes
    #: the least memory and a little time.
    arena: bool = True
    provider: str | None = None  #: the execution provider; None for that of the part's device, else the CPU's.
    options: Mapping[str, str] = field(default_factory=dict)  #: options of this provider.
    allow_fallback: bool = False  #: where the provider is missing or can't be started, the CPU runs the part.
    is_checked: bool = True  #: before loading a part, check that its file is the one written at the split.
    insecure: bool = False  #: run on a Ray cluster that asks for no token.

    def __post_init__(self) -> None:
        check_word(self.optimize, Optimization, "optimize")


def session_options(
    config: SessionConfig, more: Mapping[str, str] = _NOTHING, dims: Mapping[str, int] = _NOTHING
) -> ort.SessionOptions:
    """The ONNX Runtime options for `config`, with thread spinning and logging off.

    `more` are further entries of the session, and `dims` the numbers for which symbols of its model stand.
    """
    options = ort.SessionOptions()
    options.log_severity_level = 4  # errors are raised, and reported by the caller
    level = {"none": "DISABLE_ALL", "basic": "ENABLE_BASIC", "all": "ENABLE_ALL"}[config.optimize]
    options.graph_optimization_level = getattr(ort.GraphOptimizationLevel, f"ORT_{level}")
    options.intra_op_num_threads = config.threads
    # Threads of one session that spin while another one works make a cascade two to four times slower.
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")
    options.enable_cpu_mem_arena = config.arena
    # Both trade memory for a little time: a pattern is one block for all activations, and a reused buffer is kept from
    # its first tensor to its last. Without them the peak is what is alive (`costs.weighing.peak_bytes`).
    options.enable_mem_pattern = False
    options.enable_mem_reuse = False
    if not config.prepacked:
        options.add_session_config_entry("session.disable_prepacking", "1")
        options.add_session_config_entry("optimization.constant_folding_max_output_size_in_bytes", _MOST_FOLDED_BYTES)
    for key, value in more.items():
        options.add_session_config_entry(key, value)
    for name, number in dims.items():
        options.add_free_dimension_override_by_name(name, number)
    return options


class Stage:
    """A part with its session.

    Attributes:
        part: the part.
        nodes_by_provider: how many of its nodes each provider took; empty if its provider took all.
        memory: the memory of its device.
        stays: the outputs that stay in that memory, since parts on the device read them.
        bound: the memory of steps, by sequence and number of tokens, see `bind`.
    """

    def __init__(self, cascade: Cascade, part: Part, *, config: SessionConfig) -> None:
        """Load `part`.

        Raises:
            RunError: the file differs from the manifest, or ONNX Runtime refuses it.
        """
        self.part = part
        self._reads, self._writes = part.reads, list(part.writes)
        self._tensors = {name: cascade.tensors[name] for name in (*part.reads, *part.writes)}
        versions = check_unchanged(cascade, part.contents) if config.is_checked else {}
        file = cascade.file(part)
        settings = cascade.settings(part)
        entries(() if config.provider else settings.provider_options)  # refuses those that name a file
        provider, chosen = _provider_for(config, settings)
        memory, more = device_memory(provider, chosen), entries(settings.session_config)
        if memory != OF_CPU:
            more["session.use_device_allocator_for_initializers"] = "1"
        config = replace(config, threads=settings.threads or config.threads)
        options = session_options(config, more, fixed_sizes(provider, cascade.manifest.given_dims))
        try:
            self._session, nodes = open_session(file, options, provider, chosen, may_fall_back=config.allow_fallback)
        except RunError:
            raise
        except Exception as error:
            message, hint = f"{file} can't be loaded: {ort_message(error)}", "`verify(...)` checks a cascade"
            if "NOT_IMPLEMENTED" in str(error):
                hint = "this ONNX Runtime has no kernel for that operator and type: take another `provider`, or convert"
                hint += " the model to a type that it computes, such as float32"
            if "EPContext" in str(error):
                hint = "it was compiled for another provider: run it there, or run the cascade that it was made from"
            raise RunError(message, hint=hint) from error
        if not config.arena:
            return_freed_memory()  # of weights that were packed or reordered
        self.nodes_by_provider = {} if set(nodes) <= {provider} else nodes
        if changed := next((f for f, version in versions.items() if not f.exists() or version_of(f) != version), None):
            raise RunError(f"{changed} was changed while it was loaded", hint=_REPLACED)
        is_numeric = all(map(is_numeric_tensor, self._tensors.values()))
        self._is_direct = is_numeric and CPU_MEMORY is not None and hasattr(self._session, "_sess")
        is_on_device = self._is_direct and provider in self._session.get_providers()  # else the CPU is the fallback
        self.memory = memory if is_on_device else OF_CPU
        others = [other for other in cascade.parts if other.file != part.file]
        places = [device_memory(*_provider_for(config, cascade.settings(other))) for other in others]
        self.stays = read_on_device(cascade, part, self.memory, zip(others, places, strict=True))
        self._has_devices = not {self.memory, *places} <= {OF_CPU}
        self._device = CPU_MEMORY if self.memory == OF_CPU else self.memory.device
        self._checked_s = 0.0
        self.bound: dict[tuple[int, int], _Bound] = {}
        self._mapped = [(os.fspath(file), versions[file]) for file in map(cascade.root.joinpath, part.data) if versions]

    def step(
        self,
        values: Values,
        buffers: Values = _NOTHING,
        *,
        again: tuple[int, int] | None = None,
        stays: Collection[str] | None = None,
    ) -> dict[str, Value]:
        """Run the part on its inputs in `values` and return its outputs.

        Outputs are written into `buffers`, by name. If one has the wrong shape, all outputs are allocated. With the
        sequence and the number of tokens of an earlier step as `again` they are written to the memory that was bound.
        Those that `stays` names are left in the memory of its device, by default those that parts on it read.

        Raises:
            RunError: ONNX Runtime fails, or a data file was overwritten.
        """
        try:
            if again is not None:
                outputs = self.bound[again].run(values)
            else:
                fed = {name: values[name] for name in self._reads if name in values}
                if self._has_devices:
                    fed = {name: self.memory.readable(value) for name, value in fed.items()}
                buffers = buffers and {name: buffers[name] for name in self._writes if name in buffers}
                outputs = self._run(fed, self.stays if stays is None else stays, buffers)
        except Exception as error:
            message = f"{self.part.file} failed: {ort_message(error)}"
            raise RunError(message, hint="check that the shapes and values of the inputs fit together") from error
        now_s = perf_counter()
        if again is None or now_s > self._checked_s + _CHECKED_S:
            self._checked_s = now_s
            self._check_mapped()
        return outputs

    def staying(self, kept: Collection[str], sent: Collection[str]) -> Collection[str]:
        """The outputs that stay in the memory of its device: states that are `kept`, and what is not `sent` from it."""
        if self.memory == OF_CPU:
            return self.stays
        return {*self.stays}.difference(sent).union(name for name in kept if can_stay(self._tensors[name]))

    def copied_bytes(self, values: Values, outputs: Values) -> int:
        """The bytes of inputs and outputs of a step that are copied to or from the memory of its device."""
        if not self._has_devices:
            return 0
        read = [values[name] for name in self._reads if name in values]
        return self.memory.copied_bytes([*read, *(outputs[name] for name in self._writes)])

    def bind(self, sequence: int, length: int, inputs: Values, outputs: Values) -> bool:
        """Keep the memory of steps of a sequence that feed so many tokens, whose states are `inputs` and `outputs`.

        Returns False if this stage can't.
        """
        if self._is_direct:
            self.bound[sequence, length] = _Bound(self._session._sess, self.part, inputs, outputs)  # noqa: SLF001 - see `CPU_MEMORY`
        return self._is_direct

    def forget(self, sequence: int) -> None:
        """Forget the memory of a sequence."""
        for key in [key for key in self.bound if key[0] == sequence]:
            del self.bound[key]

    def close(self) -> None:
        """Free the session, even if this stage is still referenced. It can't run any more."""
        self.bound.clear()
        del self._session

    def _check_mapped(self) -> None:
        """Check that no data file was overwritten: ONNX Runtime maps them, so it may have read other weights.

        A file that another one replaced, or that was deleted, stays as it was for ONNX Runtime.
        """
        for file, version in self._mapped:
            with suppress(OSError):
                now = os.stat(file)  # noqa: PTH116 - `file.stat()` takes twice as long
                is_same_file = (now.st_dev, now.st_ino) == (version.device, version.inode)
                if is_same_file and (now.st_size, now.st_mtime_ns) != (version.bytes, version.mtime_ns):
                    raise RunError(f"{file} was overwritten while it was used", hint=_REPLACED)

    def _run(self, fed: Values, stays: Collection[str], buffers: Values) -> dict[str, Value]:
        if not self._is_direct:
            return run_session(self._session, fed, self._writes, self._tensors)
        if stays:
            return self._run_on_device(fed, stays)
        if buffers:
            with suppress(Exception):  # shapes may depend on values, and then no buffer is known to fit
                return {**buffers, **_Bound(self._session._sess, self.part, fed, buffers).run({})}  # noqa: SLF001 - see `CPU_MEMORY`
        fed = {name: value._ortvalue for name, value in fed.items()}  # noqa: SLF001 - see `CPU_MEMORY`
        made = self._session._sess.run_with_ort_values(fed, self._writes, None)  # noqa: SLF001 - see `CPU_MEMORY`
        return dict(zip(self._writes, _parted(made), strict=True))

    def _run_on_device(self, fed: Values, stays: Collection[str]) -> dict[str, Value]:
        given, made = OrtValueVector(), OrtValueVector()
        for value in fed.values():
            given.push_back(value._ortvalue)  # noqa: SLF001 - see `CPU_MEMORY`
        places = [self._device if name in stays else CPU_MEMORY for name in self._writes]
        self._session._sess.run_with_ortvaluevector(ort.RunOptions(), [*fed], given, self._writes, made, places)  # noqa: SLF001 - see `CPU_MEMORY`
        found = dict(zip(self._writes, _parted(made), strict=True))
        return found | {name: DeviceTensor(found[name]._ortvalue, self.memory) for name in stays}  # noqa: SLF001 - see `CPU_MEMORY`


class _Bound:
    """What a stage reads and writes in one step, or in each of several: then its states, and outputs of one shape.

    To bind a tensor takes a few microseconds, and a decoder has two for each layer.
    """

    def __init__(self, session: Any, part: Part, inputs: Values, outputs: Values) -> None:  # noqa: ANN401 - untyped
        """`inputs` and `outputs` are the tensors that stay; others are read anew, and are written where they were."""
        self._session, self._binding = session, SessionIOBinding(session)
        self._writes, self._same, self._made = list(part.writes), outputs, dict[str, Value]()
        self._others = dict[str, Value | None].fromkeys(name for name in part.reads if name not in inputs)
        for name, value in inputs.items():
            self._binding.bind_ortvalue_input(name, value._ortvalue)  # noqa: SLF001 - see `CPU_MEMORY`
        for name in self._writes:
            if name in outputs:
                self._binding.bind_ortvalue_output(name, outputs[name]._ortvalue)  # noqa: SLF001 - see `CPU_MEMORY`
            else:
                self._binding.bind_output(name, CPU_MEMORY)

    def run(self, values: Values) -> dict[str, Value]:
        """The outputs that do not stay, which the next step overwrites."""
        for name, bound in self._others.items():
            value = values.get(name)
            if value is not bound and value is not None:
                self._binding.bind_ortvalue_input(name, value._ortvalue)  # noqa: SLF001 - see `CPU_MEMORY`
                self._others[name] = value
        self._session.run_with_iobinding(self._binding, None)
        if not self._made:
            made = zip(self._writes, _parted(self._binding.get_outputs()), strict=True)
            self._made = {name: value for name, value in made if name not in self._same}
        return dict(self._made)


def _provider_for(config: SessionConfig, settings: SessionSettings) -> tuple[str, dict[str, str]]:
    """The provider of a part whose device has these settings, and its options."""
    own = () if config.provider else settings.provider_options
    return config.provider or settings.provider, {**dict(text.split("=", 1) for text in own), **config.options}


def _parted(made: "OrtValueVector") -> list[ort.OrtValue]:
    """The outputs, each without the others unless they are small: an item of ONNX Runtime's vector keeps all of it."""
    items = [made[i] for i in range(len(made))]  # to iterate over a vector takes longer
    if len(items) > 1 and sum(item.tensor_size_in_bytes() for item in items) > _TOGETHER_BYTES:
        for i, item in enumerate(items):
            alone = OrtValueVector()
            alone.push_back(item)
            items[i] = alone[0]
    return [ort.OrtValue(item) for item in items]


def run_session(
    session: ort.InferenceSession, inputs: Values, outputs: Sequence[str], tensors: Mapping[str, Tensor]
) -> dict[str, Value]:
    """The values of `outputs`; `tensors` are the types of inputs and outputs.

    Numeric tensors are passed as OrtValues. If there are strings, sequences, maps or optionals, ONNX Runtime's other
    interface is used: it takes these as Python objects, and returns all as such, for which it lacks bfloat16 and 8-bit
    floats. Shapes are not compared with the declared ones.
    """
    if all(is_numeric_tensor(tensors[name]) for name in (*inputs, *outputs)):
        return dict(zip(outputs, session.run_with_ort_values(outputs, inputs), strict=True))
    found = zip(outputs, session.run(outputs, inputs), strict=True)
    return {name: from_array(copied(value), tensors[name]) for name, value in found}


@contextmanager
def explaining(what: str, hint: str, kind: type[RunError] = RunError) -> Iterator[None]:
    """Raise errors of ONNX Runtime, which have no common class, as errors of one kind that say `what` is wrong."""
    try:
        yield
    except RunError:
        raise
    except Exception as error:
        raise kind(f"{what}: {ort_message(error)}", hint=hint) from error


def opening() -> AbstractContextManager[None]:
    """Raise what ONNX Runtime says while it opens a model as an `OpeningError`."""
    hint = "install what it needs, or take a model that it opens"
    return explaining("ONNX Runtime can't open the model", hint, OpeningError)


def external_weights_entry(folder: Path) -> dict[str, str]:
    """The session entry for the folder of external weights, for a model that is loaded from bytes."""
    return {"session.model_external_initializers_file_folder_path": os.fspath(folder.resolve())}
