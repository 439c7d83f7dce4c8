"""`Automation`: convert a model, measure what that costs, cut it, verify the parts, and write them with a record."""

import errno
import os
import re
import shutil
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import Final, NamedTuple, get_args

import msgspec
from msgspec.structs import replace

from ..core.atomic_files import WRITTEN, Content, check_target, mend, scratch_folder, write_folder
from ..core.digests import digest_of, file_digest
from ..core.errors import CascadeError, GraphcutError, PlanError, UsageError, check_names
from ..core.file_checks import check_parts
from ..core.manifest import Cascade, TextFile, is_inside, save_manifest
from ..core.product import Product
from ..core.units import count, size
from ..loading.model import Model
from ..loading.opening import load
from ..running.values import Feeds
from ..surgery.splitting import PreparedFiles, write
from ..verifying.numerical import accepted_inputs
from ..verifying.verification import verify
from .accuracy import Figures, Outputs, compared_outputs, figures_of, outputs_of, perplexity, read_text, unmet
from .conversions import PRECISIONS, STEPS, advice, check_possible, convert, library_of
from .record import RECORD, Attempt, AutoRecord, ConversionRecord, check_replay, digests

_KIND: Final = "a result of auto"


class _Converted(NamedTuple):
    """A model after some conversions, its outputs, and these against those of the given model."""

    model: Model
    steps: tuple[ConversionRecord, ...]
    outputs: Outputs
    figures: Figures | None


@dataclass(kw_only=True, repr=False)
class Automation(Product):
    """What is to be made of a model."""

    model: Model  #: the given model.
    cut: Callable[[Model, Path], PreparedFiles]  #: plans a model, and prepares its parts in a folder.
    report: Callable[[str], object]  #: is told what is done.
    #: the precision; several are tried in this order until one fits, and if none is named all for which there are
    #: inputs, those first that usually lose least.
    precisions: Sequence[str] = ()
    #: what is made of the model before a precision is converted, in this order: `fuse` nodes; `constants` of inputs
    #: that have a value; `static` shapes, as its dims say; `opset=N`.
    steps: Sequence[str] = ()
    limits: Sequence[str] = ()  #: what the figures must meet, such as `snr>30`.
    inputs: Sequence[Feeds] = ()  #: inputs on which outputs are compared; generated ones if there are none.
    seed: int = 0  #: for these.
    calibration: Sequence[Feeds] = ()  #: inputs for static quantization.
    text: str | None = None  #: a text for perplexity.
    export: Callable[[Cascade, Path, Path], object] | None = None  #: writes it and its model in another form, instead.
    keep: bool = False  #: also keep the models of the steps, in `models/`.
    sources: Sequence[Path] = ()  #: files that were read besides the model.
    options: Callable[[str], Sequence[str]] = lambda _: ()  #: what makes it again in a precision, for the record.
    replayed: AutoRecord | None = None  #: the record that is done again.
    _made: dict[tuple[str, ...], _Converted] = field(default_factory=dict)

    def __post_init__(self) -> None:
        unmet(self.limits, None)
        named = [name for name in self.steps if not re.fullmatch(r"opset=[1-9]\d?", name)]
        check_names(named, STEPS, "there is no step", "steps are opset=N,")
        needs_calibration = "int8-static" in self.precisions
        if needs_calibration and not self.calibration:
            raise UsageError("int8-static needs inputs to calibrate with", hint="give `calibration`, or use int8")
        if self.calibration and self.precisions and not needs_calibration:
            message = f"{self.precisions[0]} needs no calibration"
            raise UsageError(message, hint="leave `calibration` out, or use int8-static")
        self.precisions = self.precisions or [n for n in PRECISIONS if n != "int8-static" or self.calibration]

    def make(self, output: Path, *, force: bool = False) -> AutoRecord:
        """Make the parts in a new folder, or with `force` in one that was made before: all or nothing.

        Returns:
            What was done. It names no files if a limit is not met: nothing was written.

        Raises:
            PlanError: no precision fits.
            CascadeError: the model is a part that was changed, by a manifest beside it.
            RecordError: a replay makes other bytes.
            GraphcutError: a package is missing or fails, or files can't be written.
        """
        parent, is_given = output.absolute().parent, bool(self.inputs)
        mend(parent, f"{output.name}.auto")
        check_parts([self.model.path])
        check_target(output, output, kind=_KIND, force=force)
        if len(self.precisions) == 1:
            check_possible(self._names(self.precisions[0]), self.model)
        with scratch_folder(parent, f"{output.name}.auto") as folder:
            try:
                return self._made_in(folder, output, is_given=is_given, force=force)
            except (GraphcutError, OSError) as error:
                if not _is_full(error, folder):
                    raise
                models = {names[:i] for names in map(self._names, self.precisions) for i in range(1, len(names) + 1)}
                needed = self.model.weight_bytes * (len(models) + 1 + (self.export is not None))
                what = f"{count(len(models), 'model')} of steps and the parts take up to about {size(needed)} there"
                hint = f"make room, or choose another disk with `output`: {what}; nothing was changed"
                raise GraphcutError(f"the disk of {parent} is full", hint=hint) from error

    def _made_in(self, folder: Path, output: Path, *, is_given: bool, force: bool) -> AutoRecord:
        """Make the parts by way of a scratch folder."""
        self._measure()
        chosen, tried, prepared = self._search(folder)
        verified, places = self._written(chosen.model, prepared, output) if prepared else ("", {})
        record = AutoRecord(
            options=tuple(self.options(tried[-1].precision)),
            versions={package: version(package) for package in ("graphcut", "onnx", "onnxruntime")},
            sources=digests([*self.model.files, *self.sources], output),
            inputs="files" if is_given else f"generated with seed {self.seed}" * bool(self.inputs),
            steps=chosen.steps,
            tried=tuple(tried),
            verified=verified,
            files={name: file_digest(place) for name, place in places.items()},
        )
        if self.replayed is not None:
            check_replay(self.replayed, record)
        if prepared:
            files: dict[str, Content] = {name: partial(os.replace, place) for name, place in places.items()}
            files[RECORD] = msgspec.json.format(msgspec.json.encode(record), indent=1) + b"\n"
            write_folder(output, files, kind=_KIND, force=force)
        return record

    def _measure(self) -> None:
        """The outputs of the given model."""
        self.inputs, refused = accepted_inputs(self.model, self.inputs, self.seed, self.model.dims)
        if "constants" in self.steps:
            weights = self.model.graph.weights
            self.inputs = [{name: v for name, v in one.items() if name not in weights} for one in self.inputs]
        if refused:
            if self.limits or self.text:
                raise refused
            self.report(f"outputs are not compared: {refused}")
        self._outputs = compared_outputs(self.model)
        self._text = None if self.text is None else read_text(self.text, self.model)
        outputs = outputs_of(self.model, self.inputs, self._outputs)
        self._made[()] = _Converted(self.model, (), outputs, self._figures(outputs, outputs, self.model))
        unmet(self.limits, self._made[()].figures)  # before anything is converted for a figure that there is not

    def _figures(self, before: Outputs, after: Outputs, model: Model) -> Figures | None:
        return figures_of(before, after, self._text and perplexity(model, self._text)) if before else None

    def _names(self, precision: str) -> tuple[str, ...]:
        """The conversions for a precision."""
        names = (*(name for step in self.steps for name in STEPS.get(step, (step,))), *PRECISIONS[precision])
        return ("clean", *names) if names else ()

    def _converted(self, names: tuple[str, ...], folder: Path) -> _Converted:
        """The given model after these conversions."""
        if names not in self._made:
            self._made[names] = self._next(self._converted(names[:-1], folder), names, folder)
        return self._made[names]

    def _next(self, before: _Converted, names: tuple[str, ...], folder: Path) -> _Converted:
        name, given, target = names[-1], before.model, folder / f"{'-'.join((self.model.path.stem, *names))}.onnx"
        if given.joined_from:
            hint = "convert its models one by one, then cut the pipeline of those with `split(...)`"
            raise UsageError(f"{given.title} is a pipeline of models, and {name} converts one model", hint=hint)
        package, number = library_of(name)
        self.report(f"{name}, by {package} {number}")
        folder.mkdir(exist_ok=True)  # parts get their tokenizer from the folder of their model
        for file in filter(Path.is_file, (self.model.path.parent / text for text in get_args(TextFile))):
            shutil.copyfile(file, folder / file.name)
        if (options := convert(name, given, target, self.model.path.parent, self.calibration)) is None:
            return before
        try:
            model = load(target, states=given.states)
            model = model.with_dims({dim: number for dim, number in given.dims.items() if dim in model.symbols})
            outputs = outputs_of(model, self.inputs, self._outputs)
        except GraphcutError as error:
            message = f"{name}: the model that {package} {number} made is not valid: {error}"
            raise GraphcutError(message, hint=advice(given)) from error
        if name in PRECISIONS and model.weight_bytes >= given.weight_bytes:
            message = f"{name} changes nothing: {package} finds no weight in {self.model.title} to convert"
            raise UsageError(message, hint="try another precision")
        step = ConversionRecord(
            name=name,
            package=package,
            version=number,
            options=options,
            bytes=model.weight_bytes,
            digest=digest_of("".join(map(file_digest, model.files)).encode()),
            figures=self._figures(before.outputs, outputs, model),
        )
        return _Converted(model, (*before.steps, step), outputs, self._figures(self._made[()].outputs, outputs, model))

    def _search(self, folder: Path) -> tuple[_Converted, list[Attempt], PreparedFiles | None]:
        """The first precision that fits, with its files; without files one that fits, but not within a limit."""
        tried, unaccepted, last = list[Attempt](), None, GraphcutError("")
        for precision in self.precisions:
            found, prepared, verdict = None, None, "chosen"
            try:
                check_possible(self._names(precision), self.model)
                found = self._converted(self._names(precision), folder / "models")
                prepared = self.cut(found.model, folder)
                if broken := unmet(self.limits, found.figures):
                    unaccepted, verdict = found, f"{broken} is not met"
            except GraphcutError as error:
                if len(self.precisions) == 1:
                    raise
                last, verdict = error, str(error)
            sizes = [part.bytes for part in prepared.parts] if prepared else []
            number, most, figures = len(sizes) or None, max(sizes, default=None), found.figures if found else None
            one = Attempt(precision=precision, parts=number, largest_bytes=most, figures=figures, verdict=verdict)
            tried.append(one)
            if found and verdict == "chosen":
                return found, tried, prepared
        if unaccepted is None:
            raise PlanError(f"nothing fits: {'; '.join(f'{a.precision}: {a.verdict}' for a in tried)}", hint=last.hint)
        return unaccepted, tried, None

    def _written(self, model: Model, prepared: PreparedFiles, output: Path) -> tuple[str, dict[str, Path]]:
        """What verifying the parts finds, and the files of the result, by their paths in its folder."""
        folder, models = prepared.folder, prepared.folder / "models"
        cascade = _as_in(output, write(prepared, kept=models), model)
        self.report("verifying the parts")
        found = verify(model, cascade, inputs=self.inputs)
        if not found:
            half = "only numbers differ: try int8 or fp32, or a plan without `boundary_dtype`"
            hint = half if found.proof.holds and found.reason else "please report this"
            raise CascadeError(f"the parts are not the model: {found}", hint=hint)
        home = folder if self.export is None else folder / "export"
        if self.export is not None:
            self.export(cascade, model.path, home)
        files = [path for path in sorted(home.rglob("*")) if path.is_file() and path.parent != models]
        files = [path for path in files if path.name != WRITTEN]  # that of an export; the result has one of its own
        files += sorted(models.iterdir()) if self.keep and models.exists() else []
        names = (path.relative_to(folder if path.parent == models else home) for path in files)
        return "; ".join(str(found).split("\n")), {n.as_posix(): path for n, path in zip(names, files, strict=True)}


def _as_in(output: Path, cascade: Cascade, model: Model) -> Cascade:
    """A cascade that names its model, if that is elsewhere, by the path from the folder where the cascade will be."""
    source = cascade.manifest.source
    if is_inside(cascade.root, source.file):
        return cascade
    manifest = replace(cascade.manifest, source=replace(source, file=model.path_from(output)))
    save_manifest(manifest, cascade.path)
    return Cascade(cascade.path, manifest)


def _is_full(error: BaseException, folder: Path) -> bool:
    """Whether something failed since the disk of a folder is full; packages may not say so."""
    may_be = type(error) is GraphcutError and shutil.disk_usage(folder).free < 1 << 16  # with less a disk is full
    while cause := error.__cause__ or error.__context__:
        error = cause
    return may_be or (isinstance(error, OSError) and error.errno in {errno.ENOSPC, errno.EDQUOT})
