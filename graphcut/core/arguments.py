"""Types of arguments that the library and the command line have in common; help pages import them."""

from collections.abc import Callable
from typing import Literal

Storage = Literal["copy", "share"]  #: whether weights are copied, or stay where they are.
OnError = Literal["raise", "skip"]  #: if an input fails: raise the error, or return it in place of the outputs.
Optimization = Literal["none", "basic", "all"]  #: which graph optimizations ONNX Runtime makes.
FloatType = Literal["float32", "float16"]  #: the element type of the weights of a demo.
Progress = Callable[[str, int, int], None]
"""Called with the name of a file, the bytes of it that were just moved, and the bytes of all together."""
