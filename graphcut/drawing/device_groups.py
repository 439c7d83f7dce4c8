"""What the DOT and the Mermaid renderer share: a group for each device, in text of the format."""

from collections.abc import Callable, Iterable, Iterator


def grouped(boxes: Iterable[tuple[str, str]], start: Callable[[int, str], str], end: str) -> Iterator[str]:
    """The lines of boxes, each given with its device; those of a device are in a group, those without one in none.

    `start` is the line that begins the group of a device with that number, `end` the one that ends it.
    """
    groups: dict[str, list[str]] = {}
    for device, line in boxes:
        groups.setdefault(device, []).append(line)
    for number, (device, lines) in enumerate(groups.items()):
        if device:
            yield from (start(number, device), *(f"    {line}" for line in lines), end)
        else:
            yield from (f"  {line}" for line in lines)
