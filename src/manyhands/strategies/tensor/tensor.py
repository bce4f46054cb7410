"""Tensor parallelism: every process holds a slice of each fully connected layer."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from manyhands.config.all_reduces import all_reduce_option
from manyhands.config.option_declaration import check_declared, option
from manyhands.strategies.strategy import Strategy
from manyhands.strategies.tensor.spec import TensorSpec
from manyhands.value_checks import whole
from manyhands.worker.abilities import SplitsModel

if TYPE_CHECKING:
    from torch import Tensor

    from manyhands.comm import Communicator
    from manyhands.model.replica import Replica
    from manyhands.strategies.tensor.slicing import Slice
    from manyhands.worker.worker import Worker


@dataclass(frozen=True)
class TensorParallel(TensorSpec, Strategy, SplitsModel):
    """Fully connected layers split within the layer (Megatron-LM, Shoeybi et al. 2019).

    ```
    process k of a team of N, for a pair of layers  Z = B σ(A X + a) + b  and each batch X:
        forward:   Y_k ← σ(A_k X + a_k)            A_k: some rows of A, so some of its outputs
                   Z   ← Σ_k B_k Y_k + b           (all-reduce) B_k: those columns of B
        backward:  ∂X  ← Σ_k A_kᵀ ∂Y_k             (all-reduce), if anything before X is trained
    then  g ← Σ over the W teams (all-reduce);  w_k ← w_k − η g_k
    ```

    A, B, a, b: weights and biases; σ: any elementwise function; ∂X: the gradient of the loss by X;
    w_k: process k's slices, and all that is not sliced; N: `slices`; W: `workers`.

    A layer without a partner is cut by its inputs: X_k is taken from X, the rest is as above. All
    other layers are computed by every process of a team, on the same batch.

    Guarantees:
        - Equal to `sequential` up to rounding, dropout included; all processes of a team draw the
          same numbers.
        - What every process of a team holds stays the same on all of them, bit for bit.
        - A process holds parameters, gradients and optimizer state of its own slices only.
    Cost per step, process and pair, for n examples of b-byte numbers: one all-reduce of b·n·|Z|
    bytes forward and one of b·n·|X| backward; with W teams one all-reduce of w_k.
    """

    name: ClassVar[str] = "tensor"
    slices: int = option(
        2, "processes that hold a slice of every fully connected layer", whole(1, 65_536)
    )
    allreduce: str = all_reduce_option("gradients are")

    def __post_init__(self) -> None:
        check_declared(self)

    def part(
        self, whole: Replica, batch: tuple[Tensor, Tensor], group: Communicator, workers: int
    ) -> Replica:
        """Keep this process's slices. Collective."""
        from manyhands.strategies.tensor.slicing import Slice, Team

        team = Team(group.split(group.rank % workers), self.allreduce)
        mine = Slice(whole, team, whole.reached(*batch))
        with group.meter.off():
            mine.activations, _ = mine.kept(lambda x: mine.compute(x, 0), batch[0])
        return mine

    def run(self, worker: Worker) -> None:
        """Train: the team computes one gradient together; the teams sum theirs."""
        mine, workers = _slice(worker), worker.config.workers
        index, member = divmod(worker.rank, workers)
        twins = worker.comm.split(index) if workers > 1 else None
        mine.team.note = lambda what: worker.board.note(worker.rank, worker.step, what)
        for batch in worker.batches():
            mine.key = (worker.config.seed, member, worker.step, 0)  # as pipeline's first part
            before = mine.team.seconds
            g = worker.gradient(batch)
            worker.clock.computed[-1] -= mine.team.seconds - before
            worker.clock.exchange(worker.clock.computed[-1], time.monotonic())
            if twins:
                with worker.exchanging():
                    mine.allreduce(twins, self.allreduce)
            worker.update(g)
        held = len(worker.params)
        row = {"rank": worker.rank, "slice": index, "team": member, "parameters": held}
        worker.facts |= {"slices": worker.comm.gather(row), "sliced": mine.sliced}

    def consensus(self, worker: Worker) -> Tensor:
        """Return the whole model's parameters: every slice from the first team. Collective."""
        mine = _slice(worker)
        whole = worker.params.new_zeros(mine.dim)
        if worker.rank % worker.config.workers == 0:
            mine.give(whole)
        with worker.comm.meter.off():
            worker.comm.allreduce(whole)
        return whole


def _slice(worker: Worker) -> Slice:
    from manyhands.strategies.tensor.slicing import Slice

    assert isinstance(worker.replica, Slice)
    return worker.replica
