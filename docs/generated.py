"""A Sphinx extension: text that comes from graphcut itself, and references to public names.

Three directives: `command-help` is the help of each command, `json-schemas` the schema of each format, `axis-rules` the
table of rules by which operators are divided.
"""

from __future__ import annotations

import json
import re
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
from docutils import nodes
from sphinx.pycode import ModuleAnalyzer
from sphinx.util.docutils import SphinxDirective
from typer.testing import CliRunner

import graphcut
import graphcut.cli
from graphcut.automating.record import AutoRecord
from graphcut.benchmarking.comparison import BenchmarkRecord
from graphcut.benchmarking.environment import Environment
from graphcut.cli.application import COMMANDS, app
from graphcut.core.manifest import Manifest
from graphcut.costs.cluster import SimulatedCluster
from graphcut.costs.device_rules import DeviceRules
from graphcut.costs.device_support import DeviceSupport
from graphcut.drawing.changes.record import Changes
from graphcut.drawing.html import html_of
from graphcut.drawing.json_records import AnalysisRecord, CascadeRecord, SimulationRecord
from graphcut.drawing.run_records import GenerationRecord
from graphcut.drawing.scene_builders import scene_of_plan
from graphcut.drawing.verification_records import RECORDS
from graphcut.planning.plan_files import PlanFile
from graphcut.sharding.axes.rules import RULES
from graphcut.surgery.sharding import ShardingRecord

if TYPE_CHECKING:
    from sphinx.addnodes import pending_xref
    from sphinx.application import Sphinx
    from sphinx.environment import BuildEnvironment

COLUMNS = 100
DOCUMENTS: tuple[type[msgspec.Struct], ...] = (
    AnalysisRecord,
    DeviceSupport,
    CascadeRecord,
    *RECORDS.values(),
    Changes,
    SimulationRecord,
    ShardingRecord,
    BenchmarkRecord,
    Environment,
    GenerationRecord,
)
"""What `--json` prints, each with its name under `format`."""


def schema_types() -> dict[str, type]:
    """The type of each JSON and TOML document that graphcut reads or writes, by the name of its format."""
    files: dict[str, type] = {
        "graphcut.cascade/1.1": Manifest,
        "graphcut.plan/1": PlanFile,
        "graphcut.auto/1": AutoRecord,
        "cluster.toml": SimulatedCluster,
        "rules.toml": DeviceRules,
    }
    return files | {str(record.__struct_config__.tag): record for record in DOCUMENTS}


def file_name(form: str) -> str:
    """The file that holds the schema of a format: `graphcut.plan/1` is in `graphcut.plan-1.json`."""
    return f"{form.replace('/', '-').removesuffix('.toml')}.json"


def schema_of(form: str) -> dict[str, Any]:
    """The JSON schema of a format, with what the source says of each field as its description."""
    kind = schema_types()[form]
    schema = msgspec.json.schema(kind)
    classes = {record.__name__: record for record in _records_in(msgspec.inspect.type_info(kind))}
    for name, record in schema["$defs"].items():
        record["description"] = _docstring(record.get("description", ""))[0]
        config = getattr(classes[name], "__struct_config__", None)
        tag = getattr(config, "tag_field", None)
        meanings = {tag: "the name of the format." if tag == "format" else "the name of this record."}
        attributes, written = (getattr(classes[name], f"__struct_{of}fields__", ()) for of in ("", "encode_"))
        in_files = dict(zip(attributes, written, strict=True))  # `CandidateCut.boundary_bytes` has its first name there
        for field, meaning in (meanings | _meanings(classes[name])).items():
            if (property_ := in_files.get(field, field)) in record.get("properties", {}):
                record["properties"][property_]["description"] = meaning
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", "title": form, **schema}


def _records_in(info: object, found: dict[type, None] | None = None) -> dict[type, None]:
    """The classes that a value of a type can hold, at any depth, as the keys of a dict."""
    found = {} if found is None else found
    kind = getattr(info, "cls", None)
    if isinstance(kind, type) and kind not in found:
        found[kind] = None
        for field in getattr(info, "fields", ()):
            _records_in(field.type, found)
    inner = [getattr(info, name) for name in ("item_type", "key_type", "value_type") if hasattr(info, name)]
    for one in (*inner, *getattr(info, "item_types", ()), *getattr(info, "types", ())):
        _records_in(one, found)
    return found


def _meanings(record: type) -> dict[str, str]:
    """What the source says of the fields of a class: in its docstring, in `#:` comments, in strings below them."""
    found: dict[str, str] = {}
    for base in reversed(record.__mro__):
        if base.__module__.startswith("graphcut."):
            found |= _docstring(base.__doc__ or "")[1]
            comments = ModuleAnalyzer.for_module(base.__module__).find_attr_docs()
            found |= {name: " ".join(lines).strip() for (of, name), lines in comments.items() if of == base.__name__}
            source = vars(getattr(import_module(base.__module__), base.__name__))  # a document may be made of it
            properties = {name: one for name, one in source.items() if isinstance(one, property)}
            found |= {name: _docstring(one.__doc__ or "")[0] for name, one in properties.items()}
    return found


def _docstring(text: str) -> tuple[str, dict[str, str]]:
    """The first paragraph of a docstring, and what its section `Attributes` says of each."""
    summary = " ".join(text.partition("\n\n")[0].split())
    section = re.search(r"^ *Attributes:\n(.*?)(?:\n *\n|\Z)", text, flags=re.DOTALL | re.MULTILINE)
    found = re.findall(
        r"^ {8}(\w+): (.*?)(?=^ {8}\w|\Z)", section[1] + "\n" if section else "", re.DOTALL | re.MULTILINE
    )
    return summary, {name: " ".join(meaning.split()) for name, meaning in found}


def type_in_words(schema: dict[str, Any]) -> str:  # noqa: PLR0911 - one for each kind of schema
    """What a value of a schema is, as Markdown: `integer or null`, `array of Part`."""
    match schema:
        case {"$ref": str(reference)}:
            return f"`{reference.rpartition('/')[2]}`"
        case {"enum": [*values]}:
            return " or ".join(f"`{json.dumps(value)}`" for value in values)
        case {"anyOf": [*choices]}:
            return " or ".join(map(type_in_words, choices))
        case {"type": "array", "prefixItems": [*items]}:
            return f"array of {', '.join(map(type_in_words, items))}"
        case {"type": "array", "items": dict(items)} if items:
            return f"array of {type_in_words(items)}"
        case {"type": "object", "additionalProperties": dict(values)}:
            return f"object of {type_in_words(values)}"
        case _:
            return str(schema.get("type", "anything"))


def tables_of(form: str) -> str:
    """The records of a format as Markdown tables, the outermost first."""
    schema = schema_of(form)
    outermost = schema["$ref"].rpartition("/")[2]
    lines = [f"## {form}", "", f'As a file: <a href="../schemas/{file_name(form)}">{file_name(form)}</a>', ""]
    for name, record in sorted(schema["$defs"].items(), key=lambda item: (item[0] != outermost, item[0])):
        lines += [f"`{name}`: {record['description'] or ''}", "", "| field | type | meaning |", "|---|---|---|"]
        for field, value in record.get("properties", {}).items():
            default = "" if field in record.get("required", ()) or "default" not in value else value["default"]
            note = "" if default == "" else f" Default: `{json.dumps(default)}`."
            meaning = f"{value.get('description', '')}{note}".replace("|", "\\|")
            lines.append(f"| `{field}` | {type_in_words(value)} | {meaning} |")
        lines.append("")
    return "\n".join(lines)


def help_of(words: list[str]) -> str:
    """What `graphcut WORDS --help` prints."""
    done = CliRunner(env={"COLUMNS": str(COLUMNS), "NO_COLOR": "1"}).invoke(
        app, [*words, "--help"], prog_name="graphcut", terminal_width=COLUMNS
    )
    return str(done.output).strip() + "\n"


class CommandHelp(SphinxDirective):
    """A section for each command, with the text of its `--help`."""

    def run(self) -> list[nodes.Node]:
        """The sections."""
        pages = ([], *([name] for name in COMMANDS))
        return [_section(" ".join(["graphcut", *words]), help_of(words)) for words in pages]


class JsonSchemas(SphinxDirective):
    """A section for each format, with a table for each of its records and a link to its schema."""

    def run(self) -> list[nodes.Node]:
        """The sections."""
        text = "\n".join(map(tables_of, schema_types()))
        return self.parse_text_to_nodes(text, allow_section_headings=True)


def _section(title: str, text: str) -> nodes.section:
    section = nodes.section(ids=[nodes.make_id(title)], names=[nodes.fully_normalize_name(title)])
    block = nodes.literal_block(text, text)
    block["language"] = "text"
    section += [nodes.title("", title), block]
    return section


def axis_rules() -> dict[str, list[str]]:
    """What each rule divides, in the words of its source, and the operators that it is for."""
    found: dict[str, list[str]] = {}
    for op, rule in sorted(RULES.items()):
        text = " ".join((getattr(rule, "func", rule).__doc__ or "").partition("\n\n")[0].split())
        found.setdefault(text, []).append(op)
    return found


class AxisRules(SphinxDirective):
    """A table of the rules."""

    def run(self) -> list[nodes.Node]:
        """The table."""
        rows = [f"| {', '.join(f'`{op}`' for op in ops)} | {text} |" for text, ops in axis_rules().items()]
        return self.parse_text_to_nodes("\n".join(["| operators | divided along |", "|---|---|", *rows]))


def write_schemas(app: Sphinx, failure: Exception | None) -> None:
    """Write each schema into the folder `schemas` of the site."""
    if failure is None and app.builder.format == "html":
        folder = Path(app.outdir) / "schemas"
        folder.mkdir(exist_ok=True)
        for form in schema_types():
            (folder / file_name(form)).write_text(json.dumps(schema_of(form), indent=1) + "\n", encoding="utf-8")


def resolve(app: Sphinx, env: BuildEnvironment, node: pending_xref, content: nodes.TextElement) -> nodes.Node | None:
    """A link to a public name, whatever module defines it; plain text for types that are not public.

    Any other name that can't be imported, such as that of an error, stays unresolved, which is a warning. Types in
    signatures may be aliases, or imported for type checking alone.
    """
    target = str(node.get("reftarget", ""))
    if node.get("refdomain") != "py":
        return None
    name = target.rpartition(".")[2]
    if name in graphcut.__all__ and target in {name, f"{getattr(graphcut, name).__module__}.{name}"}:
        public = f"graphcut.{name}"
        return env.get_domain("py").resolve_xref(env, str(node["refdoc"]), app.builder, "obj", public, node, content)
    return content if node.get("reftype") == "class" or _is_importable(target) else None


def _is_importable(target: str) -> bool:
    module, _, name = target.rpartition(".")
    try:
        return hasattr(import_module(module or "builtins"), name)
    except ImportError:
        return False


def as_prose(_app: Sphinx, what: str, _name: str, obj: object, _options: object, lines: list[str]) -> None:
    """Keep Napoleon from reading `Text: more text` of a property's docstring as a type and a description.

    Data has no docstring: Sphinx takes that of its type, which for a dict is no reStructuredText.
    """
    if what == "data" and isinstance(obj, dict):
        lines.clear()
    if what in {"property", "attribute"}:
        lines[:0] = ["..", ""]  # an empty comment: Napoleon looks at the first line alone


def write_live_page(app: Sphinx, failure: Exception | None) -> None:
    """Write the page of a plan of an exported CLIP, which the first page of the site shows."""
    if failure is None and app.builder.format == "html":
        analysis = graphcut.analyze(graphcut.load(Path(__file__).parent.parent / "fixtures" / "clip.onnx"))
        scene = scene_of_plan(graphcut.plan(analysis, graphcut.Into(3)), analysis)
        (Path(app.outdir) / "live.html").write_text(html_of(scene), encoding="utf-8")


def setup(app: Sphinx) -> dict[str, bool]:
    """Register the directives."""
    app.add_directive("command-help", CommandHelp)
    app.add_directive("json-schemas", JsonSchemas)
    app.add_directive("axis-rules", AxisRules)
    app.connect("build-finished", write_schemas)
    app.connect("build-finished", write_live_page)
    app.connect("missing-reference", resolve)
    app.connect("autodoc-process-docstring", as_prose, priority=400)  # before Napoleon, which is at 500
    return {"parallel_read_safe": True, "parallel_write_safe": True}
