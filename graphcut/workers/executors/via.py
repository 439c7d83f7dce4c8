"""Where workers run."""

from typing import Literal

Via = Literal["threads", "processes", "ray"]  #: threads of this process, processes, or actors of a Ray cluster.


def is_elsewhere(via: Via | None) -> bool:
    """Whether workers may be on other machines, which have parts, cores and memory of their own."""
    return via == "ray"
