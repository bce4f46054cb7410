"""Fragments' average differences that are under way, and what a checkpoint keeps of them."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping

    from torch import Tensor

    from manyhands.strategies.averaging.part_sum import PartSum


@dataclass
class Flight:
    """A fragment's Δ under way.

    Attributes:
        fragment: p.
        lands: The step at which it is used.
        total: The sum in progress; None if it is known from a checkpoint.
        delta: Δ_p, once it is known.
        error: The relative error of what this worker sent for it.
    """

    fragment: int
    lands: int
    total: PartSum | None
    delta: Tensor | None = None
    error: float = 0.0

    def result(self) -> Tensor:
        """Return Δ_p. Collective, the first time."""
        if self.delta is None:
            assert self.total is not None
            self.delta, self.error = self.total.result(), self.total.error
        return self.delta


@dataclass
class Stream:
    """What is under way.

    Attributes:
        marks: n_k and n at the moment at which each fragment was sent last.
        flights: What is under way, in the order in which it was sent.
        gathered: All workers hold the same parameters.
    """

    marks: list[tuple[float, float]]
    flights: list[Flight] = field(default_factory=list)
    gathered: bool = True

    def advance(self, *, wait: bool = False) -> None:
        """Begin the second halves of exchanges whose first has arrived, or wait for these.

        In the order of sending, and so in the same order on all workers, whenever that is.
        """
        for flight in self.flights:
            if flight.total:
                if not wait and not flight.total.arrived():
                    return
                flight.total.advance()

    def state(self) -> tuple[dict[str, Tensor], dict[str, Any]]:
        """Return tensors and numbers for a checkpoint; what is under way arrives. Collective."""
        tensors = {f"flight.{flight.fragment}": flight.result() for flight in self.flights}
        flights = [[f.fragment, f.lands, f.error] for f in self.flights]
        return tensors, {"marks": self.marks, "flights": flights, "gathered": self.gathered}

    def restore(self, tensors: Mapping[str, Tensor], numbers: Mapping[str, Any]) -> None:
        """Take back what `state` returned."""
        self.marks = [(own, total) for own, total in numbers["marks"]]
        self.flights = [
            Flight(p, lands, None, tensors[f"flight.{p}"].clone(), error)
            for p, *_, lands, error in numbers["flights"]  # older ones say when the half was due
        ]
        self.gathered = numbers["gathered"]
