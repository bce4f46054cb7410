"""Records what one process of a private run draws, clips and sends, step by step.

A recorder is installed by `Mechanism.watch`. It sees the samples as they are drawn, each clipped
sum as it is computed, and each message as it leaves the mechanism. What it keeps is secret: the
noise itself. It exists in audits only.
"""

from __future__ import annotations

import math
import os
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import numpy as np
import torch
from torch import Tensor

from manyhands.data import batch_tree
from manyhands.launch.environment import group_rank
from manyhands.privacy.clipping import STABILISER
from manyhands.privacy.gradient_canaries import Canaries
from manyhands.privacy.mechanism import Mechanism

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from manyhands.config.privacy import ClippingWay
    from manyhands.data.batch_tree import Tree
    from manyhands.model.layers import Layer
    from manyhands.model.replica import Replica
    from manyhands.privacy.sampling import DrawnShare, PoissonPlan

NUMBERS = 20_000_000  # of noise that one process keeps, at the most
PROBED_STEPS, PROBED_ROWS = 12, 3  # records whose clipping is tried on their own
FLOAT32 = 2.0**-23  # of a number: what rounding to it moves at the most, and as much again
TRIED = 0.1  # of a record's gradient norm: the clipping norm of the trial


@dataclass(kw_only=True)
class Transcript:
    """What one process did.

    Attributes:
        rank: The process.
        master: It samples nothing; where the run's masters add noise, to sums of others.
        stage: It holds a part of the model; `sizes` are that part's.
        steps: The steps that its terms promise.
        sizes: Numbers of each parameter, by name, in the order of the vector.
        columns: The coordinates whose noise is kept; (kept,).
        noise: What was added, in lattice steps; (messages, kept).
        scales: What turns each message into a sum; (messages,).
        off: How far a message was from the lattice at most, in steps, beyond float32's rounding.
        step: γ of the lattice, in the units of a sum; 0 if there is none.
        sensitivity: What σ multiplies, as the mechanism has it.
        records: The process's own records; None where all share each sample of `examples`.
        examples: The size of the training set.
        drawn: The sampled records of each step.
        rows: How many records were given to the clipped sum in each step.
        norms: Norms of single records' contributions, over the clipping norm that was to hold.
        errors: Largest deviation of each parameter's contribution; (parameters,).
        mixed: Largest deviation of a sum of records from the sum of their contributions.
        squares: Of a stage: squared norms of its parts of contributions, one array per step.
        uncovered: Trainable parameters that are not in the vector.
        start: Where its part of the model begins in the vector of the whole.
        canaries: Those that all processes plant.
    """

    rank: int
    master: bool = False
    stage: bool = False
    steps: int = 0
    sizes: dict[str, int] = field(default_factory=dict)
    columns: np.ndarray = field(default_factory=lambda: np.zeros(0, dtype=np.int64))
    noise: list[np.ndarray] = field(default_factory=list)
    scales: list[float] = field(default_factory=list)
    off: float = 0.0
    step: float = 0.0
    sensitivity: float = 0.0
    records: np.ndarray | None = None
    examples: int = 0
    drawn: list[np.ndarray] = field(default_factory=list)
    rows: list[int] = field(default_factory=list)
    norms: list[float] = field(default_factory=list)
    errors: np.ndarray = field(default_factory=lambda: np.zeros(0))
    mixed: float = 0.0
    squares: list[np.ndarray] = field(default_factory=list)
    uncovered: tuple[str, ...] = ()
    start: int = 0
    canaries: Canaries = field(default_factory=Canaries.none)

    @property
    def rate_base(self) -> int:
        """How many records this process samples from."""
        return self.examples if self.records is None else len(self.records)

    def write(self, folder: Path) -> None:
        """Write it for the process that judges; a name per process."""
        torch.save(vars(self), folder / f"transcript-{self.rank}-{os.getpid()}.pt")


def read_all(folder: Path) -> list[Transcript]:
    """Return the transcripts of a folder, by rank."""
    found = [torch.load(path, weights_only=False) for path in folder.glob("transcript-*.pt")]
    return sorted((Transcript(**each) for each in found), key=lambda each: each.rank)


def install(folder: str, canaries: int, seed: int) -> None:
    """Record the transcript of each mechanism that this process makes, in a folder.

    Args:
        folder: An empty one, that all processes see.
        canaries: How many records have a planted gradient.
        seed: Decides which, and which of them are in.
    """

    def watch(mechanism: Mechanism, plan: PoissonPlan) -> PoissonPlan:
        recorder = Recorder(mechanism, plan, Path(folder), canaries, seed)
        recorder.transcript.rank = max(plan.rank, group_rank() or 0)  # masters follow a worker
        mechanism.observer = recorder
        return cast("PoissonPlan", recorder.plan)

    Mechanism.watch = staticmethod(watch)


class RecordingPlan:
    """A sampler that tells a recorder what it drew; in all else the sampler itself."""

    def __init__(self, plan: PoissonPlan, transcript: Transcript) -> None:
        self._plan, self._transcript = plan, transcript

    def __getattr__(self, name: str) -> Any:
        """Return what the sampler has under this name."""
        return getattr(self._plan, name)

    def epoch(self, epoch: int, start: int = 0, shares: object = None) -> Iterator[DrawnShare]:
        """Yield this worker's share of every step."""
        for share in self._plan.epoch(epoch, start, shares):
            self._transcript.drawn.append(np.asarray(share.indices).copy())
            yield share


class Recorder:
    """Observes one mechanism; see `manyhands.privacy.mechanism.Observer`.

    Args:
        mechanism: Of this process, with the whole model still.
        plan: Its sampler.
        folder: Where the transcript goes when the run is over; None to keep it in memory.
        canaries: How many records have a planted gradient.
        seed: Decides which, and which of them are in.
    """

    def __init__(
        self, mechanism: Mechanism, plan: PoissonPlan, folder: Path | None, canaries: int, seed: int
    ) -> None:
        self.mechanism, self.folder = mechanism, folder
        terms, lattice = mechanism.terms, mechanism.lattice
        self._way = mechanism.clipped.way
        named = mechanism.replica.named
        self.canaries = Canaries.plant([p.numel() for _, p in named], plan.examples, canaries, seed)
        inside = {name for name, _ in named}
        trainable = [n for n, p in mechanism.replica.module.named_parameters() if p.requires_grad]
        ends = np.cumsum([p.numel() for _, p in named]).tolist()
        self._starts = dict(zip((name for name, _ in named), [0, *ends], strict=False))
        self.transcript = Transcript(
            rank=plan.rank,
            canaries=self.canaries,
            steps=terms.steps,
            step=lattice.step if lattice else 0.0,
            sensitivity=lattice.sensitivity if lattice else 0.0,
            records=plan.records,
            examples=plan.examples,
            uncovered=tuple(name for name in trainable if name not in inside),
        )
        self.plan = RecordingPlan(plan, self.transcript)
        self._base: Tensor | None = None
        self._probes = 0
        if hasattr(mechanism.clipped, "add"):
            mechanism.clipped = _RecordingSum(mechanism.clipped, self)  # type: ignore[assignment]

    def before(self, vector: Tensor, scale: float) -> None:
        """Keep a sum without noise, and plant the canaries that were drawn."""
        if not self.transcript.sizes:
            self._begin(len(vector), scale)
        self._base = vector.detach().double() * scale
        vector[self._planted(len(vector))] += self.mechanism.terms.clip / scale

    def _planted(self, dim: int) -> Tensor:
        """Return where the canaries of this step are, in the part of the model that is noised."""
        transcript = self.transcript
        step = len(transcript.noise)
        if transcript.master or step >= len(transcript.drawn):
            return torch.zeros(0, dtype=torch.int64)
        at = self.canaries.planted(transcript.drawn[step]) - transcript.start
        return torch.from_numpy(at[(at >= 0) & (at < dim)])

    def _begin(self, dim: int, scale: float) -> None:
        """Name the parameters of the vector that this process noises, and choose what is kept."""
        transcript, part = self.transcript, self.mechanism.replica
        passes = getattr(part, "passes", None)
        transcript.stage = passes is not None
        transcript.master = not transcript.drawn
        if passes is not None:
            _record_stage(passes, transcript)
            transcript.start = self._starts[part.named[0][0]]
        named = {name: p.numel() for name, p in part.named}
        transcript.sizes = named if sum(named.values()) == dim else {"its part": dim}
        most = max(1, NUMBERS // max(1, transcript.steps))
        chosen = _choose_columns(list(transcript.sizes.values()), most)
        planted = self.canaries.coordinates - transcript.start
        transcript.columns = np.union1d(chosen, planted[(planted >= 0) & (planted < dim)])

    def after(self, vector: Tensor, scale: float) -> None:
        """Keep the noise of the message that leaves."""
        transcript, base = self.transcript, self._base
        assert base is not None
        message, unit = vector.detach().double() * scale, transcript.step
        if unit:
            multiples = message / unit
            # A message's own rounding, which is a function of the multiple alone, is no distance.
            own = multiples.abs() * (0 if _is_exact(self.mechanism) else FLOAT32)
            distance = ((multiples - multiples.round()).abs() - own).max()
            transcript.off = max(transcript.off, float(distance))
            base[self._planted(len(vector))] += self.mechanism.terms.clip
            noise = multiples.round() - (base / unit).round()
        else:
            noise = message - base
        kept = noise[torch.from_numpy(transcript.columns).to(noise.device)]
        transcript.noise.append(kept.cpu().numpy().astype(np.float32))
        transcript.scales.append(scale)

    def close(self) -> None:
        """Write the transcript."""
        self.transcript.master = not self.transcript.drawn
        if self.folder:
            self.transcript.write(self.folder)

    def probe(self, inner: Any, x: Tree, y: Tree) -> None:
        """Clip single records, and hold each against its gradient by autograd."""
        count = min(PROBED_ROWS, batch_tree.count_examples(x))
        if self._probes >= PROBED_STEPS or not count:
            return
        self._probes += 1
        replica, transcript, clip = self.mechanism.replica, self.transcript, 0.0
        training, masks = replica.module.training, replica.masks
        replica.masks = None
        replica.module.eval()  # random layers would differ between the two
        values = [p.data for _, p in replica.named]
        for _, p in replica.named:  # others change shared ones meanwhile
            p.data = p.data.clone()
        try:
            together, apart = torch.zeros_like(replica.params), torch.zeros_like(replica.params)
            clip = self.mechanism.terms.clip
            inner.add(*batch_tree.take_examples(x, y, slice(count)), clip, together)
            for i in range(count):
                one = batch_tree.take_examples(x, y, slice(i, i + 1))
                apart += self._try_one(inner, one, clip)
        finally:
            for (_, p), value in zip(replica.named, values, strict=True):
                p.data = value
            replica.module.train(training)
            replica.masks = masks
        transcript.mixed = max(transcript.mixed, float((together - apart).norm()) / clip)

    def _try_one(self, inner: Any, one: tuple[Tree, Tree], clip: float) -> Tensor:
        """Return one record's contribution at the run's clipping norm; judge a tighter one too."""
        replica, transcript = self.mechanism.replica, self.transcript
        true, again = _gradient(replica, *one), _gradient(replica, *one)
        norm, fixed = float(true.norm()), torch.equal(true, again)  # else it draws random numbers
        found = torch.zeros_like(replica.params)
        for tried in (TRIED * norm, clip):
            if not (math.isfinite(tried) and tried > 0):
                continue
            found = torch.zeros_like(replica.params)
            inner.add(*one, tried, found)
            transcript.norms.append(float(found.norm()) / tried)
            if not fixed:
                continue
            wrong = (found - _clip(true, tried, self._way, replica.layers)) / tried
            sizes = [p.numel() for _, p in replica.named]
            each = np.array([float(part.norm()) for part in torch.split(wrong, sizes)])
            errors = transcript.errors if len(transcript.errors) else np.zeros(len(each))
            transcript.errors = np.maximum(errors, each)
        return found


class _RecordingSum:
    """A clipped sum that is tried on single records before it does its work."""

    def __init__(self, inner: Any, recorder: Recorder) -> None:
        self._inner, self._recorder = inner, recorder

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    def add(self, x: Tree, y: Tree, clip: float, out: Tensor) -> None:
        """Add the clipped sum."""
        transcript = self._recorder.transcript
        if transcript.drawn:  # before the first sample there are trials, for timing
            transcript.rows.append(batch_tree.count_examples(x))
            self._recorder.probe(self._inner, x, y)
        self._inner.add(x, y, clip, out)


def _gradient(replica: Replica, x: Tree, y: Tree) -> Tensor:
    """Return one record's gradient by autograd, through none of the code that clips."""
    named = [p for _, p in replica.named]
    with torch.enable_grad():
        loss, _ = replica.objective(replica.module, x, y)
        found = torch.autograd.grad(loss, named, allow_unused=True)
    pairs = zip(named, found, strict=True)
    return torch.cat([(torch.zeros_like(p) if g is None else g).flatten() for p, g in pairs])


def _clip(true: Tensor, clip: float, way: ClippingWay, layers: Sequence[Layer]) -> Tensor:
    """Return what a record with this gradient is to contribute, by none of the code that clips."""
    norm = float(true.norm())
    if way == "automatic":
        return true * (clip / (norm + STABILISER))
    if way == "flat":
        return true * min(1.0, clip / norm if norm else 1.0)
    parts = [true[layer.start : layer.stop] for layer in layers]
    share = clip / math.sqrt(len(parts))
    return torch.cat([part * (share / max(share, float(part.norm()))) for part in parts])


def _record_stage(passes: Any, transcript: Transcript) -> None:
    """Record the squared norms of what a stage adds for single records."""
    inner = passes.clipped.sum

    def recorded(parts: Any, weights: Tensor, out: Tensor) -> None:
        if len(transcript.squares) < PROBED_STEPS:
            rows = []
            for i in range(min(PROBED_ROWS, len(weights))):
                one = torch.zeros_like(weights)
                one[i] = weights[i]
                found = torch.zeros_like(out)
                inner(parts, one, found)
                rows.append(float(found.square().sum()))
            transcript.squares.append(np.array(rows))
        inner(parts, weights, out)

    passes.clipped.sum = recorded


def _is_exact(mechanism: Mechanism) -> bool:
    """Say whether messages hold multiples of the lattice's step exactly, so that they add up."""
    return bool(mechanism.lattice and mechanism.lattice.limit)


def _choose_columns(sizes: list[int], most: int) -> np.ndarray:
    """Return coordinates: all, or of each parameter the first, by its size, and 64 at least."""
    total, found, start = sum(sizes), [], 0
    for size in sizes:
        kept = size if total <= most else min(size, max(64, size * most // total))
        found.append(np.arange(start, start + kept))
        start += size
    return np.concatenate(found)
