"""`manyhands` and `python -m manyhands`: handles signals before the first slow import."""

from manyhands import signals


def main() -> None:
    """Run the command line; a signal during its imports ends it without a traceback."""
    signals.install(signals.exit_at_once)
    from manyhands.cli import main as command_line

    command_line()


if __name__ == "__main__":
    main()
