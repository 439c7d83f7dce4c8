"""The documents of `verify --json`, see json_records.py."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import msgspec

if TYPE_CHECKING:  # they load ONNX Runtime
    from ..verifying.files import FileVerification
    from ..verifying.two_models import ModelComparison
    from ..verifying.verification import Verification


class ProofRecord(msgspec.Struct, frozen=True, kw_only=True):
    """The structural comparison."""

    holds: bool  #: whether the parts are the model.
    objections: tuple[str, ...]  #: what differs.
    nodes: int  #: number of nodes that were found in the parts.
    replicas: int  #: number of replicas that were checked.
    weight_bytes: int  #: bytes of weights that were compared.
    given_states: int  #: number of states that the user named; only their types were compared.


class ComparedTensorRecord(msgspec.Struct, frozen=True, kw_only=True):
    """A tensor of a run, in the model and in the cascade, or in two models."""

    tensor: str  #: its name.
    part: int  #: index of the part that computes it.
    is_output: bool  #: whether it is an output of the model.
    is_identical: bool  #: whether all bits are the same.
    is_random: bool  #: whether it depends on a random node.
    max_abs: float | None  #: largest absolute difference; null if infinite.
    max_rel: float | None  #: largest relative difference; null if infinite.
    max_ulps: int  #: largest difference in units in the last place.
    allowed: float  #: what `max_abs` may be.
    passes: bool  #: whether it is identical, random or within what is allowed.


class VerificationRecord(msgspec.Struct, frozen=True, kw_only=True, tag_field="format", tag="graphcut.report/1"):
    """A verification: the answer, the structural proof, and every tensor that was compared."""

    same: bool  #: the answer.
    is_identical: bool | None  #: whether all compared tensors are identical; null if nothing was run.
    proof: ProofRecord  #: the structural comparison.
    runs: tuple[tuple[ComparedTensorRecord, ...], ...]  #: the tensors that were compared, for each set of inputs.
    first_difference: ComparedTensorRecord | None  #: the first tensor that fails; null if none.
    failure: str  #: why the cascade rejects inputs that the model accepts; empty if not.
    refusal: str  #: why nothing was run; empty if not.
    reason: str  #: why a difference is allowed; empty if not.
    is_random: bool  #: whether random nodes made a difference.


class ModelComparisonRecord(msgspec.Struct, frozen=True, kw_only=True, tag_field="format", tag="graphcut.comparison/1"):
    """Two models compared with each other."""

    same: bool  #: whether all outputs agree.
    common: int  #: number of tensors that both models compute under the same name.
    runs: int  #: how often each model was run to compare tensors.
    outputs: tuple[ComparedTensorRecord, ...]  #: the outputs.
    first: ComparedTensorRecord | None  #: the first tensor that differs; null if no output does.
    node: str  #: the node of the model that computes it; empty if there is none.
    sources: tuple[str, ...]  #: the tensors that it is computed from, which agree.


class FileVerificationRecord(msgspec.Struct, frozen=True, kw_only=True, tag_field="format", tag="graphcut.files/1"):
    """The files of a cascade compared with its manifest."""

    same: bool  #: whether nothing differs.
    objections: tuple[str, ...]  #: what differs.
    files: int  #: number of files that were compared with digests.
    compared_bytes: int  #: how many bytes of them.
    undigested: tuple[str, ...]  #: the parts with weights that have no digest.


RECORDS: Final[dict[str, type[msgspec.Struct]]] = {
    "Verification": VerificationRecord,
    "FileVerification": FileVerificationRecord,
    "ModelComparison": ModelComparisonRecord,
}
"""The document of each kind of verification, by the name of its class."""


def verification_record(found: Verification | FileVerification | ModelComparison) -> msgspec.Struct:
    """The document of a verification of outputs, of files, or of two models."""
    return msgspec.convert(found, RECORDS[type(found).__name__], from_attributes=True)
