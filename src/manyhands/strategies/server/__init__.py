"""A parameter server."""
