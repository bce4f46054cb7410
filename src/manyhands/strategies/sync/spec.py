"""What validation reads of sync: its facts, and what its options refuse."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from manyhands.config.parse import parse_compress
from manyhands.config.strategy_spec import Exposure, StrategySpec, Supports
from manyhands.errors import ConfigError

if TYPE_CHECKING:
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


class SyncSpec(StrategySpec):
    """The facts and checks of `Sync`; the options themselves are declared there."""

    allreduce: str
    compress: str

    @property
    def supports(self) -> Supports:
        """What it can do: with compression, only on CPUs, and P workers differ from one."""
        return _EXACT if self.compress == "none" else _COMPRESSED

    @property
    def exposure(self) -> Exposure:
        """Others see the sum only."""
        return "sum"

    def check_options(self) -> None:
        """Refuse an unknown compression, and an all-reduce that it would not use."""
        kind, _ = parse_compress(self.compress)
        if kind not in ("none", "powersgd") and self.allreduce != "auto":
            raise ConfigError(
                f"allreduce is {self.allreduce!r} with compress {self.compress!r}, which sums "
                "what it sends in its own way; the all-reduce would be ignored: leave one of "
                "them out"
            )

    def validate(self, config: RunConfig) -> None:
        """Refuse to compress on GPUs, and gradients that carry a part of the noise."""
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
