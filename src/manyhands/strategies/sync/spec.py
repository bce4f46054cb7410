"""What validation reads of sync: its facts, and what its options refuse."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from typing import TYPE_CHECKING

from manyhands.config.all_reduces import check_allreduce
from manyhands.config.parse import parse_compress
from manyhands.config.strategy_spec import Exposure, StrategySpec, Supports
from manyhands.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from manyhands.config.run import RunConfig

_EXACT = Supports(
    equals_one=True,
    identical=True,
    resume=True,
    balance=True,
    outlives=True,
    torch=True,
    cuda=True,
    private=True,
    join=True,
)
_COMPRESSED = replace(_EXACT, equals_one=False, cuda=False)
_OVERLAPPED = replace(_EXACT, outlives=False, cuda=False, private=False)


class SyncSpec(StrategySpec):
    """The facts and checks of `Sync`; the options themselves are declared there."""

    allreduce: str
    compress: str
    overlap: bool

    @property
    def supports(self) -> Supports:
        """What it can do: less with compression, and with exchanges during backward."""
        if self.overlap:
            return _OVERLAPPED
        return _EXACT if self.compress == "none" else _COMPRESSED

    @property
    def exposure(self) -> Exposure:
        """Others see the sum only."""
        return "sum"

    def check_options(self) -> None:
        """Refuse an unknown all-reduce or compression, and an all-reduce that is not used."""
        check_allreduce(self)
        kind, _ = parse_compress(self.compress)
        if kind not in ("none", "powersgd") and self.allreduce != "auto":
            raise ConfigError(
                f"allreduce is {self.allreduce!r} with compress {self.compress!r}, which sums "
                "what it sends in its own way; the all-reduce would be ignored: leave one of "
                "them out"
            )
        for name, value, default, reason in (
            ("compress", self.compress, "none", "compresses the whole gradient"),
            ("allreduce", self.allreduce, "auto", "would be ignored: buckets have their own sum"),
        ):
            if self.overlap and value != default:
                raise ConfigError(
                    f"overlap is given with {name} {value!r}, which {reason}; leave one of them out"
                )

    def validate(self, config: RunConfig) -> None:
        """Refuse what compression and overlap cannot work with."""
        self._check_overlap(config)
        if self.compress == "none":
            return
        if config.device == "cuda":
            raise ConfigError(
                f"compress is {self.compress!r} with device 'cuda', but gradients are compressed "
                "on CPUs only; leave one of them out"
            )
        if config.privacy and config.workers > 1 and not config.privacy.distrust:
            raise ConfigError(
                f"compress is {self.compress!r} in a private run whose workers each add a share "
                "of the noise: what is compressed before the sum is no function of the noised "
                "sum, so ε would not cover it; add distrust, with which every message carries "
                "the full noise, or leave compress out"
            )

    def warning(self, hosts: Sequence[str]) -> str:
        """Warn of sums that do not begin within a host, where a host has several workers."""
        kind, _ = parse_compress(self.compress)
        most = max(Counter(hosts).values())
        direct = self.overlap or kind not in ("none", "powersgd")
        if not direct or len(set(hosts)) == 1 or most == 1:
            return ""
        name = "overlap" if self.overlap else f"compress {self.compress!r}"
        return (
            f"{name} does not sum within a host first: each of the {most} workers of a host sends "
            "its own sum over the network. With several workers on a host, leave it out or use "
            "compress='powersgd:4' (docs/how-to/slow-networks.md)"
        )

    def _check_overlap(self, config: RunConfig) -> None:
        """Refuse overlap where a gradient is not ready during one backward pass on a CPU."""
        reasons = {
            "device": (config.device == "cuda", "gradients are exchanged early on CPUs only"),
            "on_failure": (
                config.on_failure == "continue",
                "of a worker that dies, half a gradient could be used",
            ),
            "accumulate": (
                config.accumulate > 1,
                "a gradient is ready only after the last piece",
            ),
            "sync_batchnorm": (
                config.sync_batchnorm,
                "its layers exchange during backward, too",
            ),
            "privacy": (
                config.privacy is not None,
                "a private gradient may leave only when its noise is in",
            ),
        }
        for name, (given, reason) in reasons.items():
            if self.overlap and given:
                raise ConfigError(
                    f"overlap is given with {name}={getattr(config, name)!r}, but {reason}; leave "
                    "one of them out"
                )
