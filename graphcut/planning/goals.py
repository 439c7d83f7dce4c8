"""What a user can want of a cut. Goals are records and prepositions."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class At:
    """Cut after these places.

    Attributes:
        nodes: node names, tensor names, or globs of either (`/model/layers.*/add_1`). A cut after a tensor is a cut
            after the node that writes it.
    """

    nodes: tuple[str, ...]


Goal = At
"""All kinds of goals."""
