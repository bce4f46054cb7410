"""Error feedback: what compression leaves out of one step is added to the next.

Seide et al. 2014; Stich et al. 2018 (arXiv 1809.07599); Karimireddy et al. 2019 (arXiv 1901.09847).

    a ← g + e
    send C(a)
    e ← a − C(a)

Guarantee: Σ C(a) + e = Σ g over all steps so far, up to rounding, so nothing is lost, only delayed.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import Tensor


class Residual:
    """The e of one worker, shape (dim,).

    A step's new residual replaces the old one when a later step begins. A step that failed because
    another worker died, and is repeated, begins with the old one. If instead another worker has
    completed the step, this one goes on with the new one: what it sent was used.
    """

    def __init__(self) -> None:
        self._before: Tensor | None = None
        self._after: Tensor | None = None
        self._step = -1  # that `_after` is the residual of

    def add_to(self, vector: Tensor, step: int) -> Tensor:
        """Return a ← g + e for that step, as a new vector."""
        before = self.at(step)
        self._before, self._after = before, None
        return vector.clone() if before is None else vector + before

    def keep(self, left: Tensor, step: int) -> None:
        """Keep what that step left out."""
        self._after, self._step = left, step

    def at(self, step: int) -> Tensor | None:
        """Return the residual with which `step` begins; None is zero."""
        return self._before if self._after is None or step <= self._step else self._after

    def restore(self, residual: Tensor | None) -> None:
        """Begin with that residual."""
        self._before, self._after = residual, None
