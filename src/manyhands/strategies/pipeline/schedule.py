"""In which order a stage of a pipeline works through the micro-batches of one step."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from itertools import pairwise
from typing import Literal, NamedTuple, Protocol

Kind = Literal["gpipe", "1f1b"]


class Shape(Protocol):
    """The options of `Pipeline` that its processes read."""

    @property
    def stages(self) -> int:
        """How many parts the model is cut into."""

    @property
    def parts(self) -> int:
        """How many micro-batches a batch is cut into."""

    @property
    def order(self) -> Kind | None:
        """In which order a stage works through them; None: the default."""

    @property
    def cut(self) -> str | None:
        """Where a new stage begins, or what to balance."""

    def at_once(self, examples: int) -> int:
        """Return the examples of the largest micro-batch."""

    def stage_of(self, rank: int, workers: int) -> int | None:
        """Return which stage a process is; None for one that is none."""


class Turn(NamedTuple):
    """The forward or the backward pass of one micro-batch."""

    pass_: Literal["forward", "backward"]
    micro_batch: int


@cache
def schedule(kind: Kind, *, stage: int, stages: int, micro_batches: int) -> tuple[Turn, ...]:
    """Return what a stage does in one step.

    gpipe (Huang et al. 2019, arXiv 1811.06965): all forward passes, then all backward passes.
    1f1b (PipeDream-Flush, Narayanan et al. 2021, arXiv 2006.09503): a stage begins its backward
    passes as soon as it can, so that it holds the activations of few micro-batches.

    Both go through the backward passes from the first micro-batch to the last, so gradients are
    added up in the same order: their sums have the same bits.
    """
    ahead = micro_batches if kind == "gpipe" else min(stages - stage - 1, micro_batches)
    turns = [Turn("forward", i) for i in range(ahead)]
    for i in range(micro_batches):
        if i + ahead < micro_batches:
            turns.append(Turn("forward", i + ahead))
        turns.append(Turn("backward", i))
    return tuple(turns)


def in_flight(turns: Sequence[Turn]) -> int:
    """Return how many micro-batches a stage holds at once, at the most."""
    held = most = 0
    for turn in turns:
        held += 1 if turn.pass_ == "forward" else -1
        most = max(most, held)
    return most


def ideal_bubble(stages: int, micro_batches: int) -> float:
    """Return the share of a step that a stage stands idle if all take equally long."""
    return (stages - 1) / (micro_batches + stages - 1)


@cache
def chunks(examples: int, micro_batches: int) -> tuple[int, ...]:
    """Cut a batch into near-equal micro-batches; returns their sizes.

    None has one example alone, of which BatchNorm would have no statistics, unless there is but
    one.
    """
    from manyhands.data.worker_batch_plan import FEWEST

    count = min(micro_batches, max(1, examples // FEWEST)) if examples else 0
    edges = [i * examples // count for i in range(count + 1)] if count else [0]
    return tuple(stop - start for start, stop in pairwise(edges))


def largest_chunk(examples: int, micro_batches: int) -> int:
    """Return the size of the largest micro-batch of batches of up to so many examples.

    It need not be one of the largest batch: three examples are one micro-batch, eight may be four.
    """
    from manyhands.data.worker_batch_plan import FEWEST

    few = range(1, FEWEST * micro_batches + 1)
    return max(max(chunks(n, micro_batches), default=0) for n in {examples, *few})
