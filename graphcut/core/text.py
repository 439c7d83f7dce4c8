"""Text from files and models, made safe to print: escapes, and quotes for a shell."""

import shlex
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from itertools import accumulate, chain, takewhile, zip_longest
from pathlib import Path
from typing import Final

from .graph import grouped

LONGEST: Final = 10_000
"""Longer text is shortened in the middle before it is printed: measuring its width would take minutes."""


_PLACES: Final = tuple(sorted((i / 16 for i in range(17)), key=lambda share: abs(share - 0.5)))
"""Where names lose their middle, as shares of the room, in the order in which they are tried."""


def shortened(
    names: Sequence[str], room: float, width: Callable[[str], float] = lambda _: 1.0, dots: str = "…"
) -> list[str]:
    """The names without a middle if they are wider than `room`; different names stay different, where there is room.

    All lose their middle at the same place: of those that keep most names apart, that nearest to the half. Names that
    still look alike lose their common beginning, too, and then are numbered. `width` is that of a letter.

    Example: at 12 letters neither the first nor the last ones tell the layers apart.

    >>> shortened(["/model/layers.0/attn/MatMul", "/model/layers.1/attn/MatMul"], 12)
    ['…layers.0…ul', '…layers.1…ul']
    >>> shortened(["/model/embed/Gather", "/model/norm/Mul"], 12)
    ['/mode…Gather', '/mode…rm/Mul']
    """
    without = partial(_without_middle, width=width, dots=dots)
    found = _most_apart(names, partial(without, room=room))
    left = room - sum(map(width, dots))
    for joined in (False, True):
        alike = _alike(found)
        for group in [[*chain(*alike)]] if joined and alike else alike:
            for signs in ("/", "._:"):
                ends = _most_apart(rest := _without_beginning(group, signs), partial(without, room=left))
                made = found | {name: dots + ends[end] for name, end in zip(group, rest, strict=True)}
                found = made if len(_alike(made)) < len(_alike(found)) else found
    for group in _alike(found):
        for i, name in enumerate(group, 1):
            number = f" {i}"
            found[name] = without(name, place=0.5, room=room - sum(map(width, number))) + number
    return [found[name] for name in names]


def _alike(found: Mapping[str, str]) -> list[list[str]]:
    """The names that have one text, for each such text."""
    names = grouped((text, name) for name, text in found.items())
    return [group for text, group in names.items() if text and len(group) > 1]


def _without_beginning(names: Sequence[str], signs: str) -> list[str]:
    """The names from the word on, after one of the signs, in which they first differ."""
    common = next(i for i, letters in enumerate(zip_longest(*names)) if len({*letters}) > 1)
    start = max(names[0].rfind(sign, 0, common) + 1 for sign in signs)
    return [name[start:] for name in names]


def _most_apart(names: Sequence[str], without: Callable[..., str]) -> dict[str, str]:
    """The names without their middle, at the first of the places that leave most of them different."""
    best = dict[str, str]()
    for place in _PLACES:
        made = {name: without(name, place=place) for name in names}
        if len({*made.values()}) > len({*best.values()}):
            best = made
        if len({*best.values()}) == len(made):
            break
    return best


def _without_middle(name: str, *, place: float, room: float, width: Callable[[str], float], dots: str) -> str:
    """A name that fits the room, empty if not even the dots do; `place` is the share of the room before the dots."""
    widths = [width(letter) for letter in name]
    left = room - sum(map(width, dots))
    if sum(widths) <= room or left < 0:
        return name if sum(widths) <= room else ""
    head = sum(1 for _ in takewhile(lambda used: used <= left * place, accumulate(widths)))
    rest = left - sum(widths[:head])
    tail = sum(1 for _ in takewhile(lambda used: used <= rest, accumulate(reversed(widths))))
    return name[:head] + dots + name[len(name) - tail :]


def printable(text: str) -> str:
    """`text` without its middle if it is long, and with escapes for what does not print (see `escaped`)."""
    if len(text) > LONGEST:
        text = f"{text[: LONGEST // 2]}…{text[-LONGEST // 2 :]}"
    return escaped(text)


def escaped(text: str) -> str:
    """`text` with escapes for control and format characters: line ends, terminal colours, text direction."""
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else ascii(c)[1:-1] for c in text)


def few(texts: Sequence[str], most: int) -> str:
    """The first texts, and how many more there are: `a, b, 3 more`."""
    return ", ".join([*texts[:most], *([f"{len(texts) - most:,} more"] if len(texts) > most else [])])


def shell_word(text: str) -> str:
    """`text` as one word for a shell, in printable characters: the others are octal numbers in `$'...'`."""
    if text.isprintable():
        return shlex.quote(text)
    encoded = (c if c.isprintable() and c not in "'\\" else _octal(c) for c in text)
    return f"$'{''.join(encoded)}'"


def _octal(character: str) -> str:
    return "".join(f"\\{byte:03o}" for byte in character.encode(errors="surrogateescape"))


def nothing_at(path: Path, otherwise: str) -> str:
    """Says where a symbolic link leads that leads to nothing; `otherwise` if the path is none."""
    if not path.is_symlink():
        return otherwise
    leads = path.readlink()
    return f"{path} is a symbolic link to {'itself' if leads.name == path.name else leads}, where nothing is"
