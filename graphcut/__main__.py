"""The entry point of `graphcut` and `python -m graphcut`."""


def start() -> None:
    """Load the command and run it. Ctrl-C while Python imports exits with code 130, without a traceback."""
    try:
        from .cli import main
    except KeyboardInterrupt:
        raise SystemExit(130) from None
    main()


if __name__ == "__main__":
    start()
