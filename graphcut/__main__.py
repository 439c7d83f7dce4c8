"""The entry point of `graphcut` and `python -m graphcut`."""

import os
import signal
import sys
from types import FrameType

_ENDING = [getattr(signal, name) for name in ("SIGTERM", "SIGHUP") if hasattr(signal, name)]  # Windows has no SIGHUP


def start() -> None:
    """Load the command and run it. SIGTERM and SIGHUP end it as Ctrl-C does: it cleans up, without a traceback."""
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")  # numpy's products are small here: more threads only wait
    received: list[int] = []

    def stop(number: int, _frame: FrameType | None) -> None:
        for each in _ENDING:
            signal.signal(each, signal.SIG_IGN)  # a second one would stop the cleaning up
        received.append(number)
        raise KeyboardInterrupt

    for each in _ENDING:
        if signal.getsignal(each) == signal.SIG_DFL:  # nohup ignores SIGHUP
            signal.signal(each, stop)
    if hasattr(signal, "SIGALRM"):
        signal.signal(signal.SIGALRM, signal.default_int_handler)
        sys.unraisablehook = _interrupt_again
    try:
        from .cli import main

        main()
    except BaseException as error:
        if received:
            raise SystemExit(128 + received[0]) from None
        if isinstance(error, KeyboardInterrupt):  # while Python imports
            raise SystemExit(130) from None
        raise


def _interrupt_again(ignored: "sys.UnraisableHookArgs") -> None:
    """Raise a KeyboardInterrupt once more where Python ignores one: in a finalizer, as that of a pool of threads."""
    if issubclass(ignored.exc_type, KeyboardInterrupt):
        signal.setitimer(signal.ITIMER_REAL, 0.01)  # at once, it would be raised in here, and be ignored, too
    else:
        sys.__unraisablehook__(ignored)


if __name__ == "__main__":
    start()
