"""One worker of a user's own loop, as a strategy's step sees it."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor, nn

from manyhands.config.option_declaration import NON_NEGATIVE, POSITIVE
from manyhands.errors import ConfigError
from manyhands.model.early_gradients import EarlyGradients
from manyhands.model.layers import view_parameters
from manyhands.model.replica import Replica
from manyhands.strategies.strategy import Strategy, consensus_of, strategy_of
from manyhands.training.process.same_model_check import check_same_model
from manyhands.training.userloop.sharded_loader import BatchWeight

if TYPE_CHECKING:
    from manyhands.comm import Communicator
    from manyhands.config.run import RunConfig
    from manyhands.training.output_folder import Claim


class UserLoop:
    """One worker of a user's own loop: what a strategy's step needs.

    A gradient travels with one number more per parameter tensor, which says how many workers have
    one: what no worker's loss depends on keeps none, as in plain PyTorch.
    """

    def __init__(
        self,
        module: nn.Module,
        optimizer: torch.optim.Optimizer,
        config: RunConfig,
        group: Communicator,
    ) -> None:
        self.config = config
        self.comm = group
        self.optimizer = optimizer
        self.facts: dict[str, Any] = {}
        self.state: Any = None
        self.step = 0
        self._clip: float | None = None
        self._early: EarlyGradients | None = None
        self._loss: Tensor | None = None  # whose backward pass is part of the step
        self._worths: list[BatchWeight] = []  # of the batches since the last step
        self.seeded = False
        self.claims: dict[Path, Claim] = {}  # folders that this loop has locked
        self.folders: set[Path] = set()  # of checkpoints: those that it has written or loaded
        _check_same(module, optimizer, config, group)
        self.replica = Replica(module, _no_loss)
        self._home = self.replica.params
        self._clear()
        self._sent = self._home.new_zeros(self.replica.dim + len(self.replica.named))
        self._grads = list(self.views(self._sent).values())
        _broadcast_state(module, self._home, optimizer, group)
        strategy_of(config).begin(self)

    @property
    def rank(self) -> int:
        """This worker's rank, from 0."""
        return self.comm.rank

    @property
    def params(self) -> Tensor:
        """The parameters, live; shape (dim,)."""
        return self._home

    def views(self, vector: Tensor) -> dict[str, Tensor]:
        """Return each parameter's part of a vector such as `params`, by name, in its shape."""
        return view_parameters(vector, self.replica.named)

    @property
    def lr(self) -> float:
        """The learning rate of the optimizer's first group."""
        return float(self.optimizer.param_groups[0]["lr"])

    def tell(self, worth: BatchWeight) -> None:
        """Hear how much the batch counts that comes next."""
        self._worths.append(worth)
        if not self.seeded and self.rank:
            seeds = np.random.SeedSequence([torch.initial_seed() % 2**63, self.rank])
            torch.manual_seed(int(seeds.generate_state(1)[0]))
        self.seeded = True

    def do(
        self, examples: float | None, clip_norm: float | None, loss: Tensor | None = None
    ) -> None:
        """Do one update with the present gradients and those of `loss`."""
        if loss is not None and not self._early:
            loss.backward()  # type: ignore[no-untyped-call]
        self.check_home()
        NON_NEGATIVE.check("examples", examples)
        POSITIVE.check("clip_norm", clip_norm)
        size, worths = self.comm.size, self._worths
        worth, self._worths = (worths[-1] if worths else None), []
        if size == 1:
            worth = BatchWeight(1.0, 1, 1)
        elif examples is not None:
            total = float(self.comm.sum(np.array([float(examples)]))[0])
            if not total > 0:
                raise ConfigError("examples is 0 on all workers; expected more on one at least")
            worth = BatchWeight(examples / total, total, examples)
        elif len({one.weight for one in worths}) > 1:
            raise ConfigError(
                f"{len(worths)} batches of different sizes were gathered for one step: a worker's "
                "part counts differently in each; step after each of them, or leave out the last "
                "batch of an epoch (drop_last=True)"
            )
        self._clip, self._loss = clip_norm, loss if self._early else None
        strategy_of(self.config).step(self, worth or BatchWeight(1 / size, size, 1))
        self.step += 1

    def gradient(self, batch: BatchWeight) -> Tensor:
        """Return what backward left, times the weight; then 1 for each tensor that has one."""
        dim = self.replica.dim
        if self._early:
            self._early.fill(self._backward, batch.weight if batch.examples else 0.0)
        reached = [p.grad is not None for _, p in self.replica.named]
        for number, ((_, p), view) in enumerate(zip(self.replica.named, self._grads, strict=True)):
            if self._early:
                break
            self._check_dense(number)
            if p.grad is None:
                view.zero_()
            else:
                view.copy_(p.grad)
        if not any(reached):
            raise ConfigError(
                "no parameter has a gradient; expected step(loss), or loss.backward() before step()"
            )
        if self._early:
            pass
        elif not batch.examples:
            self._sent.zero_()
        elif batch.weight != 1.0:
            self._sent[:dim].mul_(batch.weight)
        self._sent[dim:] = torch.tensor(reached, dtype=self._sent.dtype)
        return self._sent

    def _check_dense(self, number: int) -> None:
        name, p = self.replica.named[number]
        if p.grad is not None and p.grad.layout != torch.strided:
            raise ConfigError(f"{name} has a sparse gradient; expected sparse=False")

    def _backward(self) -> None:
        loss, self._loss = self._loss, None
        if loss is not None:
            loss.backward()  # type: ignore[no-untyped-call]

    def watch_backward(self, ready: Callable[[int], None]) -> Tensor:
        """Let `gradient` do the backward pass of a step's loss, and call `ready` meanwhile."""
        self._early = EarlyGradients(self.replica.named, self._sent, ready, self._check_dense)
        return self._sent

    def allreduce(self, vector: Tensor, algorithm: str = "auto") -> None:
        """Sum `vector` over the workers, in place."""
        self.comm.allreduce(vector, algorithm)

    def exchanging(self) -> AbstractContextManager[None]:
        """Count nothing: a user's loop has no clock of ours."""
        return nullcontext()

    def update(self, gradient: Tensor) -> None:
        """Let the optimizer step along `gradient`, then clear it.

        A vector as long as the parameters will do: then each tensor that has a gradient here moves.
        """
        lengths = (self.replica.dim, len(self._sent))
        if len(gradient) not in lengths:
            raise ConfigError(
                f"update got a gradient of {len(gradient)} numbers; expected {lengths[0]} as in "
                f"params, or all {lengths[1]} that gradient returned"
            )
        if gradient.data_ptr() != self._sent.data_ptr():
            self._sent[: len(gradient)].copy_(gradient)
        reached = (self._sent[self.replica.dim :] > 0).tolist()
        for (_, p), view, has in zip(self.replica.named, self._grads, reached, strict=True):
            p.grad = view if has else None
        if self._clip is not None:
            nn.utils.clip_grad_norm_([p for _, p in self.replica.named], self._clip)
        self.optimizer.step()
        self._clear()

    def average_buffers(self) -> None:
        """Average BatchNorm's statistics and the like. Collective."""
        if self.comm.size > 1:
            for buffer, _ in self.replica.shared_buffers():
                mean = self.comm.sum(buffer.numpy().astype(np.float64)) / self.comm.size
                buffer.copy_(torch.as_tensor(mean))

    def finish(self) -> None:
        """Bring all workers to the same model. Collective."""
        self.check_home()
        strategy = strategy_of(self.config)
        strategy.finish(self)
        if type(strategy).finish is Strategy.finish:
            self._home.copy_(consensus_of(self))
        self.average_buffers()

    def leave(self) -> None:
        """Give every parameter its own memory again, and unlock the checkpoint folders."""
        self.unlock()
        if self._early:
            self._early.close()
        for _, p in self.replica.named:
            p.data = p.data.clone()
        self._clear()

    def unlock(self) -> None:
        """Unlock the folders of this loop's checkpoints."""
        while self.claims:
            self.claims.popitem()[1].release()

    def _clear(self) -> None:
        for _, p in self.replica.named:
            p.grad = None

    def check_home(self) -> None:
        """Refuse a step with parameters outside the flat vector."""
        if self.replica.params is not self._home:
            raise ConfigError(
                "inside consensus() the model is not this worker's own; step, save and load outside"
            )
        start = self._home.data_ptr()
        for name, p in self.replica.named:
            if p.data_ptr() != start:
                raise ConfigError(
                    f"{name} is not where it was when the model joined; expected to(), half() and "
                    "their kin before join, and load_state_dict() without assign=True"
                )
            start += p.numel() * p.element_size()


def _no_loss(output: Tensor, target: Tensor) -> Tensor:
    raise AssertionError("the loss is the user's loop's")


def _check_same(
    module: nn.Module, optimizer: torch.optim.Optimizer, config: RunConfig, group: Communicator
) -> None:
    """Refuse a group whose workers have different models or optimizers. Collective."""
    check_same_model(module, group)
    mine = {
        "optimizer": type(optimizer).__name__,
        "learning rates": [float(g.get("lr", 0.0)) for g in optimizer.param_groups],
        "optimizer's state": [list(t.shape) for t in _optimizer_tensors(optimizer)],
        "strategy": repr(config.strategy),
    }
    theirs = group.gather(mine)
    for rank, other in enumerate(theirs):
        wrong = [name for name in mine if other[name] != theirs[0][name]]
        if wrong:
            raise ConfigError(
                f"the {wrong[0]} of worker {rank} is another than worker 0's; expected every "
                "worker to build the same"
            )


def _optimizer_tensors(optimizer: torch.optim.Optimizer) -> list[Tensor]:
    """Return the optimizer's state tensors, in the same order on all workers."""
    known = [optimizer.state.get(p, {}) for g in optimizer.param_groups for p in g["params"]]
    return [s[key] for s in known for key in sorted(s) if isinstance(s[key], Tensor)]


def _broadcast_state(
    module: nn.Module, params: Tensor, optimizer: torch.optim.Optimizer, group: Communicator
) -> None:
    """Give all workers worker 0's parameters, buffers and optimizer state. Collective."""
    if group.size == 1:
        return
    frozen = [p for p in module.parameters() if not p.requires_grad]
    with torch.no_grad():
        for tensor in [params, *frozen, *module.buffers(), *_optimizer_tensors(optimizer)]:
            if tensor.numel():
                raw = tensor.detach().reshape(-1).contiguous().view(torch.uint8)
                group.broadcast(raw)
                tensor.copy_(raw.view(tensor.dtype).reshape(tensor.shape))
