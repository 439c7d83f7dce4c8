"""The text of tokens that come one by one."""

from collections.abc import Callable, Sequence

from ..core.errors import UsageError


class TextStream:
    """The text of a sequence, in pieces that are certain.

    The pieces together are what `decode` makes of all tokens, if that has no replacement characters. A token that ends
    inside a character is held back until the character is complete, and text that may be the beginning of a stop string
    until it is known that it is not one. The stop string itself is left out.

    Attributes:
        is_stopped: a stop string was found; nothing more is to be added.
    """

    def __init__(
        self, decode: Callable[[list[int]], str], prompt: Sequence[int] = (), stop: Sequence[str] = ()
    ) -> None:
        """Continue the tokens of `prompt`; stop at any of the texts in `stop`, none of which is empty."""
        if "" in stop:
            raise UsageError("a text that ends a sequence is empty", hint="leave it out of `stop`")
        self.is_stopped = False
        self._decode = decode
        self._stop = stop
        self._ids = list(prompt[-6:])  # so many tokens before a token decide about spaces
        self._known = len(self._ids)  # the text of these tokens was given out
        self._incomplete = 0
        self._held = ""

    def add(self, token: int) -> str:
        """The text that is certain after one more token; often empty."""
        self._ids.append(token)
        text = self._new_text()
        # A character has at most 4 bytes in UTF-8.
        if text.endswith("\N{REPLACEMENT CHARACTER}") and self._incomplete < 3:
            self._incomplete += 1
            return ""
        if text:
            self._ids = self._ids[self._known :]
            self._known, self._incomplete = len(self._ids), 0
        return self._until_stop(text)

    def end(self) -> str:
        """The text that was held back, when no more tokens follow."""
        text = self._until_stop(self._new_text()) + self._held
        self._ids, self._known, self._held = [], 0, ""
        return text

    def _new_text(self) -> str:
        return self._decode(self._ids)[len(self._decode(self._ids[: self._known])) :]

    def _until_stop(self, text: str) -> str:
        text = self._held + text
        found = [place for stop in self._stop if (place := text.find(stop)) >= 0]
        if found:
            self.is_stopped, self._held = True, ""
            return text[: min(found)]
        held = max((n for stop in self._stop for n in range(len(stop)) if text.endswith(stop[:n])), default=0)
        self._held = text[len(text) - held :]
        return text[: len(text) - held]
