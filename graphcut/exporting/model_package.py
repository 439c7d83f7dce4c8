"""Export a cascade as a model package of ONNX Runtime (1.32), with a component for each part.

    manifest.json                    the components, each with its variants; below `graphcut` their order, the tensors
                                     that each reads and writes, and which outputs are inputs of the next step
    part-0/part-0.onnx, ...          a part, with its data file beside it
    shared_assets/sha256-.../NAME    data files that several parts read, each once; the files of the tokenizer

A component has a variant for the provider of its part's device, and one for the CPU. ONNX Runtime chooses by the
provider of the session, and opens each component alone: that tensors go from one to the next is for the caller to do.
"""

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Final

from ..core.atomic_files import Content
from ..core.digests import digest_of, file_digest
from ..core.errors import UsageError
from ..core.manifest import Cascade, Part, SessionSettings
from .cascade_files import Export, cascade_files

MANIFEST: Final = "manifest.json"
_CPU: Final = SessionSettings()


def export_of(cascade: Cascade) -> Export:
    """A package with a component for each part."""
    there = cascade_files(cascade)
    files, assets = dict[str, Content](), dict[str, str]()
    text = tuple(sorted(cascade.manifest.text_files))
    for group in [*_shared(cascade.parts), *([text] if text else [])]:
        # The digest of the digests and paths of its files, as ONNX Runtime computes it.
        digests = (file_digest(cascade.root / name).removeprefix("sha256:") for name in group)
        uri = digest_of("".join(f"{one}  {name}\n" for one, name in zip(digests, group, strict=True)).encode())
        files |= {f"shared_assets/{uri.replace(':', '-')}/{name}": there[name] for name in group}
        assets |= dict.fromkeys(group, uri)
    for part in cascade.parts:
        own = (part.file, *(name for name in part.data if name not in assets))
        files |= {f"{part.name}/{name}": there[name] for name in own}
    files[MANIFEST] = {
        "schema_version": "1.0",
        "package_name": Path(cascade.manifest.source.file).stem,
        "components": {part.name: {"variants": _variants(cascade, part, assets)} for part in cascade.parts},
        "additional_metadata": {"graphcut": _pipeline(cascade, next((assets[name] for name in text), None))},
    }
    return files


def _shared(parts: Iterable[Part]) -> list[tuple[str, ...]]:
    """The data files that several parts read, with those that these parts read besides: each reads from one folder."""
    groups: list[tuple[set[str], int]] = []
    for part in parts:
        own, readers = set(part.data), 1
        for group in [group for group in groups if group[0] & own]:
            groups.remove(group)
            own, readers = own | group[0], readers + group[1]
        groups.append((own, readers))
    return [tuple(sorted(names)) for names, readers in groups if readers > 1]


def _variants(cascade: Cascade, part: Part, assets: Mapping[str, str]) -> dict[str, Any]:
    """How ONNX Runtime opens a part with the provider of its device, and with the CPU's."""
    shared = next((assets[name] for name in part.data if name in assets), None)
    host = cascade.settings(part)
    if host.provider == _CPU.provider and host.provider_options:
        raise UsageError(f"{part.place} has options for {host.provider}: packages lack them", hint="split without them")
    found = {}
    for one in (host, *([] if host.provider == _CPU.provider else [_CPU])):
        options = {"session.model_external_initializers_file_folder_path": shared} if shared else {}
        options |= {"session.intra_op_num_threads": str(one.threads)} if one.threads else {}
        options |= dict(text.split("=", 1) for text in one.session_config)
        info: dict[str, Any] = {"model_file": part.file, "session_options": options}
        if one.provider_options:
            info["provider_options"] = dict(text.split("=", 1) for text in one.provider_options)
        variant = {"variant_directory": part.name, "ep": one.provider, "executor_info": {"ort": info}}
        found[one.provider.removesuffix("ExecutionProvider").lower()] = variant
    return found


def _pipeline(cascade: Cascade, text: str | None) -> dict[str, Any]:
    """What no field of a package says: how its components make one model."""
    manifest = cascade.manifest
    return {
        "reads": manifest.reads,
        "optional": manifest.optional,
        "writes": manifest.writes,
        "states": {state.past: state.present for state in manifest.states},
        "steps": [{"component": part.name, "reads": part.reads, "writes": part.writes} for part in cascade.parts],
        **({"elsewhere": manifest.elsewhere} if manifest.elsewhere else {}),
        **({"text": text} if text else {}),
    }
