"""Audits a private run: records its transcript, tests the mechanism, attacks it with canaries."""
