"""Finds a model's randomness: dropout that `Masks` covers, and everything else.

Runs that divide a batch among processes end where one process ends, dropout included. Whatever else
a model draws (attention's own dropout, dropout between the layers of an LSTM, random calls of its
own), and statistics of a batch, depend on how the batch is divided: it is named in a warning.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode, resolve_name

from manyhands.data import batch_tree
from manyhands.model.batchnorm import SharedStatistics, batch_norms, check, kind
from manyhands.model.dropout import KINDS, Masks, parse, public_key, will_be_recomputed
from manyhands.model.layers import track_forward

if TYPE_CHECKING:
    from manyhands.config.run import RunConfig
    from manyhands.data.batch_tree import Tree
    from manyhands.model.replica import Replica

_NAMED = 4  # sources that a warning names; it counts the others


class Survey(NamedTuple):
    """The random draws of one forward pass in training mode.

    Attributes:
        drops: Whether `Masks` has anything to do.
        others: Other sources, each named for a message.
        recomputed: Whether some dropout is recomputed in the backward pass.
    """

    drops: bool
    others: list[str]
    recomputed: bool = False


def prepare(config: RunConfig, replica: Replica, batch: tuple[Tree, Tree]) -> list[str]:
    """Give the replica its dropout masks, if needed; return other sources of randomness.

    A private run's masks were made before, from its secret key. With `sync_batchnorm` the replica
    also gets the statistics of all workers, for its BatchNorm layers.
    """
    if config.sync_batchnorm:
        check(replica.module)
        if config.workers > 1:
            undoable = config.on_failure == "continue"
            replica.norms = SharedStatistics(replica.module, undoable=undoable)
    masks, replica.masks = replica.masks, None
    surveyed = survey(replica, *batch)
    device = replica.params.device
    if is_covered(surveyed, device):
        replica.masks = masks or Masks(public_key(config.seed), device)
    elif surveyed.drops:
        return [*surveyed.others, "dropout that is recomputed on a GPU"]
    return surveyed.others


def is_covered(surveyed: Survey, device: torch.device) -> bool:
    """Return whether `Masks` computes the dropout: not where a GPU recomputes it."""
    return surveyed.drops and not (surveyed.recomputed and device.type == "cuda")


def warning(config: RunConfig, replica: Replica, others: Sequence[str]) -> str:
    """Return a warning where results depend on the division of batches despite a promise.

    Args:
        config: The run's, of several processes.
        replica: The model.
        others: The sources that `prepare` found.
    """
    strategy, examples = config.strategy, config.batch_size // config.workers
    divided = config.workers > 1 or strategy.at_once(examples) < examples
    norms = list(_batch_statistics(replica.judged, config)) if divided else []
    named = [*others, *norms]
    if not named or not strategy.supports.equals_one:
        return ""
    able = not config.sync_batchnorm and "sync_batchnorm" not in strategy.supports.lacks
    remedy = "; for BatchNorm, add --sync-batchnorm" if norms and able else ""
    listed = ", ".join(named[:_NAMED])
    more = f" and {len(named) - _NAMED} more" if len(named) > _NAMED else ""
    return (
        f"{strategy.name} will not end exactly where one worker ends, since these depend on how "
        f"batches are divided: {listed}{more}{remedy}"
    )


def survey(replica: Replica, x: Tree, y: Tree) -> Survey:
    """Pass a batch through the model once and record its random draws; nothing else changes."""
    module = replica.module
    drops = any(isinstance(layer, nn.modules.dropout._DropoutNd) for layer in module.modules())
    if not batch_tree.count_examples(x):
        return Survey(drops, [])
    with replica.undisturbed(), track_forward(module) as entered:
        watch = _RandomnessWatch(batch_tree.count_examples(x), entered, replica.params.device)
        own = _host_state()
        with watch:
            replica.objective(module, x, y)
        others = list(dict.fromkeys(watch.others))
        if not others and watch.drawn():
            others.append("random numbers drawn in compiled code")
        if _host_state() != own:
            others.append("random numbers of NumPy or Python's random")
    return Survey(drops or watch.drops, others, watch.recomputed)


class _RandomnessWatch(TorchFunctionMode):
    """Records which torch functions draw random numbers; masked dropout draws none."""

    def __init__(
        self, examples: int, entered: list[tuple[str, nn.Module]], device: torch.device
    ) -> None:
        super().__init__()
        self.examples, self.entered, self.device = examples, entered, device
        self.drops = self.recomputed = False
        self.others: list[str] = []
        self._state = self._random()

    def drawn(self) -> bool:
        """Return whether PyTorch's generators have moved since the last call."""
        before, self._state = self._state, self._random()
        return any(not torch.equal(a, b) for a, b in zip(before, self._state, strict=True))

    def _random(self) -> list[Tensor]:
        gpu = [torch.cuda.get_rng_state(self.device)] if self.device.type == "cuda" else []
        return [torch.get_rng_state(), *gpu]

    def __torch_function__(
        self, func: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:  # the mode is off inside
        kwargs = kwargs or {}
        if func in KINDS:
            call = parse(KINDS[func], args, kwargs)
            if call.active and call.x.dim() and len(call.x) == self.examples:
                self.drops = True
                self.recomputed |= will_be_recomputed()
                return call.x
            what = f"{_function_name(func)}, whose input has the batch in another dimension than 0,"
        elif func in (F.scaled_dot_product_attention, F.multi_head_attention_forward):
            what = "attention's own dropout"
        else:
            what = f"random numbers of {_function_name(func)}"
        before = self.drawn()  # by code that no mode sees
        result = func(*args, **kwargs)
        if self.drawn() or kwargs.get("generator") is not None:
            self.others.append(f"{what} {self._where()}")
        if before:
            self.others.append(
                f"random numbers drawn before {_function_name(func)} {self._where()}"
            )
        return result

    def _where(self) -> str:
        name, layer = self.entered[-1] if self.entered else ("", None)
        return f"in layer {name!r} ({type(layer).__name__})" if name else "in the model"


def _function_name(func: Callable[..., Any]) -> str:
    return str(resolve_name(func) or getattr(func, "__name__", func))


def _host_state() -> tuple[object, ...]:
    """Return the comparable states of NumPy's and Python's generators."""
    _, words, place, *_ = np.random.get_state()
    return np.asarray(words).tobytes(), place, random.getstate()


def _batch_statistics(module: nn.Module, config: RunConfig) -> Iterator[str]:
    """Yield the layers whose statistics are not those of a whole batch."""
    pieces = config.accumulate > 1
    if config.sync_batchnorm and not pieces:
        return
    what = f"statistics of a piece of a batch (accumulate is {config.accumulate})"
    for name, layer in batch_norms(module):
        yield f"{what if pieces else 'statistics of a batch'} in layer {name!r} ({kind(layer)})"
