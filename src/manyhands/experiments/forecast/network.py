"""A network between hosts, as its latency and bandwidth."""

from __future__ import annotations

import re
from dataclasses import dataclass

from manyhands.config.declare import POSITIVE, PROCESSES
from manyhands.errors import ConfigError

_SECONDS = {"ns": 1e-9, "us": 1e-6, "µs": 1e-6, "ms": 1e-3, "s": 1.0}
_PREFIXES = {"": 1.0, "k": 1e3, "m": 1e6, "g": 1e9, "t": 1e12}


@dataclass(frozen=True, kw_only=True)
class Network:
    """What lies between the hosts.

    Attributes:
        latency: Seconds until a message of next to nothing has arrived.
        bandwidth: Bytes per second that one host sends, and receives at the same time.
        per_host: Workers on each host, which share its link.
    """

    latency: float
    bandwidth: float
    per_host: int = 1

    def __post_init__(self) -> None:
        POSITIVE.check("latency", self.latency)
        POSITIVE.check("bandwidth", self.bandwidth)
        PROCESSES.check("per_host", self.per_host)


def parse_latency(text: str) -> float:
    """Return "20us" in seconds.

    >>> parse_latency("20us"), parse_latency("0.5 ms")
    (2e-05, 0.0005)
    """
    found = re.fullmatch(r"\s*([\d.]+)\s*(ns|us|µs|ms|s)\s*", text)
    seconds = _number(found[1]) * _SECONDS[found[2]] if found else 0.0
    if not seconds > 0:
        raise ConfigError(f"latency is {text!r}; expected such as 20us or 30ms")
    return seconds


def parse_bandwidth(text: str) -> float:
    """Return "100Gbit" (bits) or "12.5GB" (bytes), per second, in bytes per second.

    >>> parse_bandwidth("100Gbit"), parse_bandwidth("50 MB/s")
    (12500000000.0, 50000000.0)
    """
    found = re.fullmatch(r"\s*([\d.]+)\s*([kKMGT]?)(bit|B)(?:/s|ps)?\s*", text)
    scale = _PREFIXES[found[2].lower()] / (8 if found[3] == "bit" else 1) if found else 0.0
    speed = _number(found[1]) * scale if found else 0.0
    if not speed > 0:
        raise ConfigError(f"bandwidth is {text!r}; expected such as 100Gbit, 1Gbit or 12.5GB")
    return speed


def _number(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        return 0.0
