"""PowerSGD (Vogels et al. 2019, arXiv 1905.13727): gradients of matrices as products of rank r.

    for each matrix M (n × m) of the gradient, with the residual E and the last Q (m × r):
        M ← M + E
        P ← M Q;     P ← Σ_k P_k                           (all-reduce)
        P̂ ← the columns of P, orthogonalised               (Gram-Schmidt)
        Q_k ← Mᵀ P̂;  Q ← Σ_k Q_k                           (all-reduce)
        E ← M − P̂ Q_kᵀ
        gradient ← P̂ Qᵀ

Q is kept for the next step (warm start): one power iteration per step. A parameter of more
dimensions is the matrix of its first dimension and all others. What would not get smaller, vectors
and matrices with r (n + m) ≥ n m, is summed exactly. All P and what is exact travel in one
all-reduce, and all Q in another.

Bytes sent by each worker: those of two all-reduces, of Σ r n + (exact numbers) and of Σ r m
numbers.

Guarantees: those of every compressor; Σ_k E_k + Σ updates = Σ gradients up to rounding, since P̂ is
the same on all workers. The product P̂ Qᵀ has the same bits on workers whose processors round
matrix products alike.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from manyhands.comm.communicator import Communicator
from manyhands.comm.compression.compressor import Compressor
from manyhands.comm.compression.error_feedback import Residual

_DEPENDENT = 1e-10  # of a column's length: what is left of one that depends on those before it


class Block(NamedTuple):
    """A parameter's place in the flat vector, as a matrix of n rows and m columns."""

    place: slice
    n: int
    m: int


def split_blocks(shapes: Sequence[Sequence[int]], rank: int) -> tuple[list[Block], list[slice]]:
    """Return the matrices to compress, and the places of what is summed exactly."""
    matrices, exact, start = [], [], 0
    for shape in shapes:
        size = int(np.prod(shape))
        place = slice(start, start + size)
        n = shape[0] if len(shape) > 1 else 1
        m = size // n if n else 0
        if rank * (n + m) < size:
            matrices.append(Block(place, n, m))
        else:
            exact.append(place)
        start += size
    return matrices, exact


class PowerSGD(Compressor):
    """Sums gradients by products of low rank, with error feedback and warm start.

    Args:
        rank: r.
        shapes: Those of the parameters that make up the vector, in order.
        seed: Of the first Q, the same on all workers.
        algorithm: The all-reduce for P and Q.
    """

    def __init__(
        self, rank: int, shapes: Sequence[Sequence[int]], *, seed: int = 0, algorithm: str = "auto"
    ) -> None:
        self.name = f"powersgd:{rank}"
        self._rank, self._seed, self._algorithm = rank, seed, algorithm
        self._matrices, self._exact = split_blocks(shapes, rank)
        self._residual = Residual()
        self._q = [self._draw(i, 0) for i in range(len(self._matrices))]  # (m, r) each

    def _draw(self, index: int, step: int) -> Tensor:
        """Return a random matrix (m, r), the same on all workers."""
        key = np.random.SeedSequence((self._seed, step, index))
        shape = (self._matrices[index].m, self._rank)
        drawn = np.random.Generator(np.random.SFC64(key)).standard_normal(shape, np.float32)
        return torch.from_numpy(drawn)

    def _sum(self, vector: Tensor, comm: Communicator, step: int) -> None:
        a = self._residual.add_to(vector, step)
        ms = [a[block.place].view(block.n, block.m) for block in self._matrices]
        exact = [a[place] for place in self._exact]

        ps = [m @ q.to(m.dtype) for m, q in zip(ms, self._q, strict=True)]
        first = self._sum_together([*ps, *exact], comm)
        ps, exact_sums = first[: len(ms)], first[len(ms) :]
        ps = [orthogonalise(p) for p in ps]

        qs = [m.T @ p for m, p in zip(ms, ps, strict=True)]
        for m, p, q in zip(ms, ps, qs, strict=True):
            m.addmm_(p, q.T, alpha=-1)  # of `a`, which becomes the residual
        for part in exact:
            part.zero_()
        self._residual.keep(a, step)  # also if the sum fails here: others may have got it
        qs = self._sum_together(qs, comm)

        for block, p, q in zip(self._matrices, ps, qs, strict=True):
            torch.mm(p, q.T, out=vector[block.place].view(block.n, block.m))
        for place, total in zip(self._exact, exact_sums, strict=True):
            vector[place] = total
        self._q = [self._revive(i, step, q) for i, q in enumerate(qs)]

    def _sum_together(self, parts: Sequence[Tensor], comm: Communicator) -> list[Tensor]:
        """Return the sums of several tensors over the group, by one all-reduce."""
        if not parts:
            return []
        flat = torch.cat([part.reshape(-1) for part in parts])
        comm.allreduce(flat, self._algorithm)
        sums = torch.split(flat, [part.numel() for part in parts])
        return [total.view(part.shape) for total, part in zip(sums, parts, strict=True)]

    def _revive(self, index: int, step: int, q: Tensor) -> Tensor:
        """Return Q for the next step; columns of zeros, which would stay so, are drawn anew."""
        dead = ~q.any(dim=0)
        if dead.any():
            q = torch.where(dead, self._draw(index, step + 1).to(q.dtype), q)
        return q

    def state(self, step: int) -> dict[str, Tensor]:
        """Return the residual and each Q."""
        residual = self._residual.at(step)
        kept = {f"q.{i}": q for i, q in enumerate(self._q)}
        return kept if residual is None else {"residual": residual, **kept}

    def restore(self, tensors: Mapping[str, Tensor]) -> None:
        """Take the residual and each Q back."""
        self._residual.restore(tensors.get("residual"))
        self._q = [tensors.get(f"q.{i}", q) for i, q in enumerate(self._q)]


def orthogonalise(p: Tensor) -> Tensor:
    """Return orthonormal columns that span those of `p`; zeros for a column that adds nothing.

    By Gram-Schmidt in float64, in an order of operations that no number of threads changes.
    """
    rows = p.T.to(torch.float64).contiguous().numpy()  # (r, n)
    lengths = np.sqrt(np.einsum("ij,ij->i", rows, rows))
    for i, row in enumerate(rows):
        length = np.sqrt(np.einsum("i,i->", row, row))
        if length <= _DEPENDENT * lengths[i]:
            row[...] = 0.0
            continue
        row /= length
        rest = rows[i + 1 :]
        rest -= np.einsum("ij,j->i", rest, row)[:, None] * row
    return torch.from_numpy(rows.T.copy()).to(p.dtype)
