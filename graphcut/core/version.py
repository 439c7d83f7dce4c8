"""The version of graphcut, in a module of its own because every package may import it."""

from typing import Final

__version__: Final = "0.1.0"
