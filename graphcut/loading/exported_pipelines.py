"""The pipeline of models that an exporter left in a folder, from the names of its files and its configuration."""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

import msgspec
from msgspec import to_builtins
from msgspec.structs import replace

from ..core.atomic_files import write_file
from ..core.errors import RecordError, UsageError
from ..core.manifest import EXPORTED, PIPELINE
from ..core.records import json_beside, table
from .made_models import MadeModel
from .model import load_unchecked
from .pipelines import PipelineFile, PipelineModel, Runs, open_pipeline

_GENAI, _MODULES, _ENCODER = EXPORTED
_POOLINGS: Final = table("loading/poolings.toml", dict[str, MadeModel])
#: models of genai_config.json that run for each token.
_RUNS: Final[Mapping[str, Runs]] = {"embedding": "each step", "decoder": "each step"}
_BRANCH: Final = "use_cache_branch"  #: the input that says whether there is a cache.
_FEATURES: Final = "features.onnx"  #: what makes an encoder's input, if a user puts such a model there.
_FIRST, _LATER, _MERGED = "decoder_model.onnx", "decoder_with_past_model.onnx", "decoder_model_merged.onnx"


class _Section(msgspec.Struct, frozen=True):
    """A model of genai_config.json, and its names of inputs and outputs by those of ONNX Runtime GenAI."""

    filename: str = ""
    inputs: dict[str, str] = {}
    outputs: dict[str, str] = {}


class _GenaiModel(msgspec.Struct, frozen=True):
    """The models of genai_config.json, in the order in which they run."""

    vision: _Section | None = None
    speech: _Section | None = None
    encoder: _Section | None = None
    embedding: _Section | None = None
    decoder: _Section | None = None


class _GenaiConfig(msgspec.Struct, frozen=True):
    model: _GenaiModel | None = None


def exported_pipeline(folder: Path) -> PipelineFile | None:
    """The pipeline in a folder that Optimum or ONNX Runtime GenAI wrote; None if it holds none.

    Optimum's decoders of an encoder come as a first step, which also computes the keys and values of the encoder's
    output, and a later one, which reads them; or as one model with an If. Of the first step that part alone is used,
    once: the later step begins with empty caches of its own tokens.

    Raises RecordError: the configuration can't be read. ModelError: a model can't be read.
    """
    if (folder / _GENAI).is_file():
        return _of_genai(folder)
    if (folder / _MODULES).is_file():
        return _of_sentence_transformers(folder)
    there = [name for name in (_MERGED, _LATER, _FIRST) if (folder / name).is_file()]
    return _of_optimum(folder, there[0]) if there and (folder / _ENCODER).is_file() else None


def save_pipeline(folder: str | Path, output: str | Path, *, force: bool = False) -> PipelineFile:
    """Write the pipeline file of what an exporter left in a folder, and return its content.

    An existing file is replaced with `force`.

    Raises:
        UsageError: the folder holds no such models, they don't have the expected inputs and outputs, they are not in
            the folder of `output` or below, or it exists.
        RecordError: a configuration can't be read.
        ModelError: a model can't be read.
        GraphcutError: writing failed.
    """
    folder, output = Path(folder), Path(output)
    found = exported_pipeline(folder)
    if found is None:
        hint = "write a pipeline file by hand: docs/reference/pipeline-file.md"
        raise UsageError(f"{folder} has no models of an exporter that is known", hint=hint)
    home, place = output.absolute().parent.resolve(), folder.resolve()
    if not place.is_relative_to(home):
        raise UsageError(f"{folder} is not in the folder of {output}", hint=f"write it to {folder / PIPELINE}")
    if output.suffix != ".toml":
        raise UsageError(f"{output} is no name of a pipeline file", hint="let it end with .toml")
    if output.exists() and not force:
        raise UsageError(f"{output} already exists", hint="choose another name with `output`, or add `force=True`")
    models, way = found.models.items(), place.relative_to(home)
    moved = {name: replace(one, file=(way / one.file).as_posix()) if one.file else one for name, one in models}
    found = replace(found, models=moved)
    open_pipeline(output, found)  # so that no file is written which can't be opened
    write_file(output, ("\n".join(_lines(found)) + "\n").encode())
    return found


def _lines(pipeline: PipelineFile) -> Iterator[str]:
    """Its lines in TOML, whose strings, numbers and lists are those of JSON."""
    for name, one in pipeline.models.items():
        yield f"[models.{name}]"
        for key, value in to_builtins(one).items():
            rows = value.items() if isinstance(value, dict) else ()
            pairs = ", ".join(f"{_text(name)} = {_text(number)}" for name, number in rows)
            yield f"{key} = {{ {pairs} }}" if rows else f"{key} = {_text(value)}"
    yield "[connect]"
    yield from (f"{_text(reader)} = {_text(source)}" for reader, source in pipeline.connect.items())


def _text(value: object) -> str:
    return msgspec.json.encode(value).decode()


def _of_optimum(folder: Path, decoder: str) -> PipelineFile:
    encoder, later = load_unchecked(folder / _ENCODER).graph, load_unchecked(folder / decoder)
    step, is_merged = later.graph, decoder == _MERGED
    hidden, has_caches = f"encoder.{encoder.writes[0]}", any(".encoder." in name for name in step.reads)
    files = {"features": _FEATURES, "encoder": _ENCODER}
    models = {name: PipelineModel(file=file) for name, file in files.items() if (folder / file).is_file()}
    connect = dict[str, str]()
    if has_caches:
        first = PipelineModel(file=_MERGED, assume={_BRANCH: False}) if is_merged else PipelineModel(file=_FIRST)
        models["keys"] = replace(first, outputs=("present.*.encoder.*",))
        connect["keys.encoder_hidden_states"] = hidden
        connect["decoder.past_key_values.*.encoder.*"] = "keys.present.*.encoder.*"
    # The later step is exported with one token: with several at once none may be hidden from those before it.
    length = (later.tensors["input_ids"].shape or (None,))[-1] if "input_ids" in step.reads else None
    models["decoder"] = PipelineModel(
        file=decoder,
        runs="each step",
        outputs=("logits", "present.*.decoder.*") if has_caches else ("logits",),
        assume={_BRANCH: True} if is_merged else {},
        dims={length: 1} if has_caches and isinstance(length, str) else {},
    )
    told = {"encoder_hidden_states": hidden, "encoder_attention_mask": "encoder.attention_mask"}
    known = {f"encoder.{name}" for name in (*encoder.reads, *encoder.writes)}
    connect |= {f"decoder.{name}": end for name, end in told.items() if name in step.reads and end in known}
    return PipelineFile(models=models, connect=connect)


def _of_sentence_transformers(folder: Path) -> PipelineFile | None:
    """A model of sentences, and what makes one vector of those of its tokens; None if the model does that itself."""
    file = next((name for name in ("model.onnx", "onnx/model.onnx") if (folder / name).is_file()), None)
    model = None if file is None else load_unchecked(folder / file).graph
    if file is None or model is None or "sentence_embedding" in model.writes:
        return None
    listed = json_beside(folder / _MODULES, list[dict[str, Any]])
    kinds = [str(one.get("type", "")).rpartition(".")[2] for one in listed]
    modes = json_beside(folder / "1_Pooling" / "config.json") if "Pooling" in kinds else {}
    chosen = [make for mode, make in _POOLINGS.items() if modes.get(mode)]
    if kinds not in (["Transformer", "Pooling"], ["Transformer", "Pooling", "Normalize"]) or len(chosen) != 1:
        pooled = f"and pools by {' and '.join(mode for mode in modes if modes[mode] is True) or 'nothing'}"
        hint = "write a pipeline.toml that says which models there are"
        raise RecordError(f"{folder / _MODULES} lists {', '.join(kinds)}, {pooled}: not known", hint=hint)
    models = {"encoder": PipelineModel(file=file, outputs=model.writes[:1]), "pooling": PipelineModel(make=chosen[0])}
    connect = {"pooling.token_embeddings": f"encoder.{model.writes[0]}"}
    connect["pooling.attention_mask"] = "encoder.attention_mask"
    if "Normalize" in kinds:
        models["normalize"] = PipelineModel(make="normalize")
        connect["normalize.x"] = "pooling.pooled"
    return PipelineFile(models=models, connect=connect)


def _of_genai(folder: Path) -> PipelineFile | None:
    """The models that genai_config.json lists, if they are several; None for a decoder alone."""
    found = json_beside(folder / _GENAI, _GenaiConfig).model
    known = {name: getattr(found, name) for name in _GenaiModel.__struct_fields__ if found is not None}
    sections: dict[str, _Section] = {name: one for name, one in known.items() if one is not None and one.filename}
    if len(sections) < 2 or "decoder" not in sections:
        return None
    models = {name: PipelineModel(file=one.filename, runs=_RUNS.get(name, "once")) for name, one in sections.items()}
    connect = dict(_by_keys(sections))
    names = {key: f"{of}.{name}" for of in sections if of in _RUNS for key, name in sections[of].inputs.items()}
    told = {key: names[key] for key in ("input_ids", "attention_mask") if key in names}
    # ONNX Runtime GenAI gives a prompt what was seen or heard, and later steps nothing.
    for reader, source in [*connect.items()] if len(told) == 2 else ():
        if reader.startswith("embedding.") and source.partition(".")[0] not in _RUNS:
            name = f"first_{reader.partition('.')[2]}"
            models[name] = PipelineModel(make="at first", runs="each step")
            connect |= {f"{name}.x": source, reader: f"{name}.at_first"}
            connect |= {f"{name}.{key}": end for key, end in told.items()}
    return PipelineFile(models=models, connect=connect)


def _by_keys(sections: Mapping[str, _Section]) -> Iterator[tuple[str, str]]:
    """What the configuration connects: an input and an output with one key, under the names that it gives them."""
    for reader, one in sections.items():
        for key, name in one.inputs.items():
            for writer in sections:
                outputs = sections[writer].outputs
                own = key.replace("cross_past", "cross_present")
                own = "hidden_states" if own == "encoder_hidden_states" and own not in outputs else own
                if writer != reader and own in outputs:
                    yield f"{reader}.{name}".replace("%d", "*"), f"{writer}.{outputs[own]}".replace("%d", "*")
