"""Pipeline: the model is cut into stages, one process each; micro-batches flow through them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from manyhands.config.option_declaration import check_declared, option
from manyhands.strategies.pipeline.schedule import Kind
from manyhands.strategies.pipeline.spec import PipelineSpec, Transport
from manyhands.strategies.strategy import Strategy
from manyhands.value_checks import whole
from manyhands.worker.abilities import SplitsModel

if TYPE_CHECKING:
    from torch import Tensor

    from manyhands.comm import Communicator
    from manyhands.model.replica import Replica
    from manyhands.worker.worker import Worker


@dataclass(frozen=True)
class Pipeline(PipelineSpec, Strategy, SplitsModel):
    """Model parallelism with micro-batches (GPipe, Huang et al. 2019; 1F1B, Narayanan et al. 2021).

    ```
    stage s, for each batch B = B_1 ∪ … ∪ B_M, in the order of the schedule:
        forward i:   a ← (s = 1 ? B_i : from s − 1);  b ← f_s(a; w_s);  to s + 1: b
                     (the last stage:  ℓ_i ← (|B_i| / |B|) loss(b))
        backward i:  δ ← (last ? 1 : from s + 1);  g_s ← g_s + δ ∂b/∂w_s;  to s − 1: δ ∂b/∂a
    then  g_s ← Σ over the W pipelines (all-reduce);  w_s ← w_s − η g_s
    ```

    f_s, w_s, g_s: the layers of stage s, their parameters, their gradient; a, b: what enters and
    leaves it; δ: the gradient of the loss by b; M: `micro_batches`; N: `stages`; η: learning rate.

    Guarantees:
        - g is the gradient of the unsplit model over the same micro-batches, bit for bit, wherever
          the model is cut and under either schedule: dropout masks belong to the examples, and
          gradients are added up in the order of the micro-batches. Whatever else draws random
          numbers is seeded by (seed, pipeline, step, micro-batch, layer).
        - One micro-batch: equal to `sequential`, bit for bit; M micro-batches and W pipelines: up
          to rounding (but for BatchNorm, whose statistics are those of micro-batches, and for what
          draws random numbers beside dropout).
        - A process holds the parameters, gradients and optimizer of its own stage only.
    Cost per step and cut, for c numbers of b bytes that cross it per example: M messages of
    48 + b·c·|B|/(W·M) bytes each way, non-blocking; with W pipelines one all-reduce of w_s per
    stage. While all stages take equally long, each is idle (N − 1) / (M + N − 1) of a step.
    """

    name: ClassVar[str] = "pipeline"
    stages: int = option(2, "number of parts that the model is cut into", whole(1, 65_536))
    cut: str | None = option(
        None,
        "layers that begin a new stage (fc1, or conv2,fc1), or what to balance: time, parameters; "
        "by default convolutions | fully connected, otherwise time",
    )
    micro_batches: int | None = option(
        None, "parts that a batch is split into; by default 4 with MPI", whole(1, 2**31 - 1)
    )
    order: Kind | None = option(
        None, "gpipe: all forward passes first; 1f1b (default): backward as soon as possible"
    )
    transport: Transport = option(
        "mpi", "how activations travel: MPI messages, or torch RPC from a driver"
    )

    def __post_init__(self) -> None:
        check_declared(self)
        self.check_options()

    def part(
        self, whole: Replica, batch: tuple[Tensor, Tensor], group: Communicator, workers: int
    ) -> Replica:
        """Cut the model, on all processes alike, and keep this process's stage."""
        from manyhands.strategies.pipeline.stage import cut_stage

        return cut_stage(self, whole, batch, group, self.stage_of(group.rank, workers))

    def settled(self, replica: Replica) -> dict[str, Any]:
        """Return where the model was cut, which may have been measured."""
        cuts: list[str] = replica.cuts  # type: ignore[attr-defined]
        return {"cut": ",".join(cuts)} if cuts else {}

    def run(self, worker: Worker) -> None:
        """Train by one transport or the other; then merge the facts of all stages."""
        from manyhands.strategies.pipeline import rpc, timeline

        facts = self._run_stage(worker) if self.transport == "mpi" else rpc.run(worker, self)
        worker.facts |= timeline.merge(self, worker.comm.gather(facts))

    def _run_stage(self, worker: Worker) -> dict[str, Any]:
        from manyhands.strategies.pipeline.link import StageLink
        from manyhands.strategies.pipeline.timeline import TimedStage

        stage = TimedStage(worker, self)
        link = StageLink(worker, self, stage)
        for batch in worker.batches():
            stage.begin()
            for micro_batches in link.pieces(batch):
                for action, i in link.schedule(len(micro_batches)):
                    x, y, rows = micro_batches[i]
                    if action == "forward":
                        a = x if link.first else link.inputs.receive(i, len(x))
                        b = stage.forward(i, a, y, rows, batch.total)  # the last stage: also ℓ_i
                        if not link.last:
                            link.outputs.send(i, b.detach())
                    else:
                        delta = None
                        if not link.last:
                            delta = link.gradients.receive(i, len(x))
                            stage.losses[i] = link.gradients.loss(i)
                        by_a = stage.backward(i, delta)  # and g_s ← g_s + δ ∂b/∂w_s
                        if not link.first:
                            link.returns.send(i, by_a, stage.losses.get(i))
            stage.finish(batch)
            link.allreduce(worker.replica.grad)
            stage.update()
        link.close()
        return stage.timeline.facts()

    def consensus(self, worker: Worker) -> Tensor:
        """Return the whole model's parameters: every stage's own, from the first pipeline."""
        from manyhands.strategies.pipeline.stage import gather_parameters

        workers = worker.config.workers
        roots = [s * workers if self.transport == "mpi" else s + 1 for s in range(self.stages)]
        return gather_parameters(worker, roots, self.stage_of(worker.rank, workers))
