"""What changed between two divisions of one model."""

from .differences import changes_between
from .record import Changes

__all__ = ["Changes", "changes_between"]
