"""Finds the fastest kernels for a model: times its own step, and remembers the best.

PyTorch offers several ways to compute the same convolution on a CPU, and which one wins differs by
machine and model by a factor of two. Like cuDNN's benchmark mode, for the CPU. Convolutions with
few channels are often faster still as matrix products of our own (`conv_gemm.py`), which is tried
for all layers, then layer by layer: `default+gemm`, `native+gemm:conv1,pool3` …; and max-pooling in
another layout (`max_pool.py`): `native+pool`, `native+pool+gemm:conv2` …
"""

from __future__ import annotations

import hashlib
import json
import math
import os
import platform
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from manyhands.data import batch_tree
from manyhands.errors import ConfigError
from manyhands.model.kernels import conv_gemm, max_pool

if TYPE_CHECKING:
    from manyhands.data.batch_tree import Tree
    from manyhands.model.replica import Replica

_BUDGET = 2.0  # seconds for eight candidates
_EACH = 6  # layers at the most that are tried one by one
_TURNS = 5  # of three steps each, at the most
_NEAR = 1.1  # kernels that take so many times as long as the best are timed again
_NNPACK = 16  # examples from which on PyTorch lets NNPACK convolve, where oneDNN does not
_WIDE = 17  # the width of kernels from which on it does not


@dataclass(frozen=True)
class Kernels:
    """The chosen kernels, the milliseconds of each candidate, and the choice's source."""

    choice: str
    milliseconds: dict[str, float] = field(default_factory=dict)
    source: str = "given"

    def as_dict(self) -> dict[str, object]:
        """Return it in a JSON-compatible form."""
        return asdict(self)


def apply(replica: Replica, choice: str) -> None:
    """Make `replica` compute with these kernels; libraries are switched for the whole process."""
    fuse = not replica.of_model  # such a loss may look inside
    replica.forward, replica.prepare = install(replica.module, choice, fuse=fuse)


def install(
    module: nn.Module, choice: str, *, fuse: bool = True
) -> tuple[Callable[..., Any], Callable[[Tensor], Tensor] | None]:
    """Install these kernels in a model; return its forward and its input conversion."""
    libraries, _, ours = choice.partition("+gemm")
    base, _, pool = libraries.partition("+")
    switch(choice)
    units = _units(module, fuse=fuse)
    if pool:
        max_pool.install(module)
    if "+gemm" in choice:
        conv_gemm.install(_named(units, ours))
    forward = torch.compile(module) if base == "compile" else module
    return forward, _channels_last if base.endswith("channels-last") else None


def switch(choice: str) -> None:
    """Enable the libraries of these kernels, and no others, in this process."""
    own = choice.startswith("native")
    torch.backends.mkldnn.enabled = not (own or choice.startswith("nnpack"))  # type: ignore[assignment]
    torch.backends.nnpack.set_flags(not own)  # type: ignore[no-untyped-call]


@contextmanager
def restore_libraries() -> Iterator[None]:
    """Restore libraries and threads afterwards: the process belongs to the caller."""
    onednn, nnpack = torch.backends.mkldnn.enabled, torch._C._get_nnpack_enabled()
    threads = torch.get_num_threads()
    try:
        yield
    finally:
        torch.backends.mkldnn.enabled = onednn
        torch.backends.nnpack.set_flags(nnpack)  # type: ignore[no-untyped-call]
        torch.set_num_threads(threads)


def _units(module: nn.Module, *, fuse: bool) -> list[conv_gemm.Unit]:
    """Return what can be matrix products; all layers compute as PyTorch has them from now on."""
    conv_gemm.remove(module)
    max_pool.remove(module)
    return conv_gemm.units(module, fuse=fuse)


def _named(units: list[conv_gemm.Unit], which: str) -> list[conv_gemm.Unit]:
    """Return all of them, or where it says ":NAME,NAME" those."""
    known = {unit.name: unit for unit in units}
    names = which.removeprefix(":").split(",") if which else list(known)
    for name in names:
        if name not in known:
            raise ConfigError(
                f"kernels has gemm:{name}, but the model has no such convolution or pooling; "
                f"expected {', '.join(known) or 'no gemm: it has none at all'}"
            )
    return [known[name] for name in names]


def _channels_last(x: Tensor) -> Tensor:
    return x.contiguous(memory_format=torch.channels_last) if x.dim() == 4 else x


def choose(
    replica: Replica,
    batch: tuple[Tree, Tree],
    slowest: Callable[[np.ndarray], np.ndarray],
    share: Callable[[dict[str, float]], dict[str, float]],
    *,
    step: Callable[[], object] | None = None,
    kind: str = "plain",
    takes_part: bool = True,
) -> Kernels:
    """Time the model's step with each kind of kernels and apply the fastest, alike on all workers.

    Args:
        replica: The model; its parameters, buffers and random state are left as they were.
        batch: As many examples as training will pass through the model at once.
        slowest: Elementwise maximum over the workers: a step takes as long as the slowest.
        share: Rank 0's numbers by name, on every worker.
        step: What is timed; by default the replica's gradient of the batch.
        kind: A name for what is timed, which the times are remembered under.
        takes_part: Whether this process computes gradients in training, and so is timed.
    """
    offer = _Candidates.of(replica, batch, kind)
    path = _cache_folder() / f"kernels-{_key(replica, batch, kind, offer.layers)}.json"
    # Only rank 0's view of the cache counts: workers must not disagree.
    times, source = share(_read(path)), "cached"
    if not times:
        source, timed = "measured", step or partial(replica.gradient, *batch)
        # Of an uneven batch some workers have fewer examples, and would propose less.
        offer = offer._replace(nnpack="nnpack" in share({"nnpack": 1.0} if offer.nnpack else {}))
        for propose in (_libraries, _own_kernels, _toggle_layers, _close_candidates):
            names = propose(offer, times)
            mine = _time(replica, timed, names) if takes_part else [0.0] * len(names)
            for name, seconds in zip(names, map(float, slowest(np.array(mine))), strict=True):
                times[name] = min(seconds, times.get(name, math.inf))
        _write(path, times)
    best = _best(times)
    apply(replica, best)
    stated = {name: round(t, 3) for name, t in times.items() if math.isfinite(t)}
    return Kernels(best, stated, source)


def _best(times: dict[str, float]) -> str:
    return min(times, key=times.__getitem__)


class _Candidates(NamedTuple):
    """The available kernels for a model and a batch."""

    layers: list[str]  # that can be matrix products
    images: bool
    pools: bool  # whether max-pooling can have another layout
    nnpack: bool  # whether NNPACK would convolve

    @classmethod
    def of(cls, replica: Replica, batch: tuple[Tree, Tree], kind: str) -> _Candidates:
        """Return the candidates; steps that look between layers have fewer."""
        module, images = replica.module, [x for x in batch_tree.leaves(batch[0]) if x.dim() == 4]
        if kind != "plain":
            layers, pools = [], False
        else:
            layers = [unit.name for unit in _units(module, fuse=not replica.of_model)]
            pools = bool(max_pool.find_layers(module))
        many = any(len(x) >= _NNPACK for x in images) and kind != "bfloat16"
        return cls(layers, bool(images), pools, many and any(map(_convolves, module.modules())))


def _convolves(layer: nn.Module) -> bool:
    """Return whether NNPACK can compute the layer."""
    if not isinstance(layer, nn.Conv2d) or not torch.backends.nnpack.is_available():  # type: ignore[no-untyped-call]
        return False
    small = max(layer.kernel_size) < _WIDE and layer.dilation == (1, 1)
    return small and layer.weight.dtype == torch.float32


def _libraries(offer: _Candidates, times: dict[str, float]) -> list[str]:
    """Propose PyTorch's kernels for the whole model."""
    last = ["channels-last", "native-channels-last"] if offer.images else []
    return ["default", "native", *last, *(["nnpack"] if offer.nnpack else [])]


def _own_kernels(offer: _Candidates, times: dict[str, float]) -> list[str]:
    """Propose our own kernels for all layers, beside the best of the libraries'."""
    ways = (("+pool", offer.pools), ("+gemm", offer.layers))
    return [f"{_best(times)}{way}" for way, some in ways if some]


def _toggle_layers(offer: _Candidates, times: dict[str, float]) -> list[str]:
    """Propose to revert each layer, or to change each one alone if all together were slower."""
    layers = offer.layers
    if not 1 < len(layers) <= _EACH:
        return []
    base, products, _ = _best(times).partition("+gemm")
    sets = [[n for n in layers if (n == name) != bool(products)] for name in layers]
    return [f"{base}+gemm:{','.join(names)}" for names in sets]


def _close_candidates(offer: _Candidates, times: dict[str, float]) -> list[str]:
    """Propose close candidates again, where short steps make the difference matter."""
    near = [name for name in times if times[name] <= _NEAR * times[_best(times)]]
    seconds = 3 * sum(times[name] for name in near) / 1000
    return near if len(near) > 1 and seconds < _BUDGET / 8 else []


def _time(replica: Replica, step: Callable[[], object], names: list[str]) -> list[float]:
    """Return the milliseconds of one step with each of these kernels, the shortest of several.

    Whatever else the machine does makes steps longer, never shorter: of few the shortest says most.
    They take turns, since a machine may be slower for a while.
    """
    shortest, budget = dict.fromkeys(names, math.inf), len(names) * _BUDGET / 8
    begin = time.perf_counter()
    usable = [name for name in names if _computes(replica, step, name)]
    tried = time.perf_counter()
    # The first step of three finds in the caches what another has left there; long ones bear that.
    steps = 1 if 3 * (tried - begin) > budget else 3
    with replica.undisturbed():
        for turn in range(_TURNS):
            if turn and time.perf_counter() >= tried + budget:
                break
            for name in usable:
                apply(replica, name)
                for _ in range(steps):
                    begin = time.perf_counter()
                    step()
                    shortest[name] = min(shortest[name], time.perf_counter() - begin)
    return [1000 * shortest[name] for name in names]


def _computes(replica: Replica, step: Callable[[], object], choice: str) -> bool:
    """Return whether these kernels can compute the model; the first call may compile code."""
    apply(replica, choice)
    with replica.undisturbed():
        try:
            step()
        except (RuntimeError, TypeError):
            if choice == "default":
                raise
            return False
    return True


def _key(replica: Replica, batch: tuple[Tree, Tree], kind: str, layers: list[str]) -> str:
    described = [
        platform.node(),
        platform.machine(),
        str(os.cpu_count()),
        torch.__version__,
        str(torch.get_num_threads()),
        ", ".join(str(tuple(leaf.shape)) for leaf in batch_tree.leaves(batch[0])),
        str(replica.params.dtype),
        repr(replica.module),
        ", ".join(layers),  # fewer where somebody looks at what passes between them
        "pooled, without nnpack",  # times of before there were such ways do not know them
        *([] if kind == "plain" else [kind]),
        *(["of the model"] if replica.of_model else []),  # a loss that may go back twice
    ]
    return hashlib.blake2b("\n".join(described).encode(), digest_size=12).hexdigest()


def _cache_folder() -> Path:
    root = os.environ.get("MANYHANDS_CACHE")
    if root:
        return Path(root)
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "manyhands"


def _read(path: Path) -> dict[str, float]:
    """Return the remembered times by name; none where they are missing or damaged."""
    with suppress(OSError, ValueError, TypeError, AttributeError):
        return {str(name): float(t) for name, t in json.loads(path.read_text()).items()}
    return {}


def _write(path: Path, times: dict[str, float]) -> None:
    """Remember the times; a cache that cannot be written only costs measuring again."""
    with suppress(OSError):
        path.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile("w", dir=path.parent, delete=False) as file:
            json.dump(times, file)
        Path(file.name).replace(path)


def apply_named(replica: Replica, choice: str) -> Kernels:
    """Apply the kernels that the user named."""
    apply(replica, choice)
    return Kernels(choice)
