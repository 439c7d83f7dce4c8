"""A Sphinx extension: text that comes from graphcut itself, and references to public names.

Two directives: `command-help` is the help of each command, `json-schemas` the schema of each format.
"""

from __future__ import annotations

import json
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
from docutils import nodes
from sphinx.util.docutils import SphinxDirective
from typer.testing import CliRunner

import graphcut
import graphcut.cli
from graphcut.cli.common_options import app as command
from graphcut.core.manifest import Manifest
from graphcut.planning.cluster import SimulatedCluster
from graphcut.planning.plan_files import PlanFile

if TYPE_CHECKING:
    from sphinx.addnodes import pending_xref
    from sphinx.application import Sphinx
    from sphinx.environment import BuildEnvironment

COLUMNS = 100


def schema_types() -> dict[str, type]:
    """The type of each JSON and TOML document that graphcut reads or writes, by the name of its format."""
    return {"graphcut.cascade/1": Manifest, "graphcut.plan/1": PlanFile, "cluster.toml": SimulatedCluster}


def file_name(form: str) -> str:
    """The file that holds the schema of a format: `graphcut.plan/1` is in `graphcut.plan-1.json`."""
    return f"{form.replace('/', '-').removesuffix('.toml')}.json"


def schema_of(form: str) -> dict[str, Any]:
    """The JSON schema of a format."""
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": form,
        **msgspec.json.schema(schema_types()[form]),
    }


def help_of(words: list[str]) -> str:
    """What `graphcut WORDS --help` prints."""
    done = CliRunner(env={"COLUMNS": str(COLUMNS), "NO_COLOR": "1"}).invoke(
        command, [*words, "--help"], prog_name="graphcut", terminal_width=COLUMNS
    )
    return str(done.output).strip() + "\n"


class CommandHelp(SphinxDirective):
    """A section for each command, with the text of its `--help`."""

    def run(self) -> list[nodes.Node]:
        """The sections."""
        names = [group.name or group.callback.__name__ for group in command.registered_commands if group.callback]
        return [_section("graphcut", help_of([])), *(_section(f"graphcut {name}", help_of([name])) for name in names)]


class JsonSchemas(SphinxDirective):
    """A section for each format, with its schema and a link to the file that holds it."""

    def run(self) -> list[nodes.Node]:
        """The sections."""
        sections: list[nodes.Node] = []
        for form in schema_types():
            section = _section(form, json.dumps(schema_of(form), indent=1), language="json")
            link = nodes.reference("", file_name(form), refuri=f"../schemas/{file_name(form)}", internal=True)
            section.insert(1, nodes.paragraph("", "", nodes.Text("As a file: "), link))
            sections.append(section)
        return sections


def _section(title: str, text: str, *, language: str = "text") -> nodes.section:
    section = nodes.section(ids=[nodes.make_id(title)], names=[nodes.fully_normalize_name(title)])
    block = nodes.literal_block(text, text)
    block["language"] = language
    section += [nodes.title("", title), block]
    return section


def write_schemas(app: Sphinx, failure: Exception | None) -> None:
    """Write each schema into the folder `schemas` of the site."""
    if failure is None and app.builder.format == "html":
        folder = Path(app.outdir) / "schemas"
        folder.mkdir(exist_ok=True)
        for form in schema_types():
            (folder / file_name(form)).write_text(json.dumps(schema_of(form), indent=1) + "\n", encoding="utf-8")


def resolve(app: Sphinx, env: BuildEnvironment, node: pending_xref, content: nodes.TextElement) -> nodes.Node | None:
    """A link to a public name, whatever module defines it; plain text for a name that is importable but not public.

    A name that can't be imported stays unresolved, which is a warning.
    """
    target = str(node.get("reftarget", ""))
    if node.get("refdomain") != "py":
        return None
    name = target.rpartition(".")[2]
    if name in graphcut.__all__ and target in {name, f"{getattr(graphcut, name).__module__}.{name}"}:
        public = f"graphcut.{name}"
        return env.get_domain("py").resolve_xref(env, str(node["refdoc"]), app.builder, "obj", public, node, content)
    return content if _is_importable(target) else None


def _is_importable(target: str) -> bool:
    module, _, name = target.rpartition(".")
    try:
        return hasattr(import_module(module or "builtins"), name)
    except ImportError:
        return False


def as_prose(_app: Sphinx, what: str, _name: str, _obj: object, _options: object, lines: list[str]) -> None:
    """Keep Napoleon from reading `Text: more text` of a property's docstring as a type and a description."""
    if what in {"property", "attribute"}:
        lines[:0] = ["..", ""]  # an empty comment: Napoleon looks at the first line alone


def setup(app: Sphinx) -> dict[str, bool]:
    """Register the directives."""
    app.add_directive("command-help", CommandHelp)
    app.add_directive("json-schemas", JsonSchemas)
    app.connect("build-finished", write_schemas)
    app.connect("missing-reference", resolve)
    app.connect("autodoc-process-docstring", as_prose, priority=400)  # before Napoleon, which is at 500
    return {"parallel_read_safe": True, "parallel_write_safe": True}
