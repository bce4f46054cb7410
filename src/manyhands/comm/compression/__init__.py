"""Compression of what workers send, one method per file.

`CODECS` has the codecs by name: each turns a vector into a message of fewer bytes, and back.

    >>> import torch
    >>> from manyhands.comm.compression import CODECS
    >>> codec, x = CODECS["bf16"], torch.tensor([1.0, -2.5])
    >>> codec.decode(codec.encode(x), len(x))
    tensor([ 1.0000, -2.5000])

A compressor is an all-reduce that sends less. It works on its own, over any communicator:

    from mpi4py import MPI
    from manyhands.comm.mpi import MPICommunicator
    from manyhands.comm.compression import PowerSGD

    compressor = PowerSGD(4, [tuple(p.shape) for p in model.parameters()])
    for step in range(100):
        compressor.allreduce(gradient, MPICommunicator(MPI.COMM_WORLD), step)  # in place

`compressed_cost` says what each sends.
"""

from __future__ import annotations

from manyhands.comm.compression.choose import CODECS, compressed_cost, make_compressor
from manyhands.comm.compression.codec import Codec
from manyhands.comm.compression.coded_allreduce import Coded
from manyhands.comm.compression.compressor import Compressor
from manyhands.comm.compression.int8 import Int8
from manyhands.comm.compression.powersgd import PowerSGD
from manyhands.comm.compression.precision import BFloat16, Float16
from manyhands.comm.compression.topk import TopK

__all__ = [
    "CODECS",
    "BFloat16",
    "Codec",
    "Coded",
    "Compressor",
    "Float16",
    "Int8",
    "PowerSGD",
    "TopK",
    "compressed_cost",
    "make_compressor",
]
