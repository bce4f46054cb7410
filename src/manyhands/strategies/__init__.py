"""The strategies, by name; each one is a file of this folder."""

from __future__ import annotations

from manyhands.strategies.sequential import Sequential
from manyhands.strategies.strategy import Strategy, Supports
from manyhands.strategies.sync import Sync

STRATEGIES: dict[str, type[Strategy]] = {kind.name: kind for kind in (Sequential, Sync)}

__all__ = ["STRATEGIES", "Sequential", "Strategy", "Supports", "Sync"]
