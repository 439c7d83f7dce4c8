"""The entry point of `graphcut` and `python -m graphcut`."""

import os
import signal
from types import FrameType


def start() -> None:
    """Load the command and run it. SIGTERM and SIGHUP end it as Ctrl-C does: it cleans up, without a traceback."""
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")  # numpy's products are small here: more threads only wait
    received: list[int] = []

    def stop(number: int, _frame: FrameType | None) -> None:
        for each in (signal.SIGTERM, signal.SIGHUP):
            signal.signal(each, signal.SIG_IGN)  # a second one would stop the cleaning up
        received.append(number)
        raise KeyboardInterrupt

    for each in (signal.SIGTERM, signal.SIGHUP):
        if signal.getsignal(each) == signal.SIG_DFL:  # nohup ignores SIGHUP
            signal.signal(each, stop)
    try:
        from .cli import main

        main()
    except BaseException as error:
        if received:
            raise SystemExit(128 + received[0]) from None
        if isinstance(error, KeyboardInterrupt):  # while Python imports
            raise SystemExit(130) from None
        raise


if __name__ == "__main__":
    start()
