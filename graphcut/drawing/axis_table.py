"""Along which axes the layers of a model can be divided, as a table of text."""

from collections.abc import Iterator

from ..loading.model import Model
from ..sharding.axes.classes import axis_classes
from ..sharding.axes.table import ClassRow, aligned, class_rows

_TITLES = ClassRow("divided alike", "units", "nodes", "weights", "blocked by", "axes of weights")


def axis_table(model: Model) -> Iterator[str]:
    """A line of titles, and a line for the axis classes of each place."""
    return aligned([_TITLES, *class_rows(model, axis_classes(model))])
