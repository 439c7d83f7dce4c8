"""Values of arguments and options of plain types, converted as typer does, which imports pydantic for that (0.1 s)."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any, get_args


def with_plain_values(parameters: Sequence[Any]) -> list[Any]:
    """The parameters of a command. Versions of typer that import pydantic ask `_PlainValues` first."""
    for one in parameters:
        if getattr(one, "_runtime_param", one) is None:
            one._runtime_param = _PlainValues()  # noqa: SLF001 - typer has no public name for it
    return [*parameters]


class _PlainValues:
    """Takes the place of typer's conversion; what is not plain it leaves to that, and so what is to be refused."""

    def coerce(self, value: Any, param: Any, ctx: Any) -> Any:  # noqa: ANN401 - typer has no public names for their types
        """What a command gets for a value: of a command line a text, or a default."""
        kind, words = param.type_descriptor.annotation, param.type_descriptor.parameter_info
        if value is None:
            return () if param.multiple or param.nargs == -1 else None
        if words.parser is None and words.min is None and words.max is None:
            if value in get_args(kind) or type(value) is kind:
                return value
            if kind is Path or (kind is int and isinstance(value, str) and value.isdecimal()):
                return kind(value)
        param._runtime_param = None  # noqa: SLF001
        return param.get_runtime_param().coerce(value, param=param, ctx=ctx)
