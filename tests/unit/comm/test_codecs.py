"""Codecs: what a vector loses on the way through a message."""

import math

import pytest
import torch

from manyhands.comm.compression import CODECS
from manyhands.comm.compression.int8 import BLOCK

LENGTHS = (0, 1, 7, BLOCK, BLOCK + 1, 5000)


def vector(length, seed=0, scale=1.0, dtype=torch.float32):
    return torch.randn(length, generator=torch.Generator().manual_seed(seed)).mul(scale).to(dtype)


def through(codec, x, key=(0,)):
    return codec.decode(codec.encode(x, key), len(x))


@pytest.mark.parametrize("name", CODECS)
@pytest.mark.parametrize("length", LENGTHS)
def test_a_message_has_the_bytes_of_the_formula(name, length):
    codec = CODECS[name]
    message = codec.encode(vector(length), (0,))
    assert message.dtype == torch.uint8
    assert message.shape == (codec.nbytes(length),)
    assert codec.decode(message, length).shape == (length,)


@pytest.mark.parametrize("name", CODECS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_zeros_stay_zeros_and_encoding_leaves_the_vector(name, dtype):
    x = vector(3000, dtype=dtype)
    x[::3] = 0
    before = x.clone()
    got = through(CODECS[name], x)
    assert torch.equal(x, before)
    assert got.dtype == torch.float32
    assert not got[::3].any()


@pytest.mark.parametrize("name", CODECS)
def test_the_same_key_gives_the_same_bits(name):
    x = vector(3000)
    first, again = (CODECS[name].encode(x, (5, 2)) for _ in range(2))
    assert torch.equal(first, again)


@pytest.mark.parametrize("name", CODECS)
@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_what_is_not_finite_stays_so(name, bad):
    x = vector(3000)
    x[5] = bad
    assert not through(CODECS[name], x)[5].isfinite()


def test_bfloat16_rounds_as_torch_does():
    x = vector(5000)
    assert torch.equal(through(CODECS["bf16"], x), x.bfloat16().float())


@pytest.mark.parametrize("scale", [1e-25, 1e-7, 1.0, 1e6, 1e30])
def test_float16_has_its_relative_error_at_any_scale(scale):
    x = vector(5000, scale=scale)
    x[17] = 1e-6 * scale  # small beside the others
    error = (through(CODECS["fp16"], x).double() - x.double()).abs()
    assert (error <= x.double().abs() * 2**-11).all()
    assert error.any()


def test_float16_of_powers_of_two_is_exact():
    x = 2.0 ** torch.arange(-20, 5)
    assert torch.equal(through(CODECS["fp16"], x), x)


@pytest.mark.parametrize("tiny", [1e-45, 1e-38, 3e-30])
def test_float16_of_the_smallest_numbers_does_not_overflow(tiny):
    x = torch.full((3,), tiny)
    error = (through(CODECS["fp16"], x).double() - x.double()).abs()
    assert (error <= max(tiny * 2**-11, 2.0**-136)).all()


def quanta(x):
    """Return the distance of two values of int8 around each number."""
    return torch.cat([b.abs().max().expand(len(b)) for b in x.split(BLOCK)]) / 127


def test_int8_errs_by_less_than_a_quantum():
    x = vector(5000)
    assert ((through(CODECS["int8"], x) - x).abs() <= quanta(x) * (1 + 1e-6)).all()


def test_int8_is_unbiased():
    """The mean of N messages is off by no more than Hoeffding's inequality allows."""
    x, many, doubt = vector(2000), 2000, 1e-6
    received = torch.stack([through(CODECS["int8"], x, (1, n)) for n in range(many)]).double()
    allowed = quanta(x) * (math.log(2 * len(x) / doubt) / (2 * many)) ** 0.5 + 1e-6
    assert ((received.mean(0) - x).abs() <= allowed).all()
    nearest = (x / quanta(x)).round() * quanta(x)
    assert ((nearest - x).abs() > allowed).any()  # which rounding to nearest would not keep to


def test_int8_rounds_otherwise_with_another_key():
    x = vector(3000)
    one, other = (CODECS["int8"].encode(x, key) for key in ((1, 2), (1, 3)))
    assert not torch.equal(one, other)
