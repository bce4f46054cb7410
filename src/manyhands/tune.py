"""Which kernels are fastest here for this model: time its own step, keep the best, remember it.

PyTorch offers several ways to compute the same convolution on a CPU, and which one wins differs by
machine and model by a factor of two. Like cuDNN's benchmark mode, for the CPU.
"""

from __future__ import annotations

import hashlib
import json
import os
import platform
import statistics
import tempfile
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from manyhands import forms

if TYPE_CHECKING:
    from manyhands.forms import Tree
    from manyhands.replica import Replica

_BUDGET = 2.0  # seconds for all candidates together


@dataclass(frozen=True)
class Kernels:
    """The choice, the milliseconds of each candidate, and where the choice comes from."""

    choice: str
    milliseconds: dict[str, float] = field(default_factory=dict)
    source: str = "given"

    def as_dict(self) -> dict[str, object]:
        """Return it as JSON can hold it."""
        return asdict(self)


def apply(replica: Replica, choice: str) -> None:
    """Make `replica` compute with these kernels; oneDNN is switched for the whole process."""
    torch.backends.mkldnn.enabled = not choice.startswith("native")  # type: ignore[assignment]
    images = choice.endswith("channels-last")
    replica.prepare = _channels_last if images else None
    replica.forward = torch.compile(replica.module) if choice == "compile" else replica.module


def _channels_last(x: Tensor) -> Tensor:
    return x.contiguous(memory_format=torch.channels_last) if x.dim() == 4 else x


def choose(
    replica: Replica,
    batch: tuple[Tree, Tree],
    slowest: Callable[[np.ndarray], np.ndarray],
    share: Callable[[list[float]], list[float]],
    *,
    step: Callable[[], object] | None = None,
    kind: str = "plain",
    takes_part: bool = True,
) -> Kernels:
    """Time the model's step with each kind of kernels and apply the fastest, alike on all workers.

    Args:
        replica: The model; its parameters, buffers and random state are left as they were.
        batch: One worker's batch, of the size that training will use.
        slowest: Elementwise maximum over the workers: a step takes as long as the slowest.
        share: Rank 0's list of numbers, on every worker.
        step: What is timed; by default the replica's gradient of the batch.
        kind: A name for what is timed, which the times are remembered under.
        takes_part: Whether this process computes gradients in training, and so is timed.
    """
    names = ["default", "native"]
    if any(leaf.dim() == 4 for leaf in forms.leaves(batch[0])):
        names += ["channels-last", "native-channels-last"]
    path = _cache_folder() / f"kernels-{_key(replica, batch, kind)}.json"
    # Only rank 0's view of the cache counts: workers must not disagree.
    cached = share(_read(path, names))
    if cached:
        times, source = np.array(cached), "cached"
    else:
        each, timed = _BUDGET / len(names), step or partial(replica.gradient, *batch)
        times = slowest(
            np.array([_time(replica, timed, name, each) if takes_part else 0.0 for name in names])
        )
        source = "measured"
        _write(path, dict(zip(names, times.tolist(), strict=True)))
    best = names[int(times.argmin())]
    apply(replica, best)
    return Kernels(best, {n: round(float(t), 3) for n, t in zip(names, times, strict=True)}, source)


def _time(replica: Replica, step: Callable[[], object], choice: str, budget: float) -> float:
    """Return the median milliseconds of one step with these kernels."""
    apply(replica, choice)
    times: list[float] = []
    end = time.perf_counter() + budget
    with replica.undisturbed():
        step()  # the first call allocates and, in oneDNN, generates code
        while len(times) < 3 or (len(times) < 15 and time.perf_counter() < end):
            begin = time.perf_counter()
            step()
            times.append(time.perf_counter() - begin)
    return 1000 * statistics.median(times)


def _key(replica: Replica, batch: tuple[Tree, Tree], kind: str) -> str:
    described = [
        platform.node(),
        platform.machine(),
        str(os.cpu_count()),
        torch.__version__,
        str(torch.get_num_threads()),
        ", ".join(str(tuple(leaf.shape)) for leaf in forms.leaves(batch[0])),
        str(replica.params.dtype),
        repr(replica.module),
        *([] if kind == "plain" else [kind]),
    ]
    return hashlib.blake2b("\n".join(described).encode(), digest_size=12).hexdigest()


def _cache_folder() -> Path:
    root = os.environ.get("MANYHANDS_CACHE")
    if root:
        return Path(root)
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "manyhands"


def _read(path: Path, names: list[str]) -> list[float]:
    with suppress(OSError, ValueError, KeyError, TypeError):
        times = json.loads(path.read_text())
        return [float(times[name]) for name in names]
    return []


def _write(path: Path, times: dict[str, float]) -> None:
    """Remember the times; a cache that cannot be written only costs measuring again."""
    with suppress(OSError):
        path.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile("w", dir=path.parent, delete=False) as file:
            json.dump(times, file)
        Path(file.name).replace(path)


def given(replica: Replica, choice: str) -> Kernels:
    """Apply kernels that the user named."""
    apply(replica, choice)
    return Kernels(choice)
