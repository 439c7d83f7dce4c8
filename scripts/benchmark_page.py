"""`scripts/benchmark page`: how long the page of a large model takes to open, and each thing that one does in it."""

from __future__ import annotations

import statistics
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "tests"))
from browser import Browser, Page, find_browser, started

LAYERS = {4_000: 69, 100_000: 1724}  #: the layers of a decoder with so many nodes.
OPTIONS = ["--hidden", "8", "--attention-heads", "2", "--kv-heads", "1", "--vocab", "64", "--quiet"]
PLOT = "document.querySelector('#profile .plot')"
FRAME = "new Promise((done) => requestAnimationFrame(done))"
TIMES = 15


def bench_page(folder: Path, *, small: bool) -> None:
    """Print a row for each size."""
    executable = find_browser()
    if executable is None:
        sys.exit("no Chromium on this machine (apt-get install chromium)")
    for nodes, layers in LAYERS.items():
        if small and nodes > min(LAYERS):
            continue
        model, page = folder / f"{nodes}.onnx", folder / f"{nodes}.html"
        graphcut = (sys.executable, "-m", "graphcut")
        if not page.exists():
            subprocess.run([*graphcut, "demo", "llm", "--layers", str(layers), *OPTIONS, "-o", model], check=True)
            subprocess.run([*graphcut, "show", model, "-o", page, "--quiet"], check=True)
        with started(executable) as browser:
            measure(browser, page, nodes)


def measure(browser: Browser, file: Path, nodes: int) -> None:
    """Print how long a page takes to open, and each action in it: processor time of its main thread."""
    opened, drawn = zip(*(opening(browser, file) for _ in range(5)), strict=True)
    print(f"{nodes:,} nodes, {file.stat().st_size / 1e6:.2f} MB: opens in {statistics.median(opened):.2f} s, "
          f"the graph takes {statistics.median(drawn):.2f} s more")  # fmt: skip
    page = browser.open(file)
    page.call("Performance.enable", timeDomain="threadTicks")
    page.wait_for("document.querySelector('#graph .box')")
    page.evaluate(f"{PLOT}.focus()")
    scroll = "document.querySelector('#graph .boxes').scrollTop += 40"
    print(f"  the next node {each(page, lambda _: page.press('ArrowRight')):.0f} ms")
    print(f"  zoom {each(page, lambda i: page.press('+' if i % 6 < 3 else '-')):.0f} ms")
    print(f"  scrolling the graph {each(page, lambda _: page.evaluate(scroll)):.0f} ms")
    page.click(*middle(page))
    page.press("c")
    x, y = middle(page)
    mouse(page, "mousePressed", x, y)
    print(f"  dragging a cut {each(page, lambda i: mouse(page, 'mouseMoved', x + 5 * i, y)):.0f} ms")
    print(f"  {frames_of(page, x, y)}")
    mouse(page, "mouseReleased", x, y)
    fold = "[...document.querySelectorAll('#graph .fold .head')].at(-1).click()"
    print(f"  opening a fold {each(page, lambda _: page.evaluate(fold), times=1):.0f} ms")
    page.close()


def middle(page: Page) -> tuple[float, float]:
    """A place in the profile, which is scrolled into sight."""
    page.evaluate(f"{PLOT}.scrollIntoView({{block: 'center'}})")
    x, y = page.evaluate(f"(({{x, y}}) => [x, y])({PLOT}.getBoundingClientRect())")
    return x + 400, y + 150


def mouse(page: Page, kind: str, x: float, y: float) -> None:
    """Send an event of the mouse."""
    page.call("Input.dispatchMouseEvent", type=kind, x=x, y=y, button="left", clickCount=1)


def frames_of(page: Page, x: float, y: float) -> str:
    """How long the frames of 60 moves of a cut take."""
    see = "const see = (now) => { frames.push(now); requestAnimationFrame(see); }; requestAnimationFrame(see);"
    page.evaluate(f"window.frames = []; {{ {see} }}")
    for i in range(60):
        mouse(page, "mouseMoved", x + 3 * i, y)
    times = page.evaluate("window.frames.slice(1).map((now, i) => now - window.frames[i])")
    return f"60 moves: {len(times)} frames, median {statistics.median(times):.0f} ms, longest {max(times):.0f} ms"


def busy_s(page: Page) -> float:
    """Seconds of processor time that the main thread has worked."""
    metrics = page.call("Performance.getMetrics")["metrics"]
    return next(float(metric["value"]) for metric in metrics if metric["name"] == "TaskDuration")


def opening(browser: Browser, file: Path) -> tuple[float, float]:
    """Seconds until the page can be used, and from then until its graph is drawn."""
    page = browser.open("about:blank")
    page.call("Performance.enable", timeDomain="threadTicks")
    page.call("Page.navigate", url=file.as_uri())
    page.wait_for("document.documentElement?.dataset.ready")
    opened = busy_s(page)
    page.wait_for("document.querySelector('#graph .box')")
    drawn = busy_s(page)
    page.close()
    return opened, drawn - opened


def each(page: Page, act: Callable[[int], object], times: int = TIMES) -> float:
    """Milliseconds of processor time from an action to the frame after it; the median."""
    found = []
    for i in range(times):
        page.evaluate(FRAME)
        began = busy_s(page)
        act(i)
        page.evaluate(FRAME)
        found.append((busy_s(page) - began) * 1e3)
    return statistics.median(found)
