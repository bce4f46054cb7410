"""Differential privacy: sampling, clipping, noise and what they cost; no strategy is named here."""
