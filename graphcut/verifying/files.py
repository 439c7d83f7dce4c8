"""`verify_files`: the files of a cascade compared with its manifest, without the model."""

from collections.abc import Iterator
from dataclasses import dataclass

from ..core.errors import GraphcutError
from ..core.file_checks import digest_gap
from ..core.manifest import Cascade, CascadeLike, Part, wrong_sizes
from ..core.present_parts import open_present
from ..core.product import Product
from ..core.units import count, size
from ..costs.facts import weight_facts
from ..loading.model import load_unchecked
from .manifest_check import format_gap, wrong_bytes, wrong_ends, wrong_in_part, wrong_text


@dataclass(frozen=True, repr=False)
class FileVerification(Product):
    """The result of `verify_files`. It is true if the files are what the manifest says; `print` shows it."""

    objections: tuple[str, ...]  #: how the files differ, one sentence each.
    files: int  #: number of files that were compared with digests.
    compared_bytes: int  #: how many bytes of them.
    undigested: tuple[str, ...]  #: the parts with weights that have no digest; only their size was compared.
    converted: tuple[str, ...] = ()  #: the parts in ONNX Runtime's own format, whose nodes and weights are not known.
    elsewhere: tuple[str, ...] = ()  #: the parts that are not in this folder, which `fetch` made for others.

    @property
    def same(self) -> bool:
        """Whether nothing differs."""
        return not self.objections

    def __bool__(self) -> bool:
        return self.same

    @property
    def summary(self) -> str:
        """What was compared."""
        return f"{count(self.files, 'file')}: {size(self.compared_bytes)} compared with digests"

    @property
    def gap(self) -> str:
        """What could not be compared; empty if nothing."""
        absent = f"not in this folder: {', '.join(self.elsewhere)}" if self.elsewhere else ""
        return "; ".join(filter(None, (digest_gap(self.undigested), format_gap(self.converted), absent)))

    def __str__(self) -> str:
        answer = f"the files {'are' if self else 'are not'} what the manifest says"
        return "\n".join(filter(None, (answer, self.summary, *self.objections, self.gap)))


def verify_files(cascade: CascadeLike) -> FileVerification:
    """Compare the files of `cascade` with its manifest, without the model.

    Each part file, its weights and the text files must have the digests in the manifest; each part must have the inputs
    and outputs, the number of nodes, the sizes of weights and the graph that the manifest gives. Whether the parts
    compute what the model computes is not known without the model: see `verify`. Of a folder that `fetch` made, the
    parts that it was made for are compared. Of parts in ONNX Runtime's own format the digests, inputs and outputs are.

    Raises:
        CascadeError: there is no manifest, or it contradicts itself.
    """
    cascade = open_present(cascade, check_files=False)
    objections = [f"{part.file}: {sentence}" for part in cascade.parts for sentence in _objections(cascade, part)]
    objections += wrong_text(cascade)
    named = (*(part.file for part in cascade.parts), *cascade.manifest.text_files)
    spans = {(name, 0, (cascade.root / name).stat().st_size) for name in named if (cascade.root / name).is_file()}
    digests = [(name, data.digest) for part in cascade.parts for name, data in part.data.items()]
    there = ((name, digest) for name, digest in digests if digest is not None and (cascade.root / name).is_file())
    spans |= {(name, *span) for name, digest in there for span in digest.ranges}
    return FileVerification(
        tuple(objections),
        files=len({name for name, _, _ in spans}),
        compared_bytes=sum(length for _, _, length in spans),
        undigested=cascade.undigested,
        converted=cascade.converted,
        elsewhere=cascade.absent,
    )


def _objections(cascade: Cascade, part: Part) -> Iterator[str]:
    """How the files of a part differ from the manifest."""
    try:
        if wrong := list(wrong_sizes(cascade, part)):
            yield from wrong
            return
        yield from wrong_bytes(cascade, part)
        if part.is_converted:
            yield from wrong_ends(cascade, part)
            return
        loaded = load_unchecked(cascade.file(part))
        facts = {
            "reads": loaded.graph.reads,
            "writes": loaded.graph.writes,
            "nodes": len(loaded.graph.nodes),
            **weight_facts(loaded.proto, {name: w.bytes for name, w in loaded.graph.weights.items()}),
            "graph": loaded.digest,
        }
        yield from wrong_in_part(cascade, part, loaded, facts)
    except OSError as error:
        yield f"a file can't be read: {error.strerror}"
    except GraphcutError as error:
        yield str(error)
