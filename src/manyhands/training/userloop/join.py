"""Your own training loop with many workers: `with join(model, optimizer) as hands:`."""

from __future__ import annotations

import atexit
import logging
import os
import sys
import traceback
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy

from manyhands.comm.rendezvous import compare_versions, surrounding_group
from manyhands.comm.single_process import SingleProcess
from manyhands.config.optimizers import expect_no_closure
from manyhands.config.options import configure, options
from manyhands.config.strategy_table import find_strategy
from manyhands.errors import ConfigError
from manyhands.launch.environment import group_size, threads_in_group
from manyhands.launch.host import hostname
from manyhands.launch.mpi_libraries import load_matching
from manyhands.strategies import STRATEGIES
from manyhands.strategies.strategy import consensus_of
from manyhands.training import own_allreduce_option
from manyhands.training.userloop import checkpoint
from manyhands.training.userloop.loop import UserLoop
from manyhands.training.userloop.sharded_loader import ShardedLoader
from manyhands.training.userloop.watched_comm import WatchedComm

if TYPE_CHECKING:
    from manyhands.comm import Communicator
    from manyhands.config.run import RunConfig
    from manyhands.strategies import Strategy


_logger = logging.getLogger(__name__)


class Hands:
    """One worker's view of the group; `join` makes it.

    Every method is collective: all workers call the same ones in the same order.
    """

    def __init__(self, loop: UserLoop, watched: WatchedComm | None = None) -> None:
        self._loop, self._watched = loop, watched

    def save(self, folder: str | Path, *, keep: int = 2, **position: Any) -> None:
        """Write a checkpoint of every worker into `folder`, atomically.

        It holds weights, buffers, the optimizer's state and options, torch's random state and the
        strategy's state. Call it between two steps; all workers must see the folder.

        Args:
            folder: The folder of the checkpoints; created if missing.
            keep: The number of checkpoints to keep, the newest.
            **position: Where your loop is, which `load` gives back: `epoch=3`, or
                `scheduler=scheduler.state_dict()`; numbers and texts, and lists, tuples and
                dictionaries of them.

        Raises:
            ConfigError: Also where the folder is another loop's that went further: load it first,
                or take another.
        """
        checkpoint.save(self._loop, Path(folder), position, keep)

    def load(self, folder: str | Path) -> dict[str, Any]:
        """Resume from the newest complete checkpoint in `folder`; return your loop's position.

        Without a checkpoint the position is an empty dictionary, so one script starts and resumes:
        `for epoch in range(hands.load("checkpoints").get("epoch", 0), 10):`. If you save between
        two epochs, the final weights are bit-identical to an uninterrupted loop. With `sync` the
        number of workers may change. Create a scheduler before `load`, which sets learning rates
        when created, and restore the scheduler's state after.
        """
        return checkpoint.load(self._loop, Path(folder), self._say)

    def _say(self, text: str) -> None:
        if self.rank == 0:
            _logger.warning(text)

    @property
    def rank(self) -> int:
        """This worker's rank, from 0: `if hands.rank == 0:` prints and saves once."""
        return self._loop.comm.rank

    @property
    def size(self) -> int:
        """The number of workers."""
        return self._loop.comm.size

    def share(self, loader: Iterable[Any], *, evaluation: bool = False) -> Iterable[Any]:
        """Return the loader with this worker's share of each batch.

        Every worker passes the loader of the whole data, as a single process would. `batch_size`
        is then the size of an update, and P workers take as many steps as one. From the first batch
        on, the workers' random numbers differ, for dropout; worker 0 draws the order of the data.

        Args:
            loader: A DataLoader, of which each worker loads only its part, or any iterable of
                batches: tensors or arrays, or tuples, lists and dictionaries of them.
            evaluation: Set it where no step is taken, so that over the workers each example comes
                exactly once, also where a batch is smaller than the group.
        """
        if self.size == 1:
            return loader
        tell = self._loop.tell
        return ShardedLoader(loader, self._loop.comm, evaluation=evaluation, tell=tell)

    def step(
        self,
        loss: Tensor | None = None,
        *,
        examples: float | None = None,
        clip_norm: float | None = None,
    ) -> None:
        """Do one update: backward pass, exchange, optimizer step, and clear the gradients.

        Args:
            loss: The mean loss of this worker's batch. Without it, `step` uses the gradients that
                one or several calls of `loss.backward()` left.
            examples: The number of examples in this worker's loss. By default that of the last
                batch of a shared loader; without such a loader, all workers count equally.
            clip_norm: Clip the gradient to this norm: the summed gradient in `sync`, each worker's
                gradient in other strategies.
        """
        self._loop.do(examples, clip_norm, loss)
        if self._watched:
            self._watched.stepped(self._loop.step)

    @contextmanager
    def consensus(self) -> Iterator[None]:
        """Give the model the parameters that represent all workers, inside the `with` block.

        If workers differ between two steps (averaging, gossip), these are the average. Buffers,
        such as statistics of BatchNorm, stay averaged. Evaluate and save the model inside.
        """
        loop = self._loop
        loop.average_buffers()
        with loop.replica.holding(consensus_of(loop)):
            yield

    def sum(self, *values: Any) -> Any:
        """Return the sum of a number over all workers; of several numbers, a list."""
        numbers = [v.item() if isinstance(v, Tensor) else float(v) for v in values]
        totals = self._loop.comm.sum(np.array(numbers, np.float64)).tolist()
        return totals if len(totals) > 1 else totals[0]


@contextmanager
def join(
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    *,
    strategy: str | Strategy = "sync",
    seed: int = 0,
    timeout: float = 600.0,
    **options: Any,
) -> Iterator[Hands]:
    """Share the work of your own training loop among many workers.

    Under `mpiexec -n 4 python script.py`, srun or torchrun, each process is a worker; otherwise the
    one process is the only worker. All start with worker 0's weights and end with equal weights.

    Guarantees:
        - One worker is bit-identical to the loop without manyhands.
        - `sync` with P workers and a shared loader equals one worker, up to rounding, if the loss
          is a mean over examples and the model has no dropout and no BatchNorm. With plain SGD the
          same holds for averaging with period 1 and for gossip on the complete graph.
    Cost per step: that of the strategy, and one more number per parameter tensor.

    Args:
        model: A module on the CPU, of one floating type; do not move or convert it afterwards.
        optimizer: Any torch optimizer over the model's parameters that steps without a closure.
        strategy: "sync", "averaging", "gossip" or "sequential", a strategy object, or your own as
            "mine.py:Class".
        seed: Seed of gossip's random pairs.
        timeout: Seconds that a worker waits for another. Then all are stopped, and a report names
            the missing workers and where each one is. Only waiting counts, not your own code.
        **options: The strategy's options: allreduce, period, average_optimizer, topology …

    Raises:
        ConfigError: If an option does not work in your own loop; `fit` has all options.
        LaunchError: If the processes cannot connect to each other.

    Examples:
        >>> import torch
        >>> import manyhands as mh
        >>> model = torch.nn.Linear(3, 1)
        >>> optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        >>> loader = [(torch.ones(8, 3), torch.ones(8, 1))] * 5
        >>> with mh.join(model, optimizer, strategy="sync") as hands:
        ...     for x, y in hands.share(loader):
        ...         hands.step(torch.nn.functional.mse_loss(model(x), y))
        >>> hands.size  # 2 under `mpiexec -n 2`
        1
    """
    group = _find_group()
    asked, summing = own_allreduce_option.name_function({"strategy": strategy, **options})
    strategy = asked.pop("strategy")
    config = _configure(strategy, group, {"seed": seed, "timeout": timeout, **asked})
    summing = own_allreduce_option.resolve(config.strategy, summing)
    own_allreduce_option.register(group, config.strategy, summing)
    _check_model_and_optimizer(model, optimizer)
    if group.size > 1 and "OMP_NUM_THREADS" not in os.environ:
        torch.set_num_threads(threads_in_group(group.gather))
    watched = WatchedComm(group, timeout) if group.size > 1 else None
    try:
        loop = UserLoop(model, optimizer, config, watched or group)
        _warn(config.strategy.warning(group.gather(hostname())), group.rank)
        try:
            yield Hands(loop, watched)
            loop.finish()
        except BaseException as error:
            if watched:
                watched.close()
                loop.unlock()
                _end_all(group, error)
            raise
        finally:
            loop.leave()
    finally:
        if watched:
            watched.close()


def _warn(text: str, rank: int) -> None:
    if text and rank == 0:
        _logger.warning("warning: %s", text)


def _find_group() -> Communicator:
    """Return the surrounding group; without one, a group of one worker."""
    load_matching()
    size = group_size()
    if size is None or size == 1:
        return SingleProcess()
    group = surrounding_group(size)
    compare_versions(group)
    atexit.register(_at_exit, group)
    return group


def _configure(strategy: str | Strategy, group: Communicator, asked: dict[str, Any]) -> RunConfig:
    """Return a checked configuration with the strategy; refuse what the loop decides."""
    kind = find_strategy(strategy)
    _check_strategy(kind() if isinstance(strategy, str) else strategy, strategy)
    if "privacy" in asked or "private" in asked:
        raise ConfigError(
            "a loop of your own cannot be private: what it samples and looks at is not accounted "
            "for; use manyhands.fit(…, privacy=manyhands.Privacy(epsilon=…))"
        )
    table = options()
    for name in asked:
        if name in table and not table[name].is_taken_by("join"):
            raise ConfigError(
                f"{name} is an option of manyhands.fit; here your own loop decides it: leave it out"
            )
    over = {"comm": group.name} if group.name.startswith("torch:") else {}
    run = {"strategy": strategy, "workers": group.size, "batch_size": group.size, **over}
    config = configure({**run, **asked})
    _check_strategy(config.strategy, config.strategy)
    config.strategy.check_join()
    return config


def _check_strategy(strategy: Any, shown: object) -> None:
    """Refuse a strategy that cannot run one step after the other."""
    if strategy.supports.join:
        return
    able = ", ".join(name for name, kind in STRATEGIES.items() if kind().supports.join)
    raise ConfigError(
        f"strategy is {shown!r}, which is more than a step in a loop of your own; expected one of "
        f"{able}, or manyhands.fit, which trains with all strategies"
    )


def _check_model_and_optimizer(model: Any, optimizer: Any) -> None:
    """Refuse a model or an optimizer that cannot be driven from outside."""
    if not isinstance(model, nn.Module):
        raise ConfigError(f"model is a {type(model).__name__}; expected a torch.nn.Module")
    if not isinstance(optimizer, torch.optim.Optimizer):
        kind = type(optimizer).__name__
        raise ConfigError(f"optimizer is a {kind}; expected a torch.optim.Optimizer")
    if isinstance(model, nn.parallel.DistributedDataParallel):
        raise ConfigError(
            "model is a DistributedDataParallel, which sums gradients itself; expected model.module"
        )
    expect_no_closure(optimizer)
    for name, p in model.named_parameters():
        if is_lazy(p):
            raise ConfigError(
                f"{name} has no shape yet, as its layer is lazy; pass a batch through the model "
                "before you make the optimizer"
            )
        if p.device.type != "cpu" or p.dtype not in (torch.float32, torch.float64):
            raise ConfigError(
                f"{name} is {p.dtype} on {p.device}; expected float32 or float64 on the cpu"
            )
    mine = set(model.parameters())
    if any(p not in mine for group in optimizer.param_groups for p in group["params"]):
        raise ConfigError(
            "the optimizer has parameters that the model does not; expected one module that holds "
            "them all, e.g. torch.nn.ModuleList([model, criterion])"
        )


def _end_all(group: Communicator, error: BaseException) -> None:
    """End all workers, which would otherwise wait for this one forever."""
    if not group.lost(error):
        text = "".join(traceback.format_exception(error))
        print(f"[rank {group.rank}] {text}", file=sys.stderr, end="", flush=True)
    code = int(getattr(error, "exit_code", 1))
    group.abort(code)
    os._exit(code)  # MPI may come back from there, and Python would tell of the error once more


def _at_exit(group: Communicator) -> None:
    """End the others when this process ends by an exception outside of `join`."""
    if getattr(sys, "last_value", None) is not None:
        group.abort(1)
