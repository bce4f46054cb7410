"""`python -m manyhands` is `manyhands`."""

from manyhands.cli import main

if __name__ == "__main__":
    main()
