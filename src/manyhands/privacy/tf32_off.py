"""Switches TF32 off: a private run's norms and sums rely on products in whole float32."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch


@contextmanager
def full_float32() -> Iterator[None]:
    """Let no library shorten float32, as cuDNN does by default with TF32; restore it afterwards.

    TF32 has 10 binary digits: two kernels would differ by more than the lattice has room for.
    """
    cudnn = torch.backends.cudnn
    try:
        convolutions, products = cudnn.allow_tf32, torch.get_float32_matmul_precision()
    except RuntimeError:  # precisions were chosen one by one, which these two cannot describe
        with _each_full():
            yield
        return
    try:
        cudnn.allow_tf32 = False
        torch.set_float32_matmul_precision("highest")
        yield
    finally:
        cudnn.allow_tf32 = convolutions
        torch.set_float32_matmul_precision(products)


@contextmanager
def _each_full() -> Iterator[None]:
    """Do the same by the switches that PyTorch has since 2.9."""
    backends: Any = torch.backends
    cudnn, onednn = backends.cudnn, backends.mkldnn
    each = [backends.cuda.matmul, cudnn.conv, cudnn.rnn, onednn.matmul, onednn.conv, onednn.rnn]
    before = [one.fp32_precision for one in each]
    try:
        for one in each:
            one.fp32_precision = "ieee"
        yield
    finally:
        for one, precision in zip(each, before, strict=True):
            one.fp32_precision = precision
