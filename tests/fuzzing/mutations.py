"""Damaged copies of valid files: of their bytes, and of protobuf messages field by field."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import suppress
from typing import Any

from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.message import Message
from hypothesis import strategies as st

Step = tuple[int, int, int]
"""What is done, where, and with which value; each is taken modulo the number of choices."""

STEPS = st.lists(st.tuples(st.integers(0, 7), st.integers(0, 2**32), st.integers(0, 2**32)), min_size=1, max_size=4)

BYTES: Sequence[bytes] = (
    *(
        b"\0",
        b"\xff",
        b"\xff" * 9 + b"\1",
        b"\x80" * 12,
        b"\x1b[31m",
        b"\xc3",
        b'"',
        b"{",
        b"[" * 3000,
        b"}",
        b"\n",
        b",",
    ),
    *(
        b"-1",
        b"0",
        b"1e999",
        b"1e-300",
        b"99999999999999999999999",
        b"9" * 5000,
        b"null",
        b"true",
        b"[]",
        b"{}",
        b"nan",
    ),
    *(b"../x", b"/etc/passwd", b"a\\u0000b", b"18446744073709551615", b"9223372036854775807", b"2147483648"),
)
"""What parsers get wrong: numbers of all sizes, ends of strings, nesting, paths."""


def damaged(data: bytes, steps: Sequence[Step]) -> bytes:
    """`data` after some bytes were changed, cut out, repeated or inserted."""
    made = bytearray(data)
    for kind, place, value in steps:
        at = place % (len(made) + 1)
        length = 1 + value % 64
        match kind:
            case 0:
                made[at : at + 1] = bytes([value % 256])
            case 1:
                made[at : at + 1] = bytes([made[at] ^ 1 << value % 8]) if at < len(made) else b""
            case 2:
                del made[at:]
            case 3:
                del made[at : at + length]
            case 4:
                made[at:at] = made[at : at + length]
            case 5:
                made[at:at] = BYTES[value % len(BYTES)]
            case 6:
                made[at : at + length] = BYTES[value % len(BYTES)]
            case _:
                other = value % (len(made) + 1)
                made[at : at + 16] = made[other : other + 16]
    return bytes(made)


NUMBERS = (-1, 0, 1, 2, 3, 7, 17, 255, 2**31 - 1, 2**40, 2**56, 2**62, 2**63 - 1, -(2**63))
TEXTS = (
    "",
    "a\0b",
    "\x1b[2J\n",
    "If",
    "Loop",
    "Scan",
    "Constant",
    "Reshape",
    "Shape",
    "Range",
    "ai.onnx",
    "n" * 20_000,
)

Place = tuple[Message, FieldDescriptor]


def places_in(message: Message) -> Iterator[Place]:
    """Every field that is set, at any depth."""
    for field, value in message.ListFields():
        yield message, field
        if field.message_type is not None:
            for inner in [value] if isinstance(value, Message) else value:
                yield from places_in(inner)


def change_fields(message: Message, steps: Sequence[Step]) -> None:
    """Change some fields of a message: clear, repeat, reorder, or replace values by extreme ones or by each other."""
    for kind, place, value in steps:
        places = list(places_in(message))
        if not places:
            return
        owner, field = places[place % len(places)]
        current = getattr(owner, field.name)
        is_list = not isinstance(current, Message | str | bytes | int | float)
        if kind == 0:
            owner.ClearField(field.name)
            continue
        with suppress(ValueError):  # the number has too many bits for the field
            if is_list:
                _change_list(current, field, kind, value, places)
            elif isinstance(current, Message):
                current.CopyFrom(_same_kind(current, value, places))
            else:
                setattr(owner, field.name, _scalar(current, value, places))


def _change_list(current: Any, field: FieldDescriptor, kind: int, value: int, places: Sequence[Place]) -> None:  # noqa: ANN401
    at = value % len(current)
    if kind == 1:
        del current[at]
    elif kind == 2:
        current.extend([current[at]] * (1 + value % 3))
    elif field.message_type is not None:
        current[at].CopyFrom(_same_kind(current[at], value // 7, places))
    else:
        current[at] = _scalar(current[at], value // 7, places)


def _same_kind(message: Message, value: int, places: Sequence[Place]) -> Message:
    found = [getattr(owner, field.name) for owner, field in places if field.message_type == message.DESCRIPTOR]
    flat = [one for entry in found for one in ([entry] if isinstance(entry, Message) else entry)]
    copy = type(message)()
    copy.CopyFrom(flat[value % len(flat)] if flat else message)
    return copy


def _scalar(current: object, value: int, places: Sequence[Place]) -> object:
    match current:
        case bool():
            return not current
        case int():
            return NUMBERS[value % len(NUMBERS)] if value % 3 else max(0, current + value % 5 - 2)
        case float():
            return (0.0, -1.0, float("nan"), float("inf"), 1e-40)[value % 5]
        case str():
            names = [text for owner, field in places if isinstance(text := getattr(owner, field.name), str)]
            known = [*TEXTS, *names, *names, *names]
            return known[value % len(known)]
        case bytes():
            return damaged(current, [(value % 8, value, value // 8)])
        case _:
            return current
