"""Compression of what workers send.

`CODECS` has the codecs by name: what turns a vector into a message of fewer bytes, and back.

    >>> import torch
    >>> from manyhands.comm.compression import CODECS
    >>> codec, x = CODECS["bf16"], torch.tensor([1.0, -2.5])
    >>> codec.decode(codec.encode(x), len(x))
    tensor([ 1.0000, -2.5000])
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from manyhands.comm.compression.codec import Codec
from manyhands.comm.compression.int8 import Int8
from manyhands.comm.compression.precision import BFloat16, Float16

CODECS: Mapping[str, Codec] = MappingProxyType(
    {codec.name: codec for codec in (Float16(), BFloat16(), Int8())}
)

__all__ = ["CODECS", "BFloat16", "Codec", "Float16", "Int8"]
