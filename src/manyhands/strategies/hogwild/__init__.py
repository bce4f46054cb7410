"""Hogwild."""
