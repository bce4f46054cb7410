"""Times and speeds as texts, with their units."""

from __future__ import annotations

import pytest

from manyhands.config.parse import parse_bandwidth, parse_latency
from manyhands.errors import ConfigError


def test_latencies():
    assert parse_latency("20us") == pytest.approx(2e-5)
    for text in ("20", "fast", "-1us", "1.2.3us", "0us"):
        with pytest.raises(ConfigError, match="latency is"):
            parse_latency(text)


def test_bandwidths():
    assert parse_bandwidth("100Gbit") == 100_000_000_000
    assert parse_bandwidth("12.5GB/s") == 100_000_000_000
    for text in ("100", "100Gb its", "0Gbit", "1.2.3Gbit"):
        with pytest.raises(ConfigError, match=r"expected such as 100Mbit, 1Gbit or 12\.5GB"):
            parse_bandwidth(text)


def test_the_bandwidth_of_a_card_is_in_bits():
    assert parse_bandwidth("100Mbit", in_bytes=False) == 100_000_000
    assert parse_bandwidth("1.5Gbit", in_bytes=False) == 1_500_000_000
    for text in ("100", "fast", "0Mbit", "100MB"):
        with pytest.raises(ConfigError, match=r"expected such as 100Mbit, 1Gbit$"):
            parse_bandwidth(text, in_bytes=False)
