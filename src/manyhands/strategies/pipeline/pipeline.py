"""Pipeline: the model is cut into stages, one process each; micro-batches flow through them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, ClassVar, Literal, get_args

from manyhands import validate
from manyhands.config.declare import COUNT, PROCESSES, check_declared, option
from manyhands.errors import ConfigError, nearest
from manyhands.strategies.pipeline.schedule import Kind, chunks
from manyhands.strategies.strategy import Exposure, Strategy, Supports
from manyhands.worker.abilities import SplitsModel

if TYPE_CHECKING:
    from torch import Tensor, nn

    from manyhands.comm import Communicator
    from manyhands.config.run import RunConfig
    from manyhands.model.replica import Replica
    from manyhands.worker.worker import Worker

Transport = Literal["mpi", "rpc"]
WAYS = ("time", "parameters")
_OVER_MPI = Supports(
    equals_one=True,
    resume=True,
    private=True,
    workers=1,
    beside="stage",
    lacks={
        "model_loss": "has no process with the whole model",
        "tensors": "passes one tensor from stage to stage",
        "accumulate": "computes a batch in pieces anyhow: use micro_batches",
        "autocast": "passes float32 from stage to stage",
        "sync_batchnorm": "normalises one micro-batch at a time, as it comes",
        "clip_norm": "has no process that knows the length of the whole gradient",
    },
)
_OVER_RPC = replace(_OVER_MPI, private=False)


@dataclass(frozen=True)
class Pipeline(Strategy, SplitsModel):
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
    stages: int = option(2, "parts that the model is cut into", PROCESSES)
    cut: str | None = option(
        None,
        "the layers at which a new stage begins (fc1, or conv2,fc1), or what to "
        "balance: time, parameters; by default convolutions | fully connected, else time",
    )
    micro_batches: int | None = option(
        None, "parts of a batch that flow one after the other; 4 by MPI", COUNT
    )
    order: Kind | None = option(
        None, "gpipe: all forward passes first; 1f1b: backward as soon as possible [1f1b]"
    )
    transport: Transport = option(
        "mpi", "how activations travel: MPI messages, or torch RPC from a driver"
    )

    def __post_init__(self) -> None:
        check_declared(self)
        validate.one_of(get_args(Transport), transport=self.transport)
        validate.one_of(get_args(Kind), order=self.order)
        if self._names and len(self._names) != self.stages - 1:
            raise ConfigError(
                f"cut is {self.cut!r} for {self.stages} stages; expected {self.stages - 1} names "
                "of layers, one for each stage after the first"
            )
        if self.transport == "rpc" and (self.micro_batches or 1) > 1:
            raise ConfigError(
                f"micro_batches is {self.micro_batches} with transport rpc; distributed autograd "
                "adds gradients in the order in which they come, so the run could not be repeated: "
                "use transport mpi, or leave micro_batches out"
            )
        if self.transport == "rpc" and self.order:
            raise ConfigError(
                f"order is {self.order} with transport rpc, where one batch at a time goes "
                "through the stages; it would be ignored: leave it out"
            )

    @property
    def supports(self) -> Supports:
        """What it can do: over RPC it cannot be private."""
        return _OVER_RPC if self.transport == "rpc" else _OVER_MPI

    @property
    def exposure(self) -> Exposure:
        """Others see the sum over the pipelines only; the stages trust one another."""
        return "sum"

    @property
    def _names(self) -> list[str]:
        """The names in `cut`, if it has names."""
        return self.cut.split(",") if self.cut and self.cut not in WAYS else []

    @property
    def parts(self) -> int:
        """How many micro-batches a batch is cut into."""
        return self.micro_batches or (4 if self.transport == "mpi" else 1)

    def validate(self, config: RunConfig) -> None:
        """Refuse micro-batches without examples, and what a split model cannot do."""
        if config.batch_size < config.workers * self.parts:
            raise ConfigError(
                f"batch_size is {config.batch_size} for {config.workers} × {self.parts} "
                "micro-batches (workers × micro_batches); expected at least one example for each"
            )
        if self.transport == "rpc" and config.checkpoint_every is not None:
            raise ConfigError(
                f"checkpoint_every is {config.checkpoint_every!r} with transport rpc, whose runs "
                "cannot go on from a checkpoint; use transport mpi, or leave it out"
            )
        if self.transport == "rpc" and config.workers > 1:
            raise ConfigError(
                f"workers is {config.workers} with transport rpc, where one worker drives all "
                "stages; use transport mpi for several pipelines"
            )
        if config.slow is not None:
            raise ConfigError(
                f"slow is {config.slow!r}, which pipeline would ignore: its stages wait for each "
                "other whatever a worker's part of the batch; leave it out"
            )
        if config.kernels == "compile":
            raise ConfigError("kernels is 'compile', which pipeline cannot use; leave it out")

    def check_model(self, *, layers: Sequence[str]) -> None:
        """Refuse more stages than layers, and a cut at no layer."""
        if self.stages > len(layers):
            raise ConfigError(
                f"stages is {self.stages}, but the model has {len(layers)} layers with parameters "
                f"and a stage holds one at least; use {len(layers)} stages at most"
            )
        tops = [name.partition(".")[0] for name in layers]
        for name in self._names:
            if name.partition(".")[0] not in tops:
                raise ConfigError(
                    f"cut names {name!r}; expected {', '.join(WAYS)} or layers of the model: "
                    f"{', '.join(dict.fromkeys(tops))}.{nearest(name, [*tops, *WAYS])}"
                )

    def check_module(self, module: nn.Module) -> None:
        """Refuse a module that is no chain of layers."""
        from manyhands.strategies.pipeline.partition import blocks

        blocks(module, self.name)

    def processes(self, workers: int) -> int:
        """Return the stages of all pipelines, by RPC with a driver for each."""
        return workers * (self.stages + (self.transport == "rpc"))

    def at_once(self, examples: int) -> int:
        """Return the examples of the largest micro-batch."""
        return max(chunks(examples, self.parts), default=0)

    def follows(self, rank: int, workers: int) -> int:
        """Return which pipeline a process is of: rank s·W + w is stage s of pipeline w."""
        return rank % workers

    def stage_of(self, rank: int, workers: int) -> int | None:
        """Return which stage a process is; None for the driver, which is none."""
        if self.transport == "mpi":
            return rank // workers
        return rank - 1 if rank else None

    def part(
        self, whole: Replica, batch: tuple[Tensor, Tensor], group: Communicator, workers: int
    ) -> Replica:
        """Cut the model, on all processes alike, and keep this process's stage."""
        from manyhands.strategies.pipeline.partition import blocks, cut
        from manyhands.strategies.pipeline.stage import Stage

        x, y = (part[: self.at_once(len(batch[0]))] for part in batch)
        if whole.masks:
            with whole.undisturbed():
                chain = [entry for block in blocks(whole.module) for entry in block.modules]
                whole.masks.locate(chain, x)
        parts = cut(whole, self.stages, self.cut, (x, y), lambda mine: group.gather(mine)[0])
        return Stage(whole, parts, self.stage_of(group.rank, workers), whole.reached(x, y))

    def settled(self, replica: Replica) -> dict[str, Any]:
        """Return where the model was cut, which may have been measured."""
        cuts: list[str] = replica.cuts  # type: ignore[attr-defined]
        return {"cut": ",".join(cuts)} if cuts else {}

    def run(self, worker: Worker) -> None:
        """Train by one transport or the other; then bring together what the stages noted."""
        if self.transport == "mpi":
            from manyhands.strategies.pipeline.link import work

            noted = work(worker, self)
        else:
            from manyhands.strategies.pipeline.rpc import work

            noted = work(worker, self)
        from manyhands.strategies.pipeline.timeline import merged

        worker.facts |= merged(self, worker.comm.gather(noted))

    def consensus(self, worker: Worker) -> Tensor:
        """Return the whole model's parameters: every stage's own, from the first pipeline."""
        from manyhands.strategies.pipeline.stage import Stage

        stage, workers = worker.replica, worker.config.workers
        assert isinstance(stage, Stage)
        whole = stage.params.new_empty(stage.dim)
        for index, spans in enumerate(stage.spans):
            root = index * workers if self.transport == "mpi" else index + 1
            own = self.stage_of(worker.rank, workers) == index
            count = sum(stop - start for start, stop in spans)
            piece = worker.params if own else whole.new_empty(count)
            worker.comm.broadcast(piece, root)
            done = 0
            for start, stop in spans:
                whole[start:stop] = piece[done : done + stop - start]
                done += stop - start
        return whole
