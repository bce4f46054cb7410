"""Faster kernels for a model's layers."""
