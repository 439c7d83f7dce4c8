"""What transformers' beam search says of the small encoder-decoders of the tests: tests/families/beams.json.

source scripts/setup whisper
.venv-whisper/bin/python scripts/transformers_beams.py    # writes the file

transformers' `generate` runs the ONNX files: the encoder once, and the decoder of the first step on the whole text at
each step, without caches. Its greedy tokens have to be those of the loop by hand, with caches.
"""

from __future__ import annotations

import json
import sys
import tempfile
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import torch
from transformers import GenerationMixin, PreTrainedConfig, PreTrainedModel, logging
from transformers.modeling_outputs import BaseModelOutput, Seq2SeqLMOutput

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "tests"))

from families import FAMILIES, two_rows
from families.by_hand import run, settings, tokens_of_encoder_decoder

FILE = Path(__file__).resolve().parent.parent / "tests" / "families" / "beams.json"
TOKENS, WIDTHS, LAST = 12, (2, 4, 8), 1
SAYS = ("suppress_tokens", "begin_suppress_tokens", "bad_words_ids")


class Encoder(torch.nn.Module):
    """The encoder's file as a module."""

    def __init__(self, folder: Path, reads: str) -> None:
        super().__init__()
        self.folder, self.main_input_name = folder, reads

    def forward(
        self,
        input_ids: torch.Tensor | None = None,
        input_features: torch.Tensor | None = None,
        attention_mask: torch.Tensor | None = None,
        **_: object,
    ) -> BaseModelOutput:
        """Run it."""
        given = {"input_ids": input_ids, "input_features": input_features, "attention_mask": attention_mask}
        feeds = {name: tensor.numpy() for name, tensor in given.items() if tensor is not None}
        return BaseModelOutput(torch.tensor(run(self.folder / "encoder_model.onnx", feeds)["last_hidden_state"]))


class Files(PreTrainedModel, GenerationMixin):
    """A folder as a model of transformers."""

    config_class, base_model_prefix = PreTrainedConfig, ""

    def __init__(self, config: PreTrainedConfig, folder: Path, reads: str) -> None:
        super().__init__(config)
        self.encoder, self.folder, self.main_input_name = Encoder(folder, reads), folder, reads
        self.weight = torch.nn.Parameter(torch.zeros(1))  # tells transformers where and in which type it runs

    def get_encoder(self, *_: object, **__: object) -> Encoder:
        """Return what runs once."""
        return self.encoder

    def prepare_inputs_for_generation(self, input_ids: torch.Tensor, **given: Any) -> dict[str, Any]:  # noqa: ANN401
        """Return what `forward` reads."""
        return {"ids": input_ids, "heard": given["encoder_outputs"], "mask": given.get("attention_mask")}

    def forward(
        self, ids: torch.Tensor, heard: BaseModelOutput, mask: torch.Tensor | None, **_: object
    ) -> Seq2SeqLMOutput:
        """Run the decoder on the whole text."""
        feeds = {"input_ids": ids.numpy(), "encoder_hidden_states": heard.last_hidden_state.numpy()}
        if mask is not None:
            feeds["encoder_attention_mask"] = mask.numpy()
        return Seq2SeqLMOutput(logits=torch.tensor(run(self.folder / "decoder_model.onnx", feeds)["logits"]))

    def _validate_model_kwargs(self, model_kwargs: dict[str, Any]) -> None:
        """Nothing: the encoder's inputs have other names than those of `forward`."""


def generated(
    folder: Path, inputs: dict[str, np.ndarray], width: int, penalty: float = 1
) -> list[tuple[list[int], float]]:
    """The best text of each row and its score."""
    says = settings(folder, "generation_config")
    start, reads = says["decoder_start_token_id"], next(iter(inputs))
    config = PreTrainedConfig(
        is_encoder_decoder=True, decoder_start_token_id=start, eos_token_id=LAST, pad_token_id=says["pad_token_id"]
    )
    config.vocab_size = settings(folder, "config")["vocab_size"]
    prompt = [start, *(token for _, token in says.get("forced_decoder_ids", []))]
    found = Files(config, folder, reads).generate(
        **{name: torch.tensor(array) for name, array in inputs.items()},
        decoder_input_ids=torch.tensor([prompt] * len(inputs[reads])), num_beams=width, do_sample=False,
        max_new_tokens=TOKENS, use_cache=False, output_scores=True, return_dict_in_generate=True,
        length_penalty=float(penalty), early_stopping=False, **{name: says[name] for name in SAYS if name in says},
    )  # fmt: skip
    rows = [row[len(prompt) :] for row in found.sequences.tolist()]
    ended = [row[: row.index(LAST) + 1] if LAST in row else row for row in rows]
    scores = found.sequences_scores.tolist() if width > 1 else [0.0] * len(rows)
    return list(zip(ended, (round(score, 5) for score in scores), strict=True))


def main() -> None:
    """Write the file: a line for each request, with tokens and score of each row."""
    warnings.filterwarnings("ignore")
    logging.set_verbosity_error()
    lines = []
    for name in ("whisper", "t5", "marian"):
        family = FAMILIES[name]
        with tempfile.TemporaryDirectory() as made:
            folder = family.write(Path(made) / "m")
            for seed in range(3):
                inputs = two_rows(name, seed)
                greedy = tokens_of_encoder_decoder(folder, inputs, TOKENS)
                if [row for row, _ in generated(folder, inputs, 1)] != greedy:
                    sys.exit(f"error: {name}, seed {seed}: the greedy tokens differ")
                for width, penalty in (*((width, 1.0) for width in WIDTHS), (4, 0.5)):
                    rows = generated(folder, inputs, width, penalty)
                    request = {"family": name, "seed": seed, "width": width, "length_penalty": penalty}
                    lines.append(json.dumps({**request, "rows": rows}))
    FILE.write_text("[\n" + ",\n".join(lines) + "\n]\n", encoding="utf-8")


if __name__ == "__main__":
    main()
