"""Text from files and models, made safe to print: escapes, and quotes for a shell."""

import shlex
from typing import Final

LONGEST: Final = 10_000
"""Longer text is shortened in the middle before it is printed: measuring its width would take minutes."""


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


def shell_word(text: str) -> str:
    """`text` as one word for a shell, in printable characters: the others are octal numbers in `$'...'`."""
    if text.isprintable():
        return shlex.quote(text)
    encoded = (c if c.isprintable() and c not in "'\\" else _octal(c) for c in text)
    return f"$'{''.join(encoded)}'"


def _octal(character: str) -> str:
    return "".join(f"\\{byte:03o}" for byte in character.encode(errors="surrogateescape"))
