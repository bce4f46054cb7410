"""Meters communication: calls, bytes, messages and seconds, by operation."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from typing import Any


@dataclass
class Cost:
    """The cost of one kind of operation in this process so far.

    `bytes` and `messages` count what this process sent; None where the MPI library does it inside.
    `shared` counts the bytes it wrote into shared memory for other processes to read, which no
    message carries.
    """

    calls: int = 0
    payload: int = 0
    bytes: int | None = 0
    messages: int | None = 0
    seconds: float = 0.0
    shared: int = 0


@dataclass
class Meter:
    """The costs by operation, e.g. "allreduce ring"."""

    costs: dict[str, Cost] = field(default_factory=dict)
    running: bool = True
    name: str | None = None  # under which everything is counted, where it is set

    @contextmanager
    def off(self) -> Iterator[None]:
        """Count nothing inside."""
        before, self.running = self.running, False
        try:
            yield
        finally:
            self.running = before

    @contextmanager
    def named(self, name: str) -> Iterator[None]:
        """Count all operations inside under one name."""
        before, self.name = self.name, name
        try:
            yield
        finally:
            self.name = before

    @contextmanager
    def as_one(self, operation: str, payload: int) -> Iterator[None]:
        """Count everything inside as one call of `operation`, to which `payload` was handed over.

        Its seconds are all that passes inside, not only those of messages.
        """
        before, self.costs = self.costs, {}
        begin = time.perf_counter()
        try:
            yield
        finally:
            inside, self.costs = list(self.costs.values()), before
        sent = [cost.bytes for cost in inside if cost.bytes is not None]
        messages = [cost.messages for cost in inside if cost.messages is not None]
        self.add(
            operation,
            payload=payload,
            sent=sum(sent) if len(sent) == len(inside) else None,
            messages=sum(messages) if len(messages) == len(inside) else None,
            seconds=time.perf_counter() - begin,
            shared=sum(cost.shared for cost in inside),
        )

    def add(
        self,
        operation: str,
        *,
        payload: int,
        sent: int | None,
        messages: int | None,
        seconds: float,
        shared: int = 0,
    ) -> None:
        """Add one call: `payload` bytes handed over, `sent` bytes in `messages` messages.

        `shared` bytes were written into shared memory besides.
        """
        if not self.running:
            return
        operation = self.name or operation
        cost = self.costs.get(operation)
        if cost is None:
            cost = self.costs[operation] = Cost()
        cost.calls += 1
        cost.payload += payload
        cost.seconds += seconds
        cost.shared += shared
        cost.bytes = None if sent is None or cost.bytes is None else cost.bytes + sent
        cost.messages = (
            None if messages is None or cost.messages is None else cost.messages + messages
        )

    def add_exchange(self, payload: int, others: int, seconds: float) -> None:
        """Add an exchange in which `payload` bytes went to each of so many others."""
        sent = others * payload
        self.add("exchange", payload=payload, sent=sent, messages=others, seconds=seconds)

    def add_parts(self, sent: int, others: int, seconds: float) -> None:
        """Add an exchange in which `sent` bytes went to so many others."""
        self.add("exchange parts", payload=sent, sent=sent, messages=others, seconds=seconds)

    def take(self, costs: Mapping[str, Mapping[str, Any]]) -> None:
        """Continue from the result of `as_dict`."""
        self.costs = {name: Cost(**cost) for name, cost in costs.items()}

    def as_dict(self) -> dict[str, dict[str, float | int | None]]:
        """Return the costs in a JSON-compatible form."""
        return {name: asdict(cost) for name, cost in self.costs.items()}
