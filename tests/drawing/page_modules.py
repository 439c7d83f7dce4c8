"""The modules of the page's script, asked in Node.js without a browser."""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

import graphcut

PAGE = Path(graphcut.__file__).parent / "drawing" / "page"
NODE = shutil.which("node")
in_node = pytest.mark.skipif(NODE is None, reason="needs Node.js")


def run_node(*words: str, given: str = "") -> str:
    """What Node.js prints."""
    done = subprocess.run([str(NODE), *words], input=given, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def asked(expression: str, *modules: str, **values: object) -> Any:  # noqa: ANN401 - what the expression gives
    """What a JavaScript expression gives for `values`, with what some modules of the page export."""
    lines = [f'import * as {name} from "{(PAGE / f"{name}.js").as_uri()}";' for name in modules]
    lines += [
        'import { readFileSync } from "node:fs";',
        f"const {{ {', '.join(values)} }} = JSON.parse(readFileSync(0));",
    ]
    lines += [f"console.log(JSON.stringify({expression}));"]
    return json.loads(run_node("--input-type=module", "-e", "\n".join(lines), given=json.dumps(values)))
