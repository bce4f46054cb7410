"""From the option `compress` to what compresses."""

from __future__ import annotations

from collections.abc import Sequence

from manyhands.allreduce.cost import Cost
from manyhands.comm.compression.codec import Codec
from manyhands.comm.compression.coded_allreduce import Coded
from manyhands.comm.compression.compressor import Compressor
from manyhands.comm.compression.cost import coded_cost, powersgd_cost, topk_cost
from manyhands.comm.compression.int8 import Int8
from manyhands.comm.compression.powersgd import PowerSGD
from manyhands.comm.compression.precision import BFloat16, Float16
from manyhands.comm.compression.topk import TopK
from manyhands.config.parse import parse_compress

CODECS: dict[str, Codec] = {codec.name: codec for codec in (Float16(), BFloat16(), Int8())}


def make_compressor(
    text: str, shapes: Sequence[Sequence[int]], *, seed: int = 0, algorithm: str = "auto"
) -> Compressor | None:
    """Return what the option asks for; None for "none".

    Args:
        text: none, fp16, bf16, int8, topk:FRACTION or powersgd:RANK.
        shapes: Those of the parameters that make up the vector, in order.
        seed: Of random rounding, and of the first factors of PowerSGD.
        algorithm: The all-reduce inside PowerSGD.
    """
    kind, amount = parse_compress(text)
    if kind == "none":
        return None
    if kind == "topk":
        return TopK(amount)
    if kind == "powersgd":
        return PowerSGD(int(amount), shapes, seed=seed, algorithm=algorithm)
    return Coded(CODECS[kind], seed=seed)


def compressed_cost(
    text: str, shapes: Sequence[Sequence[int]], size: int, algorithm: str = "ring"
) -> Cost:
    """Return what one compressed all-reduce costs each of `size` workers.

    >>> compressed_cost("int8", [(1000, 1000)], 2).bytes_each  # beside 4 MB exact
    1003912
    """
    kind, amount = parse_compress(text)
    length = sum(_count(shape) for shape in shapes)
    if kind == "topk":
        return topk_cost(amount, length, size)
    if kind == "powersgd":
        return powersgd_cost(int(amount), shapes, size, algorithm)
    return coded_cost(CODECS[kind], length, size)


def _count(shape: Sequence[int]) -> int:
    count = 1
    for extent in shape:
        count *= extent
    return count
