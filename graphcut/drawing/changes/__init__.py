"""What changed between two divisions of one model: found in their scenes, drawn on a terminal, or as plain data."""

from .differences import changes_between
from .record import Changes, changes_record
from .screen import draw_changes

__all__ = ["Changes", "changes_between", "changes_record", "draw_changes"]
