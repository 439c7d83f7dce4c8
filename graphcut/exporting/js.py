"""Export a cascade for ONNX Runtime in JavaScript: onnxruntime-node and onnxruntime-web (npm, 1.30).

The folder holds the cascade, `runner.mjs`, which runs it, and `index.html`, a page that does so in a browser.
"""

from importlib import resources
from pathlib import Path

from ..core.atomic_files import Content, write_folder
from ..core.manifest import CascadeLike, open_cascade
from .cascade_files import PARTS, cascade_files


def export_js(cascade: CascadeLike, folder: str | Path, *, force: bool = False) -> list[Path]:
    """Write a cascade beside a module that runs it in Node.js and in browsers."""
    here = resources.files(__package__)
    files: dict[str, Content] = {
        **cascade_files(open_cascade(cascade), for_each="a browser would fetch all of them for each part"),
        "runner.mjs": here.joinpath("runner.mjs").read_bytes(),
        "index.html": here.joinpath("demo.html").read_bytes(),
    }
    return write_folder(folder, files, own=(PARTS,), what="a file of such an export", force=force)
