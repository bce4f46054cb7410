"""Dropout masks that belong to examples, not to workers.

PyTorch draws dropout masks from one stream of random numbers, so a mask depends on which process
computes an example and in which order. Here a mask is a hash of

    (key, step, call, example, element)

- key: 32 bytes, made of the run's seed; in a private run derived from its secret key.
- step: the worker's own count of steps (`Worker.step`). Workers that step together count alike;
  with `hogwild`, `server`, `averaging` and `gossip` it is how many steps this worker has done.
- call: which dropout call of the forward pass it is, from 0; this is how a layer is identified.
- example: the example's index in the training set, also where rows are streamed.
- element: the number's place in the example's activations; for Dropout2d and alike, the channel.

`Masks` is a torch-function mode: while it is on, it answers calls of `F.dropout` and its relatives,
which `nn.Dropout` and its relatives use as well, where dimension 0 counts the examples.
"""

from __future__ import annotations

import hashlib
import math
import struct
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import lru_cache
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar, cast

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from manyhands.errors import ConfigError
from manyhands.model.kernels.autograd import backward_from_all

if TYPE_CHECKING:
    Rows = slice | Tensor | None  # which examples of a batch; None: all

Numbers = TypeVar("Numbers", Tensor, np.ndarray)

_SMALL = 1 << 14  # numbers from which on PyTorch's kernels pay for what it takes to call them
_BLOCK = 1 << 20  # numbers that are hashed at once: each takes 16 bytes meanwhile
_ALPHA = 1.7580993408473766  # SELU's scale times its alpha, as in PyTorch's alpha dropout


class DropoutKind(NamedTuple):
    """The properties of one of PyTorch's dropout functions.

    Attributes:
        feature: It drops whole channels.
        alpha: It keeps mean and variance for SELU.
        inplace: It always writes to its input.
        training: Whether it drops where the call does not say.
        batched: The number of dimensions from which on the first one counts examples, where the
            function distinguishes (N, C, …) from (C, …).
    """

    feature: bool = False
    alpha: bool = False
    inplace: bool = False
    training: bool = True
    batched: int = 0


KINDS: dict[Callable[..., Any], DropoutKind] = {
    F.dropout: DropoutKind(),
    F.dropout1d: DropoutKind(feature=True, batched=3),
    F.dropout2d: DropoutKind(feature=True),
    F.dropout3d: DropoutKind(feature=True, batched=5),
    F.alpha_dropout: DropoutKind(alpha=True, training=False),
    F.feature_alpha_dropout: DropoutKind(feature=True, alpha=True, training=False),
    torch.dropout: DropoutKind(),
    torch.dropout_: DropoutKind(inplace=True),
    torch.feature_dropout: DropoutKind(feature=True),
    torch.feature_dropout_: DropoutKind(feature=True, inplace=True),
    torch.alpha_dropout: DropoutKind(alpha=True),
    torch.alpha_dropout_: DropoutKind(alpha=True, inplace=True),
    torch.feature_alpha_dropout: DropoutKind(feature=True, alpha=True),
    torch.feature_alpha_dropout_: DropoutKind(feature=True, alpha=True, inplace=True),
}


class DropoutCall(NamedTuple):
    """One call of a dropout function."""

    x: Tensor
    p: float
    active: bool  # whether anything is dropped at random
    inplace: bool


def parse(kind: DropoutKind, args: Sequence[Any], kwargs: dict[str, Any]) -> DropoutCall:
    """Return the arguments of a call, under any of PyTorch's names for them."""
    arguments = dict(zip(("input", "p", "training", "inplace"), args, strict=False)) | kwargs
    p, training = (
        arguments.get("p", 0.5),
        arguments.get("training", arguments.get("train", kind.training)),
    )
    x = arguments["input"]
    active = bool(training) and 0 < p < 1 and x.numel() > 0
    return DropoutCall(x, p, active, kind.inplace or bool(arguments.get("inplace")))


def public_key(seed: int) -> bytes:
    """Return the key of a run that is not private."""
    return hashlib.blake2b(b"dropout %d" % seed, digest_size=32).digest()


class Masks(TorchFunctionMode):
    """The dropout masks of one process's training.

    Guarantees:
        - A mask depends on nothing but (key, step, call, example, element): not on the number of
          workers, the order or the cuts of a batch, micro-batches or stages.
        - Elements are dropped with probability p, to 2⁻⁶³, independently of each other over
          elements, examples, calls and steps, as far as statistical tests can tell.
        - A forward pass that is recomputed (`torch.utils.checkpoint`) has the masks of the first.
        - Resuming needs nothing but the step.
        - It acts only inside `forward` and `with masks`: evaluation and a user's own calls draw
          from PyTorch's generators.
        - In a CUDA graph the masks change between replays: what depends on the step and the
          examples is read from tensors on the device.

    An example that is twice in one batch, as sampling with replacement has it, has one mask.

    Args:
        key: Whoever knows it can compute the masks.
        device: Where the model is.

    Attributes:
        before: For each place in a model cut into stages, the calls that come before it.
        conceals: Whether a call was made where autograd does not record the pass, or records it
            through hooks: as code does that recomputes it later.
    """

    def __init__(self, key: bytes, device: torch.device) -> None:
        super().__init__()
        self.key, self._device = key, device
        self.before: dict[int, int] = {}
        self.conceals = False
        self.drop = self._drop
        # On the CPU by NumPy, whose calls take less time; the bits are those of tensors.
        self._words: Any = torch.zeros(2, dtype=torch.int64, device=device)  # of key and step
        self._words = self._words.numpy() if self._words.is_cpu else self._words
        self._batch: Any = None  # (n,) indices of the batch's examples
        self._hashes: Any = None  # (n,) of them and the step, once a call needs them
        self._mine: Any = None  # (rows,) the part that passes through the model
        self._rows: Rows = None
        self._number = 0  # of the next call
        self._tags: dict[int, tuple[int, Any]] = {}  # by what the generator gave, this step's calls
        self._tables: dict[int, Any] = {}
        self._apart = self._locating = False

    def begin(self, step: int, indices: np.ndarray) -> None:
        """Begin a step on these examples; indices: (n,) int64."""
        digest = hashlib.blake2b(struct.pack("<q", step), key=self.key, digest_size=16).digest()
        words = np.frombuffer(digest, dtype="<i8")
        if isinstance(self._words, np.ndarray):
            self._words[:] = words
            self.take(indices)
        else:
            self._words.copy_(torch.from_numpy(words.copy()))
            self.take(torch.from_numpy(indices))

    def take(self, indices: np.ndarray | Tensor) -> None:
        """Set the examples; a tensor on the device may change between a graph's replays."""
        self._batch, self._hashes, self._mine = indices, None, None
        self._tags.clear()

    def outside_compilation(self) -> None:
        """Exclude the masks from compilation: they change from step to step."""
        self.drop = torch.compiler.disable(self._drop)  # type: ignore[no-untyped-call]

    @contextmanager
    def forward(self, rows: Rows = None) -> Iterator[None]:
        """Apply masks in one forward pass, over all of the batch's examples or some."""
        self._rows, self._mine, self._number = rows, None, 0
        with self:
            yield

    @contextmanager
    def single(self, example: Tensor) -> Iterator[None]:
        """Mask one example of a pass by vmap; `example`: its entry of `hashes`."""
        before = self._mine, self._apart
        self._mine, self._apart, self._number = example[None], True, 0
        try:
            yield
        finally:
            self._mine, self._apart = before

    def seek(self, place: int) -> None:
        """Continue with the first call at this place of a model that is split into stages."""
        self._number = self.before.get(place, self._number)

    def locate(self, modules: Sequence[tuple[int, nn.Module]], x: Any) -> None:
        """Count the calls before each of the modules, by passing a batch through them."""
        self._number, self._locating = 0, True
        try:
            with self, torch.no_grad():
                for place, module in modules:
                    self.before[place] = self._number
                    x = module(x)
        finally:
            self._locating = False

    def hashes(self) -> Tensor | None:
        """Return a hash of each example and the step, (n,); None before the first step."""
        hashed = self._hashed()
        return None if hashed is None else torch.as_tensor(hashed)

    def _hashed(self) -> Any:
        if self._hashes is None and self._batch is not None:
            words, batch = self._words, self._batch
            if isinstance(words, Tensor):
                batch = batch.to(words.device)
            self._hashes = _mix_bits(batch + words[:1]) + words[1:]
        return self._hashes

    def __torch_function__(
        self, func: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:  # the mode is off inside
        if func in KINDS:
            return self.drop(func, args, kwargs or {})
        if func is torch.autograd.backward:
            return self._backward(*args, **(kwargs or {}))
        return func(*args, **(kwargs or {}))

    def _backward(self, tensors: Any, grad_tensors: Any = None, **options: Any) -> None:
        """Stay active in nested backward passes, which reentrant checkpoints use."""
        plain = isinstance(grad_tensors, list | tuple) and all(
            isinstance(g, Tensor) for g in grad_tensors
        )
        if not plain or any(options.values()):
            torch.autograd.backward(tensors, grad_tensors, **options)
            return
        with self:
            backward_from_all(tuple(tensors), tuple(grad_tensors))

    def _drop(self, func: Callable[..., Any], args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
        kind = KINDS[func]
        call = parse(kind, args, kwargs)
        if call.active and self._locating:
            self._number += 1
            return call.x
        if not call.active or self._batch is None:  # no step has begun: something is tried out
            return func(*args, **kwargs)
        number, examples = self._turn()
        if examples is None or call.x.dim() == 0 or len(call.x) != len(examples):
            return func(*args, **kwargs)  # the batch is elsewhere: as PyTorch draws it
        noise = self._noise(kind, call, _mix_bits(examples + _call_constant(number)))
        return _apply_mask(kind, call, noise)

    def _turn(self) -> tuple[int, Any]:
        """Return the number of a call and the hashes of its examples.

        Whatever recomputes a pass puts PyTorch's generator back to where it was. So one number is
        drawn from it for each call, by which a call is recognised when it comes again.
        """
        if self._apart:  # by vmap, where nothing is recomputed
            self._number += 1
            return self._number - 1, self._mine
        self.conceals = self.conceals or will_be_recomputed()
        tag = int(torch.empty((), dtype=torch.int64, device="cpu").random_())
        if tag not in self._tags:
            if torch._C._current_graph_task_id() != -1:
                raise ConfigError(
                    "a dropout layer is recomputed in the backward pass with other random numbers; "
                    "expected torch.utils.checkpoint with preserve_rng_state=True, its default"
                )
            self._tags[tag] = self._number, self._examples()
            self._number += 1
        return self._tags[tag]

    def _examples(self) -> Any:
        if self._mine is None:
            hashes, rows = self._hashed(), cast("Any", self._rows)
            if isinstance(hashes, np.ndarray) and isinstance(rows, Tensor):
                rows = rows.numpy()
            self._mine = hashes if hashes is None or rows is None else hashes[rows]
        return self._mine

    def _noise(self, kind: DropoutKind, call: DropoutCall, seeds: Any) -> Tensor:
        """Return ones for kept elements and zeros elsewhere, by the seeds of the examples."""
        shape = list(call.x.shape)
        if kind.feature:
            channels = shape[1:2] if call.x.dim() >= kind.batched else [1]
            shape = [shape[0], *channels, *[1] * (len(shape) - 2)][: len(shape)]
        width = math.prod(shape[1:])
        elements = self._elements(width)
        least = int(call.p * 2.0**64) - (1 << 63)
        some = max(1, _BLOCK // max(1, width))
        if isinstance(seeds, np.ndarray) and len(seeds) * width > _SMALL:
            seeds = torch.from_numpy(seeds)
        if isinstance(seeds, Tensor):
            elements = torch.as_tensor(elements)
        if len(seeds) <= some:
            kept = torch.as_tensor(_keep_mask(seeds, elements, least))
            return kept.to(call.x.dtype).view(shape)
        noise = call.x.new_empty(len(seeds), width)
        for start in range(0, len(seeds), some):
            part = slice(start, start + some)
            noise[part] = torch.as_tensor(_keep_mask(seeds[part], elements, least))
        return noise.view(shape)

    def _elements(self, width: int) -> Any:
        """Return a number for each element of an example, (width,)."""
        if width not in self._tables:
            if self._device.type == "cpu":
                self._tables[width] = _mix_bits(np.arange(width))
                return self._tables[width]
            table = _mix_bits(torch.arange(width, device=self._device))
            if self._apart:  # a tensor that is made inside vmap belongs there
                return table
            self._tables[width] = table  # for good: a CUDA graph may read it
        return self._tables[width]


def _as_int64(word: int) -> int:
    """Return 64 bits as a signed integer."""
    return word - (1 << 64) if word >= 1 << 63 else word


# The odd constants of SplitMix64 (Steele, Lea & Flood 2014). Integers wrap around; `>>` keeps the
# sign, which costs one bit of 64 each time and saves a pass.
_FIRST, _SECOND, _THIRD = map(
    _as_int64, (0x9E3779B97F4A7C15, 0xBF58476D1CE4E5B9, 0x94D049BB133111EB)
)


def _mix_bits(x: Numbers) -> Numbers:
    """Return a hash of each number."""
    x = x * _FIRST
    x ^= x >> 32
    x *= _SECOND
    x ^= x >> 29
    return x


def _keep_mask(seeds: Numbers, elements: Numbers, least: int) -> Numbers:
    """Return for each example and element whether it is kept; (n, width) bool."""
    x = seeds[:, None] ^ elements
    x *= _SECOND
    x ^= x >> 32
    x *= _THIRD
    kept: Numbers = x >= least
    return kept


@lru_cache(maxsize=4096)
def _call_constant(number: int) -> int:
    """Return 64 bits that distinguish one call from another."""
    digest = hashlib.blake2b(b"call %d" % number, digest_size=8).digest()
    return int.from_bytes(digest, "little", signed=True)


def _apply_mask(kind: DropoutKind, call: DropoutCall, noise: Tensor) -> Tensor:
    """Return the input where it is kept, scaled as PyTorch scales it."""
    x, p = call.x, call.p
    if not kind.alpha:
        noise.div_(1 - p)
        return x.mul_(noise) if call.inplace else x * noise
    scale = 1 / math.sqrt((_ALPHA * _ALPHA * p + 1) * (1 - p))
    shift = noise.sub(1).mul_(_ALPHA * scale).add_(_ALPHA * scale * p)
    noise.mul_(scale)
    return x.mul_(noise).add_(shift) if call.inplace else x * noise + shift


def will_be_recomputed() -> bool:
    """Return whether this pass will be recomputed: autograd is off, or hooks take its results.

    Checkpointing of both kinds, reentrant and not, is seen so.
    """
    hooks = torch._C._autograd._top_saved_tensors_default_hooks(True)
    return not torch.is_grad_enabled() or hooks is not None
