"""Pipelines of models: several models that feed each other, opened as one model.

A pipeline file says which output feeds which input, which models run once for a request and which at each step, and
which outputs are inputs of the next step. Format: docs/reference/pipeline-file.md.
"""

import re
from collections.abc import Iterable, Mapping
from copy import deepcopy
from dataclasses import replace
from graphlib import CycleError, TopologicalSorter
from itertools import groupby
from pathlib import Path
from types import MappingProxyType
from typing import Final, Literal

import msgspec
from onnx import ModelProto

from ..core.errors import RecordError, check_names, did_you_mean
from ..core.file_checks import check_parts
from ..core.manifest import Loop
from ..core.records import reading
from ..core.states import LOGITS, check_state_pairs
from .joining import End, joined
from .made_models import MadeModel, made_model
from .model import Model, load_unchecked, read_model
from .specialising import specialised
from .subgraphs import domain, locations_in

Runs = Literal["once", "each step", "at the end"]  #: when a model of a pipeline runs for a request.
_MAX_STEPS: Final = 1_000_000
_OPSET: Final = 17  #: of a pipeline of made models alone.
_HINT: Final = "docs/reference/pipeline-file.md describes pipeline files"


class PipelineModel(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """A model of a pipeline."""

    file: str = ""  #: its path, relative to the pipeline file; it is in that folder or below.
    make: MadeModel | None = None  #: instead of a file: a small model that is made, see `made_models`.
    runs: Runs = "once"  #: `at the end`: after the last step.
    outputs: tuple[str, ...] = ()  #: the outputs that are used, by name or glob; by default all.
    assume: dict[str, bool | int | float] = {}  #: inputs with a fixed value, see `specialise`.
    dims: dict[str, int] = {}  #: numbers for symbolic dimensions of its inputs, which have no others then.


class PipelineLoop(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """How often the models of each step run, unless they generate tokens."""

    steps: int = 0  #: how often; by default as often as `inputs` have values.
    counter: str | None = None  #: the input that gets the number of the step, from 0.
    inputs: dict[str, tuple[float, ...]] = {}  #: inputs that get another value at each step: these.


class PipelineFile(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """The content of a pipeline file. An input or output is written `MODEL.NAME`."""

    models: dict[str, PipelineModel]  #: the models by name.
    format: Literal["graphcut.pipeline/1"] = "graphcut.pipeline/1"
    #: the outputs, or inputs, that inputs read; a `*` on both sides stands for the same text. Other inputs read the
    #: output of their name in another model, if there is one.
    connect: dict[str, str] = {}
    states: dict[str, str] = {}  #: the outputs that inputs read at the next step, where names don't show it; with `*`.
    loop: PipelineLoop | None = None  #: None if the steps generate tokens, or there is one step.


def read_pipeline(path: Path) -> PipelineFile:
    """The content of a pipeline file; a RecordError if it can't be read, is not TOML, or not a pipeline."""
    with reading(path, "TOML", unread="name a pipeline file", hint=_HINT):
        return msgspec.toml.decode(path.read_text(encoding="utf-8-sig"), type=PipelineFile)


def open_pipeline(path: Path, pipeline: PipelineFile) -> Model:
    """The models of a pipeline whose file is `path`, or could be, as one model.

    Raises:
        ModelError: a model is missing or not valid, the models form a cycle, or import different operator sets.
        RecordError: the file says what can't be.
        UsageError: there is no such input or output, or types contradict each other.
    """
    return _Opening(path, pipeline).model()


class _Opening:
    def __init__(self, path: Path, pipeline: PipelineFile) -> None:
        self._path, self._given = path, pipeline
        self._data: dict[str, tuple[Path, int]] = {}  # by location as seen from the pipeline file
        self._labels = list(pipeline.models)
        if not self._labels or any("." in label or not label for label in self._labels):
            raise self._wrong("each model needs a name without a dot, as in [models.encoder]")
        if wrong := next((label for label, one in pipeline.models.items() if bool(one.file) == bool(one.make)), None):
            raise self._wrong(f"{wrong!r} needs either a file or what is to be made")
        self._unread: dict[str, set[str]] = {}  # the inputs that what is used does not depend on
        found = {label: self._opened(label, one) for label, one in pipeline.models.items() if one.make is None}
        made = {label: one.make for label, one in pipeline.models.items() if one.make is not None}
        found |= {label: self._made(make, found.values()) for label, make in made.items()}
        self._models = [found[label] for label in self._labels]
        self._runs = [one.runs for one in pipeline.models.values()]
        self._states = self._pairs(pipeline.states, "outputs")
        self._sources = self._connected()

    def _wrong(self, what: str, hint: str = _HINT) -> RecordError:
        return RecordError(f"{self._path}: {what}", hint=hint)

    def _opened(self, label: str, one: PipelineModel) -> Model:
        """A model of the pipeline, with the inputs and outputs that are used."""
        if Path(one.file).is_absolute() or ".." in Path(one.file).parts:
            hint = "put the pipeline file into a folder that has all of its models, or below which they are"
            raise self._wrong(f"{one.file} is not in this folder or below", hint)
        model = load_unchecked(self._path.parent / one.file)
        check_parts([model.path], has_weights=False)
        found = specialised(model, one.assume, one.outputs, one.dims)
        self._unread[label] = {*model.graph.reads}.difference(found.graph.reads)
        return found

    def _made(self, make: MadeModel, others: Iterable[Model]) -> Model:
        """A model that is made, for the operator set of the others."""
        opsets = (opset.version for model in others for opset in model.proto.opset_import if not domain(opset.domain))
        try:
            proto = made_model(make, next(opsets, _OPSET))
        except ValueError as error:
            raise self._wrong(str(error), "convert the models to a later opset first") from None
        return read_model(self._path.with_name(f"{make}.onnx"), proto)

    def _end(self, text: str) -> tuple[int, str]:
        label, _, name = text.partition(".")
        if label not in self._labels:
            raise self._wrong(f"{text!r} names no model", f"{did_you_mean(label, self._labels)}write MODEL.NAME")
        return self._labels.index(label), name

    def _pairs(self, given: Mapping[str, str], sources: Literal["outputs", "ends"]) -> dict[End, End]:
        """What inputs read, with each `*` replaced."""
        found: dict[End, End] = {}
        for reader, source in given.items():
            (i, name), (j, other) = self._end(reader), self._end(source)
            pattern = re.compile("(.*)".join(map(re.escape, name.split("*"))))
            matches = [match for one in self._models[i].graph.reads if (match := pattern.fullmatch(one))]
            known = self._models[j].graph
            ends = {*known.writes, *(known.reads if sources == "ends" else ())}
            for match in matches:
                texts = iter(match.groups())
                end = "".join(next(texts, "*") if part == "*" else part for part in re.split(r"(\*)", other))
                what = f"{self._labels[j]} has no output"
                check_names([end], sorted(ends), what, "it has", f" for {reader!r}", error=self._wrong)
                found[i, match[0]] = j, end
            if not matches and not any(map(pattern.fullmatch, self._unread.get(self._labels[i], ()))):
                reads, what = self._models[i].graph.reads, f"{self._labels[i]} has no input"
                check_names([name], reads, what, "it has", error=self._wrong)
        return found

    def _connected(self) -> dict[End, End]:
        """The output, or input, that each connected input reads: as the file says, else the output of its name."""
        found = self._pairs(self._given.connect, "ends")
        told = {*found, *self._states}
        for i, model in enumerate(self._models):
            for name in (name for name in model.graph.reads if (i, name) not in told):
                writers = [j for j, other in enumerate(self._models) if j != i and name in other.graph.writes]
                if len(writers) > 1:
                    both = " and ".join(self._labels[j] for j in writers)
                    hint = f'"{self._labels[i]}.{name}" = "{self._labels[writers[0]]}.{name}"'
                    what = f"{both} both write {name!r}, which {self._labels[i]} reads"
                    raise self._wrong(what, f"say which under [connect]: {hint}")
                found.update(((i, name), (j, name)) for j in writers)
        self._check_order(found)
        read, free = {*found.values()}, dict[str, str]()
        for j, model in enumerate(self._models):
            for name in (name for name in model.graph.writes if (j, name) not in read):
                if (other := free.setdefault(name, self._labels[j])) != self._labels[j]:
                    hint = "choose which of their outputs are used: outputs = [...]"
                    raise self._wrong(f"{other} and {self._labels[j]} both write the output {name!r}", hint)
        return found

    def _check_order(self, sources: Mapping[End, End]) -> None:
        """Raise an error for models that feed each other in a circle, or a model that runs before what feeds it."""
        edges = {reader: {source} for reader, source in sources.items()}
        made = ((j, name, self._models[j].graph) for j, name in sources.values())
        edges |= {(j, name): {(j, one) for one in graph.reads} for j, name, graph in made if name in graph.writes}
        try:
            tuple(TopologicalSorter(edges).static_order())
        except CycleError as error:
            names = " → ".join(label for label, _ in groupby(self._labels[i] for i, _ in error.args[1]))
            hint = "an output that becomes an input of the next step is a state: list it under [states]"
            raise self._wrong(f"the models feed each other in a circle: {names}", hint) from None
        order: list[Runs] = ["once", "each step", "at the end"]
        for (i, name), (j, source) in sources.items():
            if source in self._models[j].graph.writes and order.index(self._runs[j]) > order.index(self._runs[i]):
                what = f"{self._labels[i]} runs {self._runs[i]}, and its input {name!r} comes from {self._labels[j]}"
                raise self._wrong(f"{what}, which runs {self._runs[j]}", "let one of them run at another time")

    def model(self) -> Model:
        """All models as one."""
        protos = [self._moved(model) for model in self._models]
        proto, names = joined(self._models, protos, self._sources, self._labels, self._states.values())
        named = {names[i].get(a, a): names[j].get(b, b) for (i, a), (j, b) in self._states.items()}
        model = replace(read_model(self._path, proto, self._data), states=MappingProxyType(named))
        check_state_pairs(named, model.graph.reads, model.graph.writes, model.tensors if named else {})
        steps = [i for i, runs in enumerate(self._runs) if runs == "each step"]
        wrong = next((i for pair in self._states.items() for i, _ in pair if steps and i not in steps), None)
        if wrong is not None:
            what = f"{self._labels[wrong]} has a state, and runs {self._runs[wrong]}"
            raise self._wrong(what, 'write runs = "each step" for it, or leave out the state')
        ends = [(i, name) for i in steps for name in self._models[i].graph.reads if (i, name) not in self._sources]
        free = {(i, name): names[i].get(name, name) for i, name in ends}
        files = tuple(self._path.parent / one.file for one in self._given.models.values() if one.file)
        nodes = ((label, node) for label, one in zip(self._labels, protos, strict=True) for node in one.graph.node)
        labels = {name: label for label, node in nodes for name in node.output}
        loop = self._loop(model, free)
        return replace(model, joined_from=files, labels=labels, stepwise=tuple(free.values()), loop=loop)

    def _moved(self, model: Model) -> ModelProto:
        """A copy of the message of a model whose data files are seen from the folder of the pipeline."""
        proto, here = deepcopy(model.proto), self._path.absolute().parent
        for place in locations_in(proto):
            file = model.path.absolute().parent / place.value
            location = file.relative_to(here).as_posix()
            self._data[location] = model.data[place.value]
            place.value = location
        return proto

    def _loop(self, model: Model, free: Mapping[End, str]) -> Loop | None:
        """How often the models of each step run; a RecordError if nothing ends them.

        `free` are the inputs that each step reads from outside, with their names in `model`.
        """
        has_steps = "each step" in self._runs
        if (given := self._given.loop) is None:
            has_end = not has_steps or any(LOGITS.search(name.lower()) for name in model.graph.writes)
            if "at the end" in self._runs or not (has_end or (self._path.parent / "genai_config.json").exists()):
                hint = "say how many there are: [loop] steps = 20; models that generate tokens write logits"
                raise self._wrong("nothing ends the steps", hint)
            return None
        if not has_steps:
            raise self._wrong("[loop] is given, and no model runs at each step", 'write runs = "each step" for one')
        inputs = {f"{self._labels[i]}.{one}": name for (i, one), name in free.items()}
        told = [*given.inputs, *filter(None, [given.counter])]
        check_names(told, inputs, "no model of each step has a free input", "free inputs:", error=self._wrong)
        if given.counter in given.inputs:
            raise self._wrong(f"{given.counter!r} is the counter, and has values in inputs", "leave one of them out")
        values = {inputs[text]: row for text, row in given.inputs.items()}
        lengths = {len(row) for row in values.values()} | ({given.steps} if given.steps else set())
        if len(lengths) != 1 or not 1 <= min(lengths) <= _MAX_STEPS:
            what = "nothing ends the steps" if not lengths else f"steps and inputs say {sorted(lengths)} steps"
            hint = f"give [loop] a number of steps from 1 to {_MAX_STEPS:,}, and each of its inputs as many values"
            raise self._wrong(what, hint)
        (steps,) = lengths
        if given.counter is not None:
            values[inputs[given.counter]] = tuple(map(float, range(steps)))
        for name, row in values.items():
            if name in model.states:
                raise self._wrong(f"{name!r} is a state, and gets values from [loop] too", "leave one of them out")
            if not model.tensors[name].dtype.startswith(("float", "bfloat")) and not all(map(float.is_integer, row)):
                hint = "give whole numbers"
                raise self._wrong(f"{name!r} is {model.tensors[name]}, and can't hold its values of [loop]", hint)
        return Loop(steps=steps, inputs=values)
