"""The SVG pen: the map, the lanes and the cut profile on one sheet, from Python alone.

Good for a paper as it is: text is text, fonts are the reader's, colours are told apart by every eye, and dashes say
the same as colours do. Dark where the reader's screen is (`prefers-color-scheme`).
"""

from .document import svg_of

__all__ = ["svg_of"]
