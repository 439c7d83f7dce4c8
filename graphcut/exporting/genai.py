"""Export a cascade of a language model as a pipeline of ONNX Runtime GenAI.

GenAI (github.com/microsoft/onnxruntime-genai, 0.18) runs a model of the type `decoder-pipeline` as stages:

    genai_config.json   that of the model, with a stage for each part: {"part-0": {"filename", "inputs", "outputs"}}
    part-0.onnx, ...    the parts, with their data files
    tokenizer.json ...  the tokenizer, as the folder of the model has it

A stage may have session options of its own: those of the device that the part was planned for. GenAI itself feeds some
inputs, such as `position_ids`, which no stage may write. A boundary tensor with such a name gets another one.
"""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

import msgspec
import onnx

from ..core.atomic_files import Content
from ..core.errors import UsageError
from ..core.manifest import MANIFEST, Cascade, SessionSettings
from ..core.records import table
from ..running.providers import facts_of
from .cascade_files import Export, cascade_files

CONFIG: Final = "genai_config.json"
_COPIED: Final = ("*token*.json", "*.model", "vocab.*", "merges.txt", "chat_template.*", "generation_config.json")
"""Files of the model's folder that belong to its tokenizer."""

_FED: Final = table("exporting/genai.toml", dict[str, frozenset[str]])["fed"]  #: inputs that GenAI feeds by default.


def export_of(cascade: Cascade, model: str | Path | None = None) -> Export:
    """A pipeline of ONNX Runtime GenAI.

    `model` is the model that was cut, beside `genai_config.json` and its tokenizer; by default that of the manifest,
    and the files that the cascade carries come first. Without such a file, or with one that does not fit, the cascade
    is refused (UsageError).
    """
    if any(part.rank is not None for part in cascade.parts):
        raise UsageError(f"{cascade.root} has ranks; GenAI has one KV cache for a layer", hint="split without `ranks`")
    home = Path(model or cascade.source).parent
    config = _config_at(cascade.root if model is None and CONFIG in cascade.manifest.text_files else home)
    renamed = _new_names(cascade, config)
    files: dict[str, Content] = {path.name: path for path in home.glob("*") if any(map(path.match, _COPIED))}
    files |= {name: path for name, path in cascade_files(cascade).items() if name != MANIFEST}
    for part in cascade.parts:
        if own := {old: new for old, new in renamed.items() if old in {*part.reads, *part.writes}}:
            files[part.file] = _with_names(cascade.root / part.file, own)
    files[CONFIG] = _pipeline(config, cascade, renamed)
    return files


def _config_at(home: Path) -> dict[str, Any]:
    """The configuration of a model with one decoder."""
    path = home / CONFIG
    try:
        config = msgspec.json.decode(path.read_bytes())
        decoder = config["model"]["decoder"]
        list(_names_of(config))
    except OSError as error:
        hint = "name the model beside such a file with `model`"
        raise UsageError(f"{path.absolute()} can't be read: {error.strerror}", hint=hint) from error
    except (msgspec.DecodeError, AttributeError, KeyError, TypeError) as error:
        raise UsageError(f"{path} describes no decoder of ONNX Runtime GenAI", hint="use its model builder") from error
    if "pipeline" in decoder:
        raise UsageError(f"{path} describes a pipeline already", hint="name the whole model with `model`")
    return dict(config)


def _names_of(config: Mapping[str, Any]) -> Iterator[str]:
    """The inputs and outputs of the model, as the configuration names them."""
    decoder = config["model"]["decoder"]
    for name in (*decoder["inputs"].values(), *decoder["outputs"].values()):
        layers = range(int(decoder.get("num_hidden_layers", 0))) if "%d" in str(name) else ()
        yield from (str(name).replace("%d", str(layer)) for layer in layers) if layers else (str(name),)


def _new_names(cascade: Cascade, config: Mapping[str, Any]) -> dict[str, str]:
    """New names for boundary tensors that are called like something that GenAI feeds."""
    manifest, known = cascade.manifest, set(_names_of(config))
    if unknown := [name for name in manifest.reads if name not in known and name not in manifest.optional]:
        raise UsageError(f"{CONFIG} does not say what the input {unknown[0]!r} is", hint="name its model with `model`")
    inner = {name for part in cascade.parts for name in part.writes} - {*manifest.reads, *manifest.writes}
    return {name: f"{name}_of_the_cascade" for name in sorted(inner & (_FED | known))}


def _with_names(path: Path, names: Mapping[str, str]) -> bytes:
    """The model at `path` with other names for some inputs and outputs."""
    proto = onnx.load(path, load_external_data=False)
    for is_input, infos in ((True, proto.graph.input), (False, proto.graph.output)):
        for info in infos:
            if info.name in names:
                old, new = info.name, names[info.name]
                info.name = new
                copy = onnx.helper.make_node("Identity", [new] if is_input else [old], [old] if is_input else [new])
                proto.graph.node.insert(0 if is_input else len(proto.graph.node), copy)
    return proto.SerializeToString()


def _pipeline(config: dict[str, Any], cascade: Cascade, renamed: Mapping[str, str]) -> dict[str, Any]:
    """The configuration with a stage for each part."""
    decoder = {key: value for key, value in config["model"]["decoder"].items() if key != "filename"}
    options = decoder.pop("session_options", {})
    caches = {name for state in cascade.manifest.states for name in (state.past, state.present)}
    stages, known = [], {*_FED, *_names_of(config)}
    for part in cascade.parts:
        reads = [name for name in part.reads if name in known or name not in cascade.manifest.optional]
        stage: dict[str, Any] = {"filename": part.file, "inputs": reads, "outputs": part.writes}
        stage |= {end: [renamed.get(name, name) for name in stage[end]] for end in ("inputs", "outputs")}
        stage["session_options"] = _session_options(options, cascade.settings(part) if part.device else None)
        makes_logits = decoder["outputs"].get("logits", "logits") in part.writes
        if makes_logits and caches.isdisjoint((*part.reads, *part.writes)):
            stage["is_lm_head"] = True  # GenAI may run it for the last token of a prompt only
        stages.append({part.name: stage})
    model = {**config["model"], "type": "decoder-pipeline", "decoder": {**decoder, "pipeline": stages}}
    return {**config, "model": model}


def _session_options(options: Mapping[str, Any], host: SessionSettings | None) -> dict[str, Any]:
    """Those of the model; of a device its own provider, threads and session configuration."""
    if host is None:
        return dict(options)
    provider = facts_of(host.provider).genai or host.provider.removesuffix("ExecutionProvider")
    settings = dict(text.split("=", 1) for text in host.provider_options)
    return {
        **options,
        **({"intra_op_num_threads": host.threads} if host.threads else {}),
        **dict(text.split("=", 1) for text in host.session_config),
        "provider_options": [] if provider == "CPU" else [{provider: settings}],
    }
