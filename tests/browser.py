"""A headless Chromium for tests, driven over a pipe with its DevTools protocol: no socket, no port, no package.

Messages are JSON, each ended by a zero byte; the browser reads them on its descriptor 3 and answers on 4.
"""

from __future__ import annotations

import base64
import fcntl
import json
import os
import select
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

NAMES: Final = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "chrome")
KEYS: Final = {
    "Tab": 9,
    "Enter": 13,
    "Escape": 27,
    "ArrowLeft": 37,
    "ArrowUp": 38,
    "ArrowRight": 39,
    "ArrowDown": 40,
    "Home": 36,
    "End": 35,
}
PATIENCE_S: Final = 60


def find_browser() -> str | None:
    """The browser of this machine, if it has one."""
    return next((found for name in NAMES if (found := shutil.which(name))), None)


class Browser:
    """A running browser, by its pipe."""

    def __init__(self, to_browser: int, from_browser: int) -> None:
        self._to, self._from = to_browser, from_browser
        self._rest = b""
        self._last = 0
        self._tabs: list[str] = []  # sessions
        self.events: list[dict[str, Any]] = []

    def call(self, method: str, session: str | None = None, **params: object) -> Any:  # noqa: ANN401 - what CDP answers
        """Send a command, and wait for what comes of it."""
        self._last += 1
        message = {"id": self._last, "method": method, "params": params}
        if session:
            message["sessionId"] = session
        os.write(self._to, json.dumps(message).encode() + b"\0")
        deadline = time.monotonic() + PATIENCE_S
        while True:
            answer = self._next(deadline)
            if answer.get("id") == self._last:
                assert "error" not in answer, answer
                return answer["result"]
            self.events.append(answer)

    def _next(self, deadline: float) -> dict[str, Any]:
        while b"\0" not in self._rest:
            ready, _, _ = select.select([self._from], [], [], max(0.0, deadline - time.monotonic()))
            assert ready, "the browser does not answer"
            piece = os.read(self._from, 1 << 20)
            assert piece, "the browser is gone"
            self._rest += piece
        message, _, self._rest = self._rest.partition(b"\0")
        answer: dict[str, Any] = json.loads(message)
        return answer

    def open(self, place: Path | str, *, width: int = 1320, height: int = 900, dark: bool = False) -> Page:
        """Open a file or an address, and wait until it is loaded. It takes a tab that shows no page any more."""
        page = Page(self, self._tabs.pop() if self._tabs else self._new_tab())
        page.resize(width, height)
        page.prefer(dark=dark)
        page.call("Page.bringToFront")
        self.events = [event for event in self.events if event.get("sessionId") != page.session]
        page.call("Page.navigate", url=place.as_uri() if isinstance(place, Path) else place)
        page.wait_for("document.readyState === 'complete'")
        return page

    def _new_tab(self) -> str:
        """Its session. To make a tab takes a tenth of a second of processor time."""
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        session: str = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.call(f"{domain}.enable", session)
        return session

    def release(self, session: str) -> None:
        """Show nothing in a tab, so that it can show another page."""
        self.call("Page.navigate", session, url="about:blank")
        self._tabs.append(session)


class Page:
    """One page of a browser."""

    def __init__(self, browser: Browser, session: str) -> None:
        self._browser, self.session = browser, session

    def call(self, method: str, **params: object) -> Any:  # noqa: ANN401 - what CDP answers
        return self._browser.call(method, self.session, **params)

    def close(self) -> None:
        self._browser.release(self.session)

    def evaluate(self, expression: str) -> Any:  # noqa: ANN401 - what the script gives
        """What a JavaScript expression gives in the page."""
        done = self.call("Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in done, done["exceptionDetails"]
        return done["result"].get("value")

    def wait_for(self, expression: str) -> None:
        """Until a JavaScript expression holds."""
        deadline = time.monotonic() + PATIENCE_S
        while not self.evaluate(f"Boolean({expression})"):
            assert time.monotonic() < deadline, f"never came: {expression}"
            time.sleep(0.01)

    def resize(self, width: int, height: int) -> None:
        self.call("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=False)

    def prefer(self, *, dark: bool) -> None:
        """What the reader's system asks of pages."""
        feature = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.call("Emulation.setEmulatedMedia", media="", features=[feature])

    def press(self, *keys: str) -> None:
        """Press keys, one after the other, where the focus is."""
        for key in keys:
            text = {} if key in KEYS and key != "Enter" else {"text": "\r" if key == "Enter" else key}
            code = KEYS.get(key, 0)
            self.call("Input.dispatchKeyEvent", type="keyDown", key=key, windowsVirtualKeyCode=code, **text)
            self.call("Input.dispatchKeyEvent", type="keyUp", key=key, windowsVirtualKeyCode=code)

    def click(self, x: float, y: float) -> None:
        self.drag(x, x, y)

    def drag(self, start: float, end: float, y: float) -> None:
        """Press the mouse at `start`, and let go at `end`."""
        self.call("Input.dispatchMouseEvent", type="mouseMoved", x=start, y=y)
        self.call("Input.dispatchMouseEvent", type="mousePressed", x=start, y=y, button="left", clickCount=1)
        self.call("Input.dispatchMouseEvent", type="mouseMoved", x=end, y=y, button="left")
        self.call("Input.dispatchMouseEvent", type="mouseReleased", x=end, y=y, button="left", clickCount=1)

    def screenshot(self, *, whole: bool = False) -> bytes:
        """A PNG of what is in sight, or of the whole page."""
        return base64.b64decode(self.call("Page.captureScreenshot", captureBeyondViewport=whole)["data"])

    def complaints(self) -> list[str]:
        """What the console said, and what went wrong in scripts."""
        kinds = ("Runtime.consoleAPICalled", "Runtime.exceptionThrown", "Log.entryAdded")
        return [json.dumps(event["params"]) for event in self._events() if event["method"] in kinds]

    def requests(self) -> list[str]:
        """What the page asked for, itself included."""
        kind = "Network.requestWillBeSent"
        return [event["params"]["request"]["url"] for event in self._events() if event["method"] == kind]

    def _events(self) -> list[dict[str, Any]]:
        self.evaluate("1")  # events that came before its answer are read with it
        return [event for event in self._browser.events if event.get("sessionId") == self.session]


Show = Callable[..., Page]  #: opens the page of a scene; see tests/conftest.py.


@contextmanager
def started(executable: str) -> Iterator[Browser]:
    """A browser with a profile of its own, closed in the end."""
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as profile:
        # Descriptors above those the browser expects, so that putting them in place closes none that is needed.
        to_child, to_browser = (_high(end) for end in os.pipe())
        from_browser, from_child = (_high(end) for end in os.pipe())
        words = [executable, "--headless=new", "--remote-debugging-pipe", "--no-sandbox", "--no-first-run"]
        words += ["--disable-gpu", "--disable-extensions", "--hide-scrollbars", f"--user-data-dir={profile}"]
        words.append("--disable-ipc-flooding-protection")  # tests change the address of a page more often than people
        silent = os.open(os.devnull, os.O_RDWR)
        placed = [
            (os.POSIX_SPAWN_DUP2, old, new)
            for old, new in zip([silent, silent, silent, to_child, from_child], range(5), strict=True)
        ]
        child = os.posix_spawn(executable, words, os.environ, file_actions=placed)
        for end in (to_child, from_child, silent):
            os.close(end)
        browser = Browser(to_browser, from_browser)
        try:
            yield browser
        finally:
            browser.call("Browser.close")
            os.waitpid(child, 0)
            os.close(to_browser)
            os.close(from_browser)


def _high(descriptor: int) -> int:
    """The same descriptor under a number that nobody expects."""
    copy = fcntl.fcntl(descriptor, fcntl.F_DUPFD_CLOEXEC, 10)
    os.close(descriptor)
    return copy
