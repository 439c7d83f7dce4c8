"""The pipeline of models that an exporter left in a folder, from the names of its files and its configuration."""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

import msgspec

from ..core.records import reading
from .model import load_unchecked
from .pipelines import PipelineFile, PipelineModel
from .specialising import Number

_GENAI: Final = "genai_config.json"
_SECTIONS: Final = (
    "vision",
    "speech",
    "encoder",
    "embedding",
    "decoder",
)  #: models of that file, in the order they run.
_AT_EACH: Final = {"embedding", "decoder"}  #: those of them that run for each token.
_ENCODER, _FIRST, _LATER, _MERGED = (
    f"{name}.onnx" for name in ("encoder_model", "decoder_model", "decoder_with_past_model", "decoder_model_merged")
)


def exported_pipeline(folder: Path) -> PipelineFile | None:
    """The pipeline in a folder that Optimum or ONNX Runtime GenAI wrote; None if it holds none.

    Optimum's decoders of an encoder come as a first step, which also computes the keys and values of the encoder's
    output, and a later one, which reads them; or as one model with an If. Of the first step that part alone is used,
    once: the later step begins with empty caches of its own tokens.

    Raises RecordError: the configuration can't be read. ModelError: a model can't be read.
    """
    if (folder / _GENAI).is_file():
        return _of_genai(folder)
    there = [name for name in (_MERGED, _LATER, _FIRST) if (folder / name).is_file()]
    return _of_optimum(folder, there[0]) if there and (folder / _ENCODER).is_file() else None


def _of_optimum(folder: Path, decoder: str) -> PipelineFile:
    encoder, step = (load_unchecked(folder / name).graph for name in (_ENCODER, decoder))
    is_merged = decoder == _MERGED
    hidden, has_caches = f"encoder.{encoder.writes[0]}", any(".encoder." in name for name in step.reads)
    models, connect = {"encoder": PipelineModel(file=_ENCODER)}, dict[str, str]()
    if has_caches:
        file, given = (_MERGED, _branch(with_cache=False)) if is_merged else (_FIRST, {})
        models["keys"] = PipelineModel(file=file, outputs=("present.*.encoder.*",), assume=given)
        connect["keys.encoder_hidden_states"] = hidden
        connect["decoder.past_key_values.*.encoder.*"] = "keys.present.*.encoder.*"
    models["decoder"] = PipelineModel(
        file=decoder,
        runs="each step",
        outputs=("logits", "present.*.decoder.*") if has_caches else ("logits",),
        assume=_branch(with_cache=True) if is_merged else {},
    )
    told = {"encoder_hidden_states": hidden, "encoder_attention_mask": "encoder.attention_mask"}
    known = {f"encoder.{name}" for name in (*encoder.reads, *encoder.writes)}
    connect |= {f"decoder.{name}": end for name, end in told.items() if name in step.reads and end in known}
    return PipelineFile(models=models, connect=connect)


def _branch(*, with_cache: bool) -> dict[str, Number]:
    return {"use_cache_branch": with_cache}


def _of_genai(folder: Path) -> PipelineFile | None:
    """The models that genai_config.json lists, if they are several; None for a decoder alone."""
    path = folder / _GENAI
    with reading(path, "JSON", unread="take the file of the model", hint="take the file of the model"):
        found = msgspec.json.decode(path.read_bytes(), type=dict[str, Any]).get("model")
    sections = {
        name: one for name in _SECTIONS if isinstance(one := (found or {}).get(name), dict) and "filename" in one
    }
    if len(sections) < 2 or "decoder" not in sections:
        return None
    models = {
        name: PipelineModel(file=one["filename"], runs="each step" if name in _AT_EACH else "once")
        for name, one in sections.items()
    }
    return PipelineFile(models=models, connect=dict(_by_keys(sections)))


def _by_keys(sections: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """What the configuration connects: an input and an output with one key, under the names that it gives them."""
    for reader, one in sections.items():
        for key, name in (one.get("inputs") or {}).items():
            for writer in sections:
                outputs = sections[writer].get("outputs") or {}
                own = key.replace("cross_past", "cross_present")
                own = "hidden_states" if own == "encoder_hidden_states" and own not in outputs else own
                if writer != reader and own in outputs:
                    yield f"{reader}.{name}".replace("%d", "*"), f"{writer}.{outputs[own]}".replace("%d", "*")
