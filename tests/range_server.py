"""A web server on the loopback device that knows HTTP Range, counts what it sends, and can misbehave."""

from __future__ import annotations

import re
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path


@dataclass
class Served:
    """A folder that is served, and what was asked of it."""

    root: Path
    url: str = ""
    knows_range: bool = True
    breaks_after: int | None = None  #: bytes of bodies after which every connection breaks off.
    most_ranges: int | None = None  #: after so many ranges it answers no more.
    pause_s: float = 0.0  #: before each tenth of a body.
    failures: int = 0  #: so many requests for ranges are answered with 503 first.
    sent: int = 0
    wholes: int = 0  #: how often a range was asked for and a whole file was sent.
    ranges: list[tuple[str, int, int]] = field(default_factory=list)
    lock: threading.Lock = field(default_factory=threading.Lock)

    def is_written(self, file: Path, number: int) -> bool:
        """Whether the first ranges that were asked for, so many, are in a file."""
        asked = [(start, end) for _, start, end in self.ranges[:number]]
        if len(asked) < number or not file.exists():
            return False
        written, whole = file.read_bytes(), (self.root / file.name).read_bytes()
        return all(written[start:end] == whole[start:end] for start, end in asked)


class Handler(BaseHTTPRequestHandler):
    """Sends files of a folder, whole or a range."""

    def __init__(self, served: Served, *arguments: object) -> None:
        self.served = served
        super().__init__(*arguments)  # type: ignore[arg-type]

    def log_message(self, *_: object) -> None:
        """Nothing."""

    def do_GET(self) -> None:
        served, file = self.served, self.served.root / self.path.lstrip("/")
        if not file.is_file():
            self.send_error(404)
            return
        content = file.read_bytes()
        asked = re.fullmatch(r"bytes=(\d+)-(\d+)", self.headers.get("Range", "")) if served.knows_range else None
        if asked is None:
            served.wholes += "Range" in self.headers
            self.send_response(200)
        else:
            start, end = int(asked[1]), min(int(asked[2]) + 1, len(content))
            if start >= len(content):
                self.send_error(416)
                return
            with served.lock:
                served.ranges.append((file.name, start, end))
                served.failures -= 1
                is_busy = served.failures >= 0
                is_over = served.most_ranges is not None and len(served.ranges) > served.most_ranges
            while is_over and served.most_ranges is not None:
                time.sleep(0.01)
            if is_busy:
                self.send_error(503)
                return
            self.send_response(206)
            self.send_header("Content-Range", f"bytes {start}-{end - 1}/{len(content)}")
            content = content[start:end]
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        with served.lock:
            if served.breaks_after is not None:
                content = content[: max(0, served.breaks_after - served.sent)]
            served.sent += len(content)
        step = len(content) if not served.pause_s else -(-len(content) // 10)
        with suppress(ConnectionError):
            for start in range(0, len(content), step or 1):
                time.sleep(served.pause_s)
                self.wfile.write(content[start : start + step])


@contextmanager
def serving(root: Path) -> Iterator[Served]:
    """The folder, served until the end."""
    served = Served(root)
    server = ThreadingHTTPServer(("127.0.0.1", 0), partial(Handler, served))
    served.url = f"http://127.0.0.1:{server.server_address[1]}/"
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield served
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
