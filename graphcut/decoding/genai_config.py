"""What `genai_config.json` says of a decoder: its own names of inputs and outputs, and how many tokens it is made for.

ONNX Runtime GenAI reads this file. It is how a model with unusual names is described: for instance
`{"model": {"decoder": {"inputs": {"attention_mask": "m"}, "outputs": {"logits": "linear_48"}}}}`.
"""

from collections.abc import Collection, Mapping
from typing import Any

from msgspec.structs import replace

from ..core.file_checks import text_of
from ..core.manifest import Cascade
from .token_inputs import DecoderInputRole, Roles, role_of


class GenaiConfig:
    """That file of a cascade; empty if there is none. Names that the model lacks are left out.

    Attributes:
        context_length: the number of tokens that the model is made for; None if unknown.
        roles: the roles of inputs.
        states: the output that becomes each input.
        logits: the output with the scores of the next token; None if unknown.
    """

    def __init__(self, cascade: Cascade) -> None:
        """Read the file, and compare it with its digest first."""
        reads, writes = cascade.manifest.reads, cascade.manifest.writes
        found = _part(text_of(cascade, "genai_config.json"), "model")
        length, decoder = found.get("context_length"), _part(found, "decoder")
        inputs, outputs = _part(decoder, "inputs"), _part(decoder, "outputs")
        self.context_length = length if isinstance(length, int) and length > 0 else None
        named = {own: replace(cascade.tensors[own], name=key) for key, own in inputs.items() if own in reads}
        self.roles: Roles = {n: role for n, as_ in named.items() if (role := role_of(as_))}
        self.logits: str | None = next((own for key, own in outputs.items() if key == "logits" and own in writes), None)
        number = decoder.get("num_hidden_layers")
        layers = range(number if isinstance(number, int) and 0 < number < 10_000 else 0)
        kinds = [(inputs.get(f"past{k}_names"), outputs.get(f"present{k}_names")) for k in ("", "_key", "_value")]
        pairs = [(str(a).replace("%d", str(i)), str(b).replace("%d", str(i))) for a, b in kinds for i in layers]
        self.states = {past: present for past, present in pairs if past in reads and present in writes}


def roles_of(cascade: Cascade) -> dict[str, DecoderInputRole | None]:
    """The role of each input of a decoder, as `genai_config.json` or else its name says; None if it has none."""
    named = {name: role_of(cascade.tensors[name]) for name in cascade.manifest.reads}
    return {**named, **GenaiConfig(cascade).roles}


def encoder_roles(cascade: Cascade, given: Collection[str] = ()) -> Roles:
    """The roles of inputs of a pipeline of models that are neither fed at each step nor given.

    None if no token ids are among them: then there is no encoder that reads a prompt.
    """
    manifest = cascade.manifest
    once = [name for name in manifest.reads if manifest.stepwise and name not in (*manifest.stepwise, *given)]
    roles = {name: role for name in once if (role := role_of(cascade.tensors[name])) is not None}
    return roles if "ids" in roles.values() else {}


def _part(of: Mapping[str, Any], name: str) -> dict[str, Any]:
    found = of.get(name)
    return found if isinstance(found, dict) else {}
