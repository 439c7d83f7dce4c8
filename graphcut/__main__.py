"""The entry point of `graphcut` and `python -m graphcut`.

It imports what it needs where it can explain a Ctrl-C: before, Python prints a traceback.
"""


def start() -> None:
    """Load the command and run it. Ctrl-C, SIGTERM and SIGHUP end it: it cleans up, without a traceback."""
    received: list[int] = []
    try:
        _handle_signals(received)
        import atexit
        import gc

        from .cli import main

        atexit.register(gc.freeze)  # Python would look for garbage once more, which takes up to a seventh of the time
        main()
    except BaseException as error:
        if received:
            import signal

            if hasattr(signal, "setitimer"):
                # Without a handler, which Python removes when it ends, SIGALRM would kill it.
                signal.setitimer(signal.ITIMER_REAL, 0)
            if isinstance(error, SystemExit) and error.code != 130:  # Ctrl-C ended an answer, and not the command
                raise
            raise SystemExit(128 + received[-1]) from None
        if isinstance(error, KeyboardInterrupt):  # before a handler stood
            raise SystemExit(130) from None
        raise


def _handle_signals(received: list[int]) -> None:
    """Make a KeyboardInterrupt of each signal that ends the command, and add it to `received`."""
    import os
    import signal
    import sys
    from types import FrameType

    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")  # numpy's products are small here: more threads only wait
    os.environ.setdefault("PYDANTIC_DISABLE_PLUGINS", "__all__")  # typer imports it, and it would look for plugins
    ending = [getattr(signal, name) for name in ("SIGTERM", "SIGHUP") if hasattr(signal, name)]  # Windows has no SIGHUP
    alarm = getattr(signal, "SIGALRM", None)

    def stop(number: int, frame: FrameType | None) -> None:
        if number in ending:
            for each in ending:
                signal.signal(each, signal.SIG_IGN)  # a second one would stop the cleaning up
        if number != alarm:
            received.append(number)
        if alarm is None or not _must_go_on(frame, is_second=len(received) > 1):
            raise KeyboardInterrupt
        signal.setitimer(signal.ITIMER_REAL, 0.01)

    for each in (signal.SIGINT, *ending):
        if signal.getsignal(each) in {signal.SIG_DFL, signal.default_int_handler}:  # nohup ignores SIGHUP
            signal.signal(each, stop)
    if alarm is not None:
        signal.signal(alarm, stop)
        sys.unraisablehook = _interrupt_again


def _must_go_on(frame: "FrameType | None", *, is_second: bool) -> bool:  # type: ignore[name-defined] # noqa: F821
    """Whether what runs ends before a signal stops the command. An import does not wait for a second signal.

    Extension modules that are left half loaded may crash the interpreter. What is interrupted while `with` begins or
    ends is not cleaned up, since nothing knows it yet, or no longer: a scratch folder is left, or an archive open.
    """
    if frame is not None and frame.f_globals.get("__name__") in {"contextlib", "zipfile"}:
        return True
    while frame is not None:
        is_import = frame.f_code.co_filename.startswith("<frozen importlib")
        if frame.f_code.co_name == "scratch_folder" or (is_import and not is_second):
            return True
        frame = frame.f_back
    return False


def _interrupt_again(ignored: "sys.UnraisableHookArgs") -> None:  # type: ignore[name-defined] # noqa: F821
    """Raise a KeyboardInterrupt once more where Python ignores one: in a finalizer, as that of a pool of threads."""
    import signal
    import sys

    if issubclass(ignored.exc_type, KeyboardInterrupt):
        signal.setitimer(signal.ITIMER_REAL, 0.01)  # at once, it would be raised in here, and be ignored, too
    else:
        sys.__unraisablehook__(ignored)


if __name__ == "__main__":
    start()
