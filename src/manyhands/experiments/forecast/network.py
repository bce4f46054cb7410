"""A network between hosts, as its latency and bandwidth."""

from __future__ import annotations

from dataclasses import dataclass

from manyhands.config.option_declaration import POSITIVE, PROCESSES


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
