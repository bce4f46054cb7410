"""Differential privacy: sampling, clipping, noise and accounting, for any strategy."""
