"""What validation reads of a pipeline: its facts, and what its options refuse."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Literal, get_args

from manyhands import value_checks
from manyhands.config.strategy_spec import Exposure, StrategySpec, Supports
from manyhands.errors import ConfigError, nearest
from manyhands.strategies.pipeline.schedule import Kind, chunks

if TYPE_CHECKING:
    from torch import nn

    from manyhands.config.run import RunConfig

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


class PipelineSpec(StrategySpec):
    """The facts and checks of `Pipeline`; the options themselves are declared there."""

    stages: int
    cut: str | None
    micro_batches: int | None
    order: Kind | None
    transport: Transport

    def check_options(self) -> None:
        """Refuse options that contradict each other."""
        value_checks.one_of(get_args(Transport), transport=self.transport)
        value_checks.one_of(get_args(Kind), order=self.order)
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

    def count_parts(self) -> int:
        """Return how many micro-batches a batch is cut into."""
        return self.parts

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
                "cannot resume from a checkpoint; use transport mpi, or leave it out"
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
        from manyhands.strategies.model_blocks import blocks

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
