"""What a manifest says of a model and its parts, and is not so. Each fact is derived again, and compared.

What follows from the files must be equal. What follows from inferred types must not contradict them, since other
versions of onnx and ONNX Runtime infer more or less.

Not derived: which `dims` were assumed, where the model and its weights were (`source.file`, `source.data`), the memory
and providers of devices, which part was planned for which device, and states that only the manifest shows, of which the
types are compared. Files of the tokenizer are compared with those beside the model, if there are any.
"""

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Final

import msgspec
from onnx import load as load_model

from ..core.digests import is_unchanged, unchanged_version, wrong_blocks
from ..core.errors import RunError
from ..core.file_checks import check_unchanged
from ..core.manifest import COMPILED, SHARDED_FILE, Cascade, Part
from ..core.tensors import UNDEFINED, shapes_contradict
from ..core.text import few
from ..core.units import count
from ..costs.facts import boundary_type, contradicts, model_facts, text_facts
from ..loading.external_data import merge_ranges
from ..loading.model import Model
from ..loading.part_marks import is_marked
from ..loading.shape_inference import tensor_of_type
from ..loading.subgraphs import is_external, tensors_in
from ..running.providers import CPU, open_session, ort_message
from ..running.stage import SessionConfig, session_options

_SHOWN_ITEMS: Final = 4


def wrong_in_manifest(model: Model, cascade: Cascade) -> Iterator[str]:
    """What the manifest says wrongly of the model and of the cascade as a whole, one sentence each."""
    manifest = cascade.manifest
    known = [name for name in cascade.wiring.boundary_tensors if boundary_type(model, name)]
    is_copy = "/" in manifest.source.file or manifest.source.file == SHARDED_FILE
    yield from wrong_facts({**model_facts(model, known), "weights": "copy" if is_copy else "share"}, manifest)
    used = tuple(dict.fromkeys(part.device for part in manifest.parts if part.device is not None))
    listed = tuple(host.name for host in manifest.devices)
    if listed != used:
        yield f"the manifest lists the devices {shown(listed)}, but its parts are for {shown(used)}"
    homeless = [part.file for part in manifest.parts if part.device is None]
    if used and homeless:
        yield f"the manifest gives {homeless[0]} no device, and other parts one"
    yield from wrong_text(cascade)


def wrong_in_part(cascade: Cascade, part: Part, loaded: Model, facts: Mapping[str, object]) -> Iterator[str]:
    """What the manifest says wrongly of the part that was loaded, which `facts` are to be about, one sentence each."""
    named = re.fullmatch(r"(?:.+\.)?part-\d+\.rank-(\d+)\.onnx", part.file)
    yield from wrong_facts({**facts, "rank": int(named[1]) if named else None}, part)
    yield from _wrong_types(cascade, part, loaded)
    yield from _wrong_data(cascade, part, loaded)


def wrong_bytes(cascade: Cascade, part: Part) -> Iterator[str]:
    """The files of a part that don't have their digests, one sentence each."""
    if unchanged_version(cascade.file(part), part.sha256) is None:
        yield f"{part.file} is not the file that was written: its digest differs"
    for name, data in part.data.items():
        if data.digest is not None and (wrong := wrong_blocks(cascade.root / name, data.digest)):
            (first, _), *_ = wrong[0].ranges
            blocks = count(len(data.digest.blocks), "block")
            yield f"{name} has other bytes in {len(wrong):,} of {blocks}, the first at byte {first:,}"


def wrong_ends(cascade: Cascade, part: Part) -> Iterator[str]:
    """How inputs and outputs of a part that holds no nodes of ONNX differ from the manifest, one sentence each."""
    try:
        if part.file.endswith(COMPILED):  # the CPU has no kernel for it
            graph = load_model(cascade.file(part), load_external_data=False).graph
            ends: tuple[Iterable[Any], Iterable[Any]] = graph.input, graph.output
        else:
            options = session_options(SessionConfig())
            session, _ = open_session(cascade.file(part), options, CPU, {}, may_fall_back=False)
            ends = (*session.get_inputs(), *session.get_overridable_initializers()), session.get_outputs()
    except Exception as error:  # noqa: BLE001 - ONNX Runtime's errors share no base class
        yield f"ONNX Runtime can't load it: {ort_message(error)}"
        return
    reads, writes = {one.name for one in ends[0]}, tuple(one.name for one in ends[1])
    if (reads, writes) != ({*part.reads}, part.writes):
        listed, found = ((shown(tuple(sorted(a))), shown(b)) for a, b in ((part.reads, part.writes), (reads, writes)))
        yield f"it reads {found[0]} and writes {found[1]}, but the manifest lists {listed[0]} and {listed[1]}"


def format_gap(converted: Sequence[str]) -> str:
    """What can't be compared of parts that hold no nodes of ONNX, as a sentence; empty if there are none."""
    is_compiled = any(name.endswith(COMPILED) for name in converted)
    kind = "that a compiler made" if is_compiled else "in ONNX Runtime's own format"
    return f"the nodes of {count(len(converted), 'part')} {kind} can't be compared" if converted else ""


def wrong_text(cascade: Cascade) -> Iterator[str]:
    """The text files that are missing, can't be read, or are not those of the split, one sentence each."""
    for name, digest in cascade.manifest.text_files.items():
        try:
            check_unchanged(cascade, {name: digest})
        except RunError as error:
            yield str(error)
    for part in cascade.parts:
        file = cascade.file(part)  # what is converted has no mark, and other bytes are said elsewhere
        has_mark = not part.is_converted and is_unchanged(file, part.sha256) and is_marked(file)
        if has_mark and not is_marked(file, cascade.manifest.text_files):
            yield f"{part.file} was written for other files of the tokenizer than the manifest lists"


def other_text(model: Model, cascade: Cascade) -> tuple[list[str], tuple[str, ...]]:
    """The text files that the manifest gives otherwise than they are beside the model, one sentence each.

    If none is beside the model, none can be compared: second, those that the manifest then lists.
    """
    given, listed = text_facts(model), cascade.manifest.text_files
    others = [name for name in {**given, **listed} if given and given.get(name) != listed.get(name)]
    objections = [f"the manifest gives another {name} than there is beside the model" for name in others]
    return objections, () if given else tuple(listed)


def _wrong_types(cascade: Cascade, part: Part, loaded: Model) -> Iterator[str]:
    graph, manifest = loaded.proto.graph, cascade.manifest
    for value in (*graph.input, *graph.output):
        if value.name in {*part.reads, *part.writes}:
            declared, tensor = tensor_of_type(value.name, value.type), cascade.tensors[value.name]
            # Other inputs and outputs of the model are declared as there, and their types may be known better.
            is_own = tensor.is_plain and value.name not in {*manifest.reads, *manifest.writes}
            # Nothing is inferred of an input of the model, except that its dimensions may be named.
            pairs = zip(declared.shape or (), tensor.shape or (), strict=False)
            numbered = tensor.shape and tuple(b if isinstance(b, int) else a for a, b in pairs)
            is_invented = value.name in manifest.reads and numbered != declared.shape
            if contradicts(declared, tensor) or is_invented or (is_own and declared != tensor):
                yield f"{value.name!r} is {declared} in it, but {tensor} in the manifest"


def _wrong_data(cascade: Cascade, part: Part, loaded: Model) -> Iterator[str]:
    listed, found = (tuple(sorted(data.keys() - {part.file})) for data in (part.data, loaded.data))
    if listed != found:
        yield f"the manifest gives data as {shown(listed)}, but it is {shown(found)}"
    spans = merge_ranges(loaded.range_of(tensor) for tensor in tensors_in(loaded.proto) if is_external(tensor))
    is_copy = cascade.manifest.weights == "copy"
    for name, data in part.data.items():
        ranges = tuple((span.offset, span.length) for span in spans if span.file == cascade.root / name)
        expected = ((0, data.bytes),) if is_copy and part.rank is None else ranges
        if (data.digest is None and is_copy) or (data.digest is not None and data.digest.ranges != expected):
            yield f"the manifest lacks a digest of all that the part reads of {name}"


def wrong_facts(facts: Mapping[str, Any], record: msgspec.Struct, where: str = "") -> Iterator[str]:
    """The fields of `record` that differ from `facts`, one sentence each."""
    for field, fact in facts.items():
        listed = getattr(record, field)
        if field in {"tensors", "states"}:
            yield from _wrong_items(field, fact, listed)
        elif _differ(field, listed, fact):
            yield f"the manifest gives {where}{field} as {shown(listed)}, but it is {shown(fact)}"


def _differ(field: str, listed: Any, fact: Any) -> bool:  # noqa: ANN401 - values of any field
    if field in {"shape", "start"}:
        return shapes_contradict(listed, fact) or (field == "start" and listed is None is not fact)
    return bool(listed != fact and not (field == "dtype" and UNDEFINED in f"{listed} {fact}"))


def _wrong_items(field: str, facts: Iterable[msgspec.Struct], listed: Iterable[msgspec.Struct]) -> Iterator[str]:
    """The same for a list of records, each of which is known by its first field."""
    expected, found = ({msgspec.structs.astuple(item)[0]: item for item in items} for items in (facts, listed))
    for name in found:
        if name not in expected:
            yield f"the manifest lists {name!r} in {field}, where it does not belong"
    for name, item in expected.items():
        if name in found:
            yield from wrong_facts(msgspec.structs.asdict(item), found[name], f"{field}[{name!r}].")
        else:
            yield f"the manifest lacks {name!r} in {field}"


def shown(value: object) -> str:
    """A value of a manifest in a sentence; the first items of a long list."""
    return f"[{few([*map(repr, value)], _SHOWN_ITEMS)}]" if isinstance(value, tuple) else repr(value)
