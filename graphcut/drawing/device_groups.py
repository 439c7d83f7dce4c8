"""What the DOT and the Mermaid renderer share: a group for each device, in text of the format."""

from collections.abc import Callable, Iterable, Iterator

from ..core.graph import grouped


def device_groups(boxes: Iterable[tuple[str, str]], start: Callable[[int, str], str], end: str) -> Iterator[str]:
    """The lines of boxes, each given with its device; those of a device are in a group, those without one in none.

    `start` is the line that begins the group of a device with that number, `end` the one that ends it.
    """
    for number, (device, lines) in enumerate(grouped(boxes).items()):
        if device:
            yield from (start(number, device), *(f"    {line}" for line in lines), end)
        else:
            yield from (f"  {line}" for line in lines)
