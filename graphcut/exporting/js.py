"""Export a cascade for ONNX Runtime in JavaScript: onnxruntime-node and onnxruntime-web (npm, 1.30).

The folder holds the cascade, `runner.mjs`, which runs it, and `index.html`, a page that does so in a browser.
"""

from importlib import resources

from ..core.manifest import Cascade
from .cascade_files import Export, cascade_files


def export_of(cascade: Cascade) -> Export:
    """A cascade beside a module that runs it in Node.js and in browsers."""
    files = cascade_files(cascade, for_each="a browser would fetch all of them for each part")
    runner, page = (resources.files(__package__).joinpath(name).read_bytes() for name in ("runner.mjs", "demo.html"))
    return {**files, "runner.mjs": runner, "index.html": page}
