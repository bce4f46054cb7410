"""Averaging of weights."""
