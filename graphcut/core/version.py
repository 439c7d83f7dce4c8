"""Which graphcut this is. A room of its own, since all floors may ask."""

from __future__ import annotations

from typing import Final

__version__: Final = "0.1.0"
