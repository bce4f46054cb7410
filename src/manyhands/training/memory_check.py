"""Refuses a run that cannot fit this machine's memory, before anything starts.

Only what a run certainly needs is counted, so that no run that fits is refused. Activations, the
allocator's slack and what a strategy keeps beside the model are not: a run needs more than this.
"""

from __future__ import annotations

import logging
from contextlib import suppress
from dataclasses import dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from manyhands.config.optimizers import SGD, Adam, AdamW
from manyhands.data import free_space
from manyhands.errors import LaunchError
from manyhands.launch import resources
from manyhands.launch.environment import in_group
from manyhands.launch.hosts import lab_hosts

if TYPE_CHECKING:
    from torch import nn

    from manyhands.config.run import RunConfig

_logger = logging.getLogger(__name__)

# Bytes that only one process uses: Python, PyTorch and MPI without a model. Measured with PyTorch
# 2.13 and MPICH 5: 60 MiB for each process beyond the first, which uses 118 MiB.
PROCESS = 40 << 20
_MEMORY_DISKS = ("tmpfs", "ramfs")


@dataclass(frozen=True, kw_only=True)
class Needs:
    """The bytes of memory that all processes of a run need at the same time, at least."""

    processes: int
    parameters: int = 0
    gradients: int = 0
    optimizer: int = 0
    copies: int = 0  # of the parameters, for the record
    batches: int = 0

    @property
    def total(self) -> int:
        """All of it."""
        return sum(getattr(self, each.name) for each in fields(self))

    def describe(self) -> str:
        """Return what the memory is for, the largest first.

        >>> Needs(processes=80 << 20, parameters=4_000_000, gradients=4_000_000).describe()
        'processes 83.9 MB, parameters 4.0 MB, gradients 4.0 MB'
        """
        sizes = [(getattr(self, each.name), each.name) for each in fields(self)]
        known = sorted((each for each in sizes if each[0]), key=lambda each: -each[0])
        return ", ".join(f"{name} {free_space.format_bytes(size)}" for size, name in known)


def check(config: RunConfig, module: nn.Module | None, stored: Path, examples: int) -> None:
    """Refuse a run too large for this machine's memory with all processes; warn if it is tight.

    Args:
        config: The run's options.
        module: The model; None where only the workers build it.
        stored: The folder of its data, which the workers map. On a disk in memory it counts.
        examples: The examples to train on.

    Raises:
        LaunchError: With what is needed, what there is, and what to do.
    """
    if config.places or lab_hosts() or in_group():
        return
    needs = count(config, module if config.device == "cpu" else None, stored, examples)
    free, whole = resources.free_memory(), resources.whole_memory()
    held = _own_memory() + _in_memory(stored)  # as long as the run lasts
    lacks = whole is not None and needs.total + held > whole
    if not lacks and (free is None or needs.total <= free):
        return
    have = (
        f"of the {free_space.format_bytes(whole or 0)} of this machine "
        f"{free_space.format_bytes(held)} hold this process and the data"
        if lacks
        else f"{free_space.format_bytes(free or 0)} is free"
    )
    text = (
        f"workers is {config.workers}, and the run's {config.processes} processes need at least "
        f"{free_space.format_bytes(needs.total)} of memory ({needs.describe()}), but {have}; use "
        "fewer workers, a smaller model or batch or an optimizer with less state, or divide the "
        "model among hosts (strategy pipeline or tensor)"
    )
    if lacks:
        raise LaunchError(text)
    _logger.warning("warning: %s", text)


def count(config: RunConfig, module: nn.Module | None, stored: Path, examples: int) -> Needs:
    """Return the least memory that the processes of a run need, as `check` takes them."""
    update = min(config.batch_size, examples)
    share = update if config.strategy.supports.whole_batches else update // config.workers
    batches = config.workers * (share // config.accumulate) * _example_bytes(stored)
    others = Needs(processes=config.processes * PROCESS, batches=batches)
    if module is None or any(_is_lazy(parameter) for parameter in module.parameters()):
        return others
    sizes = [(p.numel() * p.element_size(), p.requires_grad) for p in module.parameters()]
    every, trained = sum(b for b, _ in sizes), sum(b for b, trains in sizes if trains)
    chosen = config.optimizer
    moments = 2 if isinstance(chosen, Adam | AdamW) else 0
    if isinstance(chosen, SGD) and chosen.momentum:
        moments = 1
    return Needs(
        processes=others.processes,
        batches=batches,
        parameters=config.workers * every,
        gradients=config.workers * trained,
        optimizer=moments * trained,  # once: the processes of one host may divide it
        copies=config.workers * trained,
    )


def _is_lazy(parameter: nn.Parameter) -> bool:
    try:
        return parameter.shape is None
    except RuntimeError:
        return True


def _example_bytes(stored: Path) -> int:
    """Return the bytes of one example's first feature; 0 where the data is streamed."""
    path = next((p for p in sorted(stored.glob("train_x*.npy"))), None)
    if path is None:
        return 0
    array = np.load(path, mmap_mode="r")
    return int(array.nbytes // max(1, len(array)))


def _own_memory() -> int:
    """Return the bytes of memory that only this process uses."""
    with suppress(OSError, ValueError, IndexError):
        for line in Path("/proc/self/status").read_text().splitlines():
            if line.startswith("RssAnon:"):
                return int(line.split()[1]) * 1024
    return 0


def _in_memory(folder: Path) -> int:
    """Return the bytes of a folder's files if its disk is in memory, as a tmpfs is."""
    best = ("", "")
    with suppress(OSError, ValueError):
        for line in Path("/proc/mounts").read_text().splitlines():
            place, kind = line.split()[1:3]
            inside = folder.resolve().is_relative_to(place.replace("\\040", " "))
            best = max(best, (place, kind), key=lambda each: len(each[0])) if inside else best
    if best[1] not in _MEMORY_DISKS:
        return 0
    return sum(path.stat().st_size for path in folder.glob("*.npy"))
