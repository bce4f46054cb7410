"""Only the largest numbers travel; the others wait in the residual.

Sparsified SGD with memory (Stich et al. 2018, arXiv 1809.07599), whose selection over the whole
vector Deep Gradient Compression (Lin et al. 2018, arXiv 1712.01887) makes layer by layer:

    a ← g + e
    I ← the k indices with the largest |a_i|
    send I and a_I to all others;  receive theirs
    e ← a, but 0 on I
    g ← Σ_j a_I of worker j, and 0 elsewhere               in the order of the ranks

Bytes sent by each of P workers: (P − 1) · 8 k, an int32 and a float32 per number; P − 1 messages;
1 step. Unlike the coded all-reduces this grows with P: it pays while (P − 1) · 8 k is below theirs.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from manyhands.comm.communicator import Communicator
from manyhands.comm.compression.compressor import Compressor
from manyhands.comm.compression.error_feedback import Residual


def count_kept(fraction: float, length: int) -> int:
    """Return k for a vector of that length: at least 1, if there is a number at all."""
    return min(length, max(1, round(fraction * length)))


class TopK(Compressor):
    """Sums the largest numbers of each worker, with error feedback.

    Args:
        fraction: Of the numbers, above 0 and up to 1.
    """

    def __init__(self, fraction: float) -> None:
        self.name = f"topk:{fraction:g}"
        self._fraction = fraction
        self._residual = Residual()

    def _sum(self, vector: Tensor, comm: Communicator, step: int) -> None:
        k = count_kept(self._fraction, len(vector))
        a = self._residual.add_to(vector, step)
        chosen = torch.topk(a.abs(), k, sorted=False).indices.sort().values
        mine = torch.empty(8 * k, dtype=torch.uint8)
        indices, values = _parts(mine, k)
        indices.copy_(chosen)
        values.copy_(a[chosen])
        received = {j: torch.empty_like(mine) for j in range(comm.size) if j != comm.rank}
        arrive = comm.exchange(mine, received)
        a[chosen] -= values  # what float32 cannot hold stays
        self._residual.keep(a, step)  # also if it fails here: others may have got the message
        arrive()
        vector.zero_()
        for j in range(comm.size):
            indices, values = _parts(received.get(j, mine), k)
            vector.index_add_(0, indices, values.to(vector.dtype))

    def state(self, step: int) -> dict[str, Tensor]:
        """Return the residual."""
        residual = self._residual.at(step)
        return {} if residual is None else {"residual": residual}

    def restore(self, tensors: Mapping[str, Tensor]) -> None:
        """Take the residual back."""
        self._residual.restore(tensors.get("residual"))


def _parts(message: Tensor, k: int) -> tuple[Tensor, Tensor]:
    """Return the indices and the values of a message, as views."""
    return message[: 4 * k].view(torch.int32), message[4 * k :].view(torch.float32)
