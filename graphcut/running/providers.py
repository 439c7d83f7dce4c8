"""Execution providers of ONNX Runtime: which one a part is for, whether it is there, and which nodes it took."""

import os
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cache
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from threading import Lock
from typing import Final

import msgspec
import onnxruntime as ort

from ..core.errors import RunError
from ..core.graph import grouped
from ..core.records import table

CPU: Final = "CPUExecutionProvider"
_NAMES_A_FILE: Final = re.compile(r"[/\\]|\.[A-Za-z]\w*$")

_PRINTING: Final = Lock()
_BUILT_IN: Final = ort.get_available_providers()  #: later it lists those of plugins, too.

NodesByProvider = Mapping[str, int]  #: how many nodes of a part each provider took.


class ProviderFacts(msgspec.Struct, frozen=True):
    """What is known of a provider."""

    package: str = ""  #: the package on PyPI that has it.
    computes: str = ""  #: what `computed_type` is, unless options decide.
    needs_sizes: bool = False  #: it takes no node whose shape is dynamic.
    device: str = "accelerator"  #: its kind of device, as ONNX Runtime's layer annotations call it.
    genai: str = ""  #: its name in ONNX Runtime GenAI, if it has another one there.


def facts_of(provider: str) -> ProviderFacts:
    """What is known of a provider: `providers.toml` has it."""
    return table("running/providers.toml", dict[str, ProviderFacts]).get(provider, ProviderFacts())


def entries(texts: Sequence[str]) -> dict[str, str]:
    """`KEY=VALUE` texts of a manifest as a mapping.

    Raises:
        RunError: a value names a file. ONNX Runtime or a provider may load it as code or overwrite it, and a manifest
            may come from anywhere.
    """
    found = dict(text.split("=", 1) for text in texts)
    if unsafe := next((key for key, value in found.items() if _NAMES_A_FILE.search(value)), None):
        what = f"the manifest sets {unsafe!r} to {found[unsafe]!r}: files are not taken from a manifest"
        hint = f"if you trust it, give the provider by hand with `provider`, and {unsafe}=FILE with `options`"
        raise RunError(what, hint=hint)
    return found


def computed_type(provider: str, options: Mapping[str, str]) -> str:
    """The type in which a provider computes float32, as its documentation says; empty if that is not known.

    It is `tf32` where only what is multiplied is rounded.
    """
    is_on = {key for key, value in options.items() if value in {"1", "True", "true"}}
    match provider:
        case "QNNExecutionProvider":  # the NPU computes in float16 whatever enable_htp_fp16_precision says, as measured
            backend = (options.get("backend_type") or options.get("backend_path") or "htp").lower()
            return "float16" if "htp" in backend else "float32" if "cpu" in backend else ""
        case "OpenVINOExecutionProvider":
            default = "FP32" if options.get("device_type", "CPU").startswith("CPU") else "FP16"
            return "float32" if options.get("precision", default) == "FP32" else "float16"
        case "CUDAExecutionProvider" | "TensorrtExecutionProvider":
            halves = "bfloat16" if "trt_bf16_enable" in is_on else "float16" if "trt_fp16_enable" in is_on else ""
            return halves or ("float32" if options.get("use_tf32") == "0" else "tf32")
        case _:
            return facts_of(provider).computes


def open_session(
    file: Path | bytes, settings: ort.SessionOptions, provider: str, options: Mapping[str, str], *, may_fall_back: bool
) -> tuple[ort.InferenceSession, NodesByProvider]:
    """A session of a model with a provider and, for the nodes that it does not take, the CPU.

    Args:
        file: the model, or its bytes.
        settings: the options of the session. One for the provider is added.
        provider: its name.
        options: its options.
        may_fall_back: where the provider is missing or can't be started, the CPU runs everything.

    Returns:
        The session, and how many nodes each provider took; empty if only the CPU was asked for.

    Raises:
        RunError: the provider is missing or can't be started, and `may_fall_back` is false.
    """
    if provider == CPU:
        return ort.InferenceSession(os.fspath(file), settings, providers=[(CPU, dict(options))], enable_fallback=0), {}
    try:
        session, problem = session_on(file, settings, provider, options)
    except (RuntimeError, ValueError) as error:
        session, problem = None, f"it can't be started: {ort_message(error)}"
    if session is None and not may_fall_back:
        known, name = ", ".join(ort.get_available_providers()), file.name if isinstance(file, Path) else "the model"
        hint = f"there is {known}; choose one with `provider`, or accept the CPU with `allow_fallback=True`"
        raise RunError(f"{name} is to run with {provider}: {problem}", hint=hint)
    session = session or ort.InferenceSession(os.fspath(file), settings, providers=[CPU])
    return session, {name: len(nodes) for name, nodes in placement_of(session).items()}


def fixed_sizes(provider: str, dims: Mapping[str, int]) -> Mapping[str, int]:
    """The sizes with which sessions of a provider are built: those that were planned if it takes no dynamic shapes.

    Such a session refuses other sizes.
    """
    return dims if facts_of(provider).needs_sizes else {}


def session_on(
    file: Path | bytes, settings: ort.SessionOptions, provider: str, options: Mapping[str, str]
) -> tuple[ort.InferenceSession | None, str]:
    """A session with a provider; or None, and why there is none. ONNX Runtime itself would silently take the CPU.

    The session records who took which node, for `placement_of`. Errors of a provider that is here are raised: it may
    refuse this model alone.
    """
    settings.add_session_config_entry("session.record_ep_graph_assignment_info", "1")
    providers = None
    if provider in _BUILT_IN:
        providers = [(provider, dict(options)), *([(CPU, {})] if provider != CPU else [])]
    else:
        failed = "".join(f"; {package} failed: {problem}" for package, problem in plugins().items() if problem)
        devices = [device for device in ort.get_ep_devices() if device.ep_name == provider]
        if not devices:
            return None, f"this ONNX Runtime does not have it, and no installed plugin has a device for it{failed}"
        settings.add_provider_for_devices(devices[:1], dict(options))
    with _printing_to_stderr():
        session = ort.InferenceSession(os.fspath(file), settings, providers=providers, enable_fallback=0)
    if provider not in session.get_providers():
        return None, "it could not be started; the log of ONNX Runtime above may say why"
    return session, ""


@contextmanager
def _printing_to_stderr() -> Iterator[None]:
    """What code of a vendor prints goes to stderr: stdout may be a document. Sessions are made one after another."""
    with _PRINTING:
        stdout = os.dup(1)
        os.dup2(2, 1)
        try:
            yield
        finally:
            os.dup2(stdout, 1)
            os.close(stdout)


@cache
def plugins() -> Mapping[str, str]:
    """The installed packages with a provider, and why the provider library of each can't be used, or nothing.

    The libraries are registered, once in a process. Each package is called `onnxruntime-*` and has a module of its name
    with a function `get_library_path`, see ONNX Runtime's "Plugin Execution Provider Library Packaging Guidance".
    """
    from importlib.metadata import distributions  # few look for packages, and it takes as long as this module

    names = {re.sub(r"[-_.]+", "_", package.metadata["Name"].lower()) for package in distributions()}
    return {name: _registered(name) for name in sorted(names) if _is_plugin(name)}


def _is_plugin(name: str) -> bool:
    """Whether a package has a provider. Of packages with other names than the guidance asks for the text is read."""
    if not name.startswith("onnxruntime_") or name.startswith("onnxruntime_ep_"):
        return name.startswith("onnxruntime_ep_")
    found = find_spec(name)
    return bool(found and found.origin and "def get_library_path" in Path(found.origin).read_text("utf-8", "replace"))


def _registered(name: str) -> str:
    """Register the library of a package; returns why that failed."""
    try:
        module = import_module(name)  # some libraries call their provider as they are registered
        registered = module.get_ep_name() if hasattr(module, "get_ep_name") else name
        ort.register_execution_provider_library(registered, module.get_library_path())
    except Exception as error:  # noqa: BLE001 - code of others, which may raise anything
        return ort_message(error)
    return ""


def ort_message(error: Exception) -> str:
    """The message of an ONNX Runtime error in one line, without its error number and source locations, or its end."""
    text = " ".join(str(error).split()) or type(error).__name__
    last = re.split(r"\[ONNXRuntimeError\] : \d+ : (?:EP_)?FAIL : ", text)[-1]  # errors hold what caused them
    return re.sub(r"^/\S+:\d+ .*?\)\S* ", "", last)[-500:]


def placement_of(session: ort.InferenceSession) -> dict[str, tuple[str, ...]]:
    """For each provider the names of the nodes that it took, or their operators, of a session that records them."""
    subgraphs = session.get_provider_graph_assignment_info()
    nodes = ((subgraph.ep_name, node) for subgraph in subgraphs for node in subgraph.get_nodes())
    taken = grouped((provider, node.name or f"{node.op_type} without a name") for provider, node in nodes)
    return {provider: tuple(names) for provider, names in taken.items()}
