"""What a test of an exercise is worth; `manyhands.testing` offers it to teachers."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar

_Test = TypeVar("_Test", bound=Callable[..., Any])


@dataclass(frozen=True, kw_only=True)
class Grading:
    """What a test of an exercise is worth, and what it runs on.

    Attributes:
        points: Given if the test passes on every process.
        processes: How many processes run it.
        messages: Its communicator takes only non-blocking messages from one process to another,
            and counts them.
    """

    points: int
    processes: int
    messages: bool


def graded(points: int, *, processes: int = 1, messages: bool = False) -> Callable[[_Test], _Test]:
    """Make a function `(mine, comm)` a test of an exercise, for `manyhands check --course`.

    The function is called on every process with the student's module and mpi4py's communicator. It
    fails by an exception; the first line of its docstring says what holds.

    Args:
        points: See `Grading`.
        processes: See `Grading`.
        messages: See `Grading`.
    """

    def mark(test: _Test) -> _Test:
        test.grading = Grading(  # type: ignore[attr-defined]
            points=points, processes=processes, messages=messages
        )
        return test

    return mark
