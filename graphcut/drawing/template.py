"""The template of the HTML page: one file with its style and its script, from the files in `page/`."""

import base64
import hashlib
import re
import zlib
from collections.abc import Mapping
from functools import cache
from graphlib import TopologicalSorter
from importlib import resources
from typing import Final

from .svg.style import DARK, LIGHT, MONO, SANS, filled, page_style, variables

_IMPORT: Final = re.compile(r'^import \{ (.*) \} from "\./(\w+)\.js";\n', re.MULTILINE)
#: comments, and the space before a line.
_SPARE: Final = re.compile(r"^ *(?:/\*.*?\*/\n *)?", re.MULTILINE | re.DOTALL)
_EXPORT: Final = re.compile(r"^export ((?:async )?(?:const|function) (\w+|\$))", re.MULTILINE)


@cache
def template(page: str = "page.html") -> str:
    """A page without what is filled in. Its policy allows its own style and script and nothing else."""
    folder = resources.files(__package__) / "page"
    files = {one.name: one.read_text(encoding="utf-8") for one in folder.iterdir() if one.is_file()}
    look = {"light": variables(LIGHT), "dark": variables(DARK), "sans": SANS, "mono": MONO, "svg_style": page_style()}
    style = filled(files["page.css"], look)
    script = one_script({name.removesuffix(".js"): text for name, text in files.items() if name.endswith(".js")})
    whole = files[page].replace("{{head}}", files["head.html"])
    loaders = re.findall(r"<script>(.*?)</script>", whole, re.DOTALL)  # it opens and starts the compressed script
    allowed = f"style-src {_digest(style)}; script-src {' '.join(map(_digest, (*loaders, script)))}"
    policy = f"default-src 'none'; {allowed}; base-uri 'none'; form-action 'none'"
    return filled(whole, {"style": style, "script": packed(script), "policy": policy})


def packed(text: str) -> str:
    """A text, compressed, in base64."""
    return base64.b64encode(zlib.compress(text.encode(), 9)).decode()


def one_script(modules: Mapping[str, str]) -> str:
    """ES modules as one script without imports, since a browser loads no modules from files.

    Each module becomes a function with a scope of its own, which is called once and gives what the module exports. They
    are called in an order in which each comes after those it imports; the same modules give the same bytes. An import
    or an export begins a line and has one of two forms: `import { a, b } from "./module.js";`, on one line, and
    `export const a = ...` (or `function`, `async function`).

    Raises:
        graphlib.CycleError: if modules import each other in a circle.
    """
    needs = {name: [match[2] for match in _IMPORT.finditer(modules[name])] for name in sorted(modules)}
    ordered = "".join(_scope(name, modules[name]) for name in TopologicalSorter(needs).static_order())
    return f'"use strict";\n(async () => {{\nconst modules = {{}};\n{ordered}}})();\n'


def _scope(name: str, text: str) -> str:
    exported = ", ".join(match[2] for match in _EXPORT.finditer(text))
    body = _EXPORT.sub(r"\1", _IMPORT.sub(r"const { \1 } = modules.\2;\n", _SPARE.sub("", text)))
    return f"modules.{name} = await (async () => {{\n{body}return {{ {exported} }};\n}})();\n"


def _digest(content: str) -> str:
    """The digest of an element's content, as a content security policy writes it."""
    return f"'sha256-{base64.b64encode(hashlib.sha256(content.encode()).digest()).decode()}'"
