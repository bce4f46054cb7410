"""The version, in a file of its own so that nothing else is imported to read it."""

__version__ = "1.0.0rc1"
