"""`manyhands` and `python -m manyhands`: handles signals before the first slow import."""

import _signal  # not `signal`, which takes milliseconds to import: Python has loaded this one
import os


def main() -> None:
    """Run the command line; a signal during its imports ends it without a traceback."""
    _signal.signal(_signal.SIGINT, _exit)
    from manyhands.launch import signals

    signals.install(signals.exit_at_once)
    from manyhands.cli.app import main as command_line

    command_line()


def _exit(*_: object) -> None:
    """End this process as `signals.exit_at_once` does, until that is imported."""
    try:
        os.write(2, b"manyhands: interrupted\n")
    finally:
        os._exit(130)


if __name__ == "__main__":
    main()
