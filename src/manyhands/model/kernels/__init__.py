"""Faster ways to compute what a model computes."""
