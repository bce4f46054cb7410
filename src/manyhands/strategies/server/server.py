"""A parameter server: masters own the layers, workers push gradients and pull parameters."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from itertools import accumulate, pairwise
from typing import TYPE_CHECKING, Any, ClassVar

from manyhands.config.declare import PROCESSES, Tags, check_declared, option
from manyhands.config.parse import parse_slow
from manyhands.errors import ConfigError
from manyhands.strategies.strategy import Exposure, Scaling, Strategy, Supports
from manyhands.validate import whole
from manyhands.worker.abilities import Asynchronous, Recoverable

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from torch import Tensor

    from manyhands.config.run import RunConfig
    from manyhands.strategies.server.state import Span
    from manyhands.worker.worker import Worker


@dataclass(frozen=True)
class Server(Strategy, Asynchronous, Recoverable):
    """Downpour SGD (Dean et al. 2012) with the waiting rule of SSP (Ho et al. 2013).

    ```
    worker k, for each of its batches B:             master m, forever:
        g ← ∇f_B(w̃)                                      wait for any worker k
        for all m: push g[m] to m                        w[m] ← w[m] − η_τ g[m];  c_k ← c_k + 1
        for all m: w̃[m] ← m's answer                     answer k with w[m], once c_k − min c ≤ s
    at the end: every master hands w[m] to the workers
    ```

    w: parameters; w[m]: the layers of master m; w̃: worker k's copy, stale by τ updates of others;
    f_B: mean loss; c_k: pushes of worker k so far; s: `staleness`; η_τ: the optimizer's step, with
    `staleness_aware` divided by max(1, τ) (Zhang et al. 2016); W, M: workers, masters.

    Guarantees:
        - One worker equals `sequential`.
        - s = 0: a master averages the pushes of all workers, by their examples, and steps once:
          equal to `sync` with W times the batch, up to rounding, and deterministic.
        - No worker pushes more than s ahead of the slowest; τ ≤ (W − 1)(2s + 1).
        - With `prefetch` a gradient is computed while the answer to the push before still travels,
          so it is stale by that push as well: one worker takes the steps of SGD delayed by one.
        - With `layerwise` the same numbers arrive, so all of this holds as it is.
        - Masters differ by no more than the pushes in flight: one per worker.
        - When workers die, the others take over their batches; a push counts once that a master has
          used it, and with one master none is lost or used twice.
        - When masters die, others take over their layers, as the newest of the workers' copies has
          them (see `takeover.py`): what the optimizer remembered of these layers is lost; of pushes
          in flight, one per worker at the most, they may lack some, or use some twice; of a worker
          that dies as well, they lack what no copy has. The last master cannot be outlived.
        - A checkpoint holds every push once and stops nobody (see `snapshot.py`); with s = 0 or one
          worker the run that goes on from it ends with the same bits.
    Cost per step and worker, for dim numbers of b bytes: M messages of 48 + b·dim/M bytes there
    (`layerwise`: the same bytes, a message for each layer), M back, all non-blocking and point to
    point; once more at the end, to hand over w.
    """

    name: ClassVar[str] = "server"
    supports: ClassVar[Supports] = Supports(
        whole_batches=True,
        together=False,
        partition="random-partition",
        deterministic=False,
        private=True,
        resume=True,
        outlives=True,
        lacks={"sync_batchnorm": "has workers that do not step together"},
    )

    masters: int = option(1, "processes that own the layers, besides the workers", PROCESSES)
    staleness: int | None = option(
        None,
        "steps a worker may be ahead of the slowest; 0 steps together",
        whole(0, 10**12),
        tags=Tags(commands=("privacy",)),
    )
    staleness_aware: bool = option(
        False, "divide a push's step by its staleness", tags=Tags(without=("audit",))
    )
    prefetch: int = option(0, "1: compute on while the answer to a push travels", whole(0, 1))
    layerwise: bool = option(
        False, "push each layer's gradient as soon as the backward pass has it"
    )

    def __post_init__(self) -> None:
        check_declared(self)
        if self.staleness == 0 and self.prefetch:
            raise ConfigError(
                "prefetch is given with staleness=0, which promises that no push is stale; leave "
                "one of them out"
            )
        if self.staleness == 0 and self.staleness_aware:
            raise ConfigError(
                "staleness_aware is given with staleness=0, where no push is stale; it would be "
                "ignored: leave one of them out"
            )

    def validate(self, config: RunConfig) -> None:
        """Refuse to send layers ahead where a gradient is ready only as a whole."""
        if self.prefetch and config.on_failure == "continue":
            raise ConfigError(
                "prefetch is given with on_failure='continue': a push that is still under way when "
                "somebody dies would be lost; leave one of them out"
            )
        if not self.layerwise:
            return
        if config.on_failure == "continue":
            raise ConfigError(
                "layerwise is given with on_failure='continue': of a worker that dies, half a push "
                "could be used; leave one of them out"
            )
        reasons = {
            "privacy": "a private gradient may leave only when its noise is in",
            "clip_norm": "a gradient's length is known only when all of it is there",
        }
        if config.accumulate > 1:
            raise ConfigError(
                f"layerwise is given with accumulate {config.accumulate}, but a layer's gradient "
                "is ready only after the last piece; leave one of them out"
            )
        if config.slow is not None and not parse_slow(config.slow).sleep:
            reasons["slow"] = "a gradient that is computed again would be sent again; add :sleep"
        for name, reason in reasons.items():
            if (value := getattr(config, name)) is not None:
                raise ConfigError(
                    f"layerwise is given with {name} {value!r}, but {reason}; leave one of them out"
                )

    @property
    def lr_scaling(self) -> Scaling:
        """Divided by the workers, unless no push is stale or each is divided by its staleness."""
        return "none" if self.staleness == 0 or self.staleness_aware else "inverse"

    @property
    def exposure(self) -> Exposure:
        """With s = 0 the masters use nothing but the sum of all pushes; else every push."""
        return "masters" if self.staleness == 0 else "each"

    def check_model(self, *, layers: Sequence[str]) -> None:
        """Refuse masters that would own nothing."""
        if self.masters > len(layers):
            raise ConfigError(
                f"masters is {self.masters}, but the model has {len(layers)} layers with "
                f"parameters and a master owns one at least; use {len(layers)} masters at most"
            )

    def processes(self, workers: int) -> int:
        """Return workers and masters together."""
        return workers + self.masters

    def examples_per_update(self, batch_size: int, workers: int) -> int:
        """Return a push's, or where masters wait for all of them everybody's."""
        return batch_size * workers if self.staleness == 0 else batch_size

    def run(self, worker: Worker) -> None:
        """Work or serve, by rank; then bring together what the masters noted."""
        from manyhands.strategies.server.link import work
        from manyhands.strategies.server.master import merged, serve

        noted = None
        if worker.role == "worker":
            work(worker, self, self._spans(worker))
        else:
            noted = serve(worker, self, self._spans(worker))
        worker.facts |= merged(worker.comm.gather(noted))

    def _spans(self, worker: Worker) -> list[Span]:
        """Return each master's part of the vector: as it was dealt, or as it was taken over."""
        if taken := getattr(worker.state, "spans", None):
            return list(taken)
        layers = worker.replica.layers
        deals = deal([layer.stop - layer.start for layer in layers], self.masters)
        return [(layers[first].start, layers[last - 1].stop) for first, last in deals]

    def cuts(self, worker: Worker, span: Span) -> list[int]:
        """Return where in a master's part a new piece of a push begins: at a layer, or nowhere."""
        starts = [layer.start for layer in worker.replica.layers] if self.layerwise else []
        return [start - span[0] for start in starts if span[0] < start < span[1]]

    def prepare(self, worker: Worker) -> None:
        """Leave a master's optimizer with the master's part."""
        from manyhands.strategies.server.master import narrow

        if worker.role == "master":
            narrow(worker, self._spans(worker)[worker.rank - worker.config.workers])

    def pause(self, worker: Worker) -> None:
        """Write this worker's part of a checkpoint, if the last answer told of one."""
        worker.state.pause()

    def state(self, worker: Worker) -> tuple[Mapping[str, Tensor], Mapping[str, Any]]:
        """Return what a master counts, or which versions of w[m] a worker's copy has seen."""
        if worker.role == "master":
            return {}, worker.state.counts()
        return {}, {"versions": worker.state.versions}

    def restore(
        self, worker: Worker, tensors: Mapping[str, Tensor], numbers: Mapping[str, Any]
    ) -> None:
        """Keep for a master, until it serves, what it had counted and the pushes it had logged."""
        from manyhands.strategies.server.state import Pause

        if worker.role == "master":
            bodies = [tensors[f"log.{i}"] for i in range(len(numbers["log"]))]
            worker.state = Pause(numbers, bodies)
        else:
            worker.state = Pause(numbers)

    def tally(self, worker: Worker) -> Any:
        """Return a master's counts of each worker's pushes; a worker's own, and its versions."""
        from manyhands.strategies.server.takeover import counts, versions

        if worker.number < worker.plan.size:
            return [worker.step, versions(worker)]
        return list(counts(worker)["clocks"])

    def pushes(self, before: Sequence[int], reports: Sequence[Any]) -> dict[int, int]:
        """Return the pushes that some master has used, or that their worker has ended."""
        own = {number: tally[0] for number, _, tally in reports if number in before}
        used = [tally for number, _, tally in reports if number not in before and tally]
        return {
            number: max([own.get(number, 0), *(clocks[k] for clocks in used)])
            for k, number in enumerate(before)
        }

    def recount(self, worker: Worker, pushes: Sequence[int]) -> None:
        """Go on as from a checkpoint with these counts: whoever has pushed waits for an answer."""
        from manyhands.strategies.server.state import Pause
        from manyhands.strategies.server.takeover import counts, versions

        spans = self._spans(worker)
        if worker.role == "worker":
            seen = versions(worker) or [0] * len(spans)
            worker.state = Pause({"versions": seen}, spans=spans)
        else:
            worker.state = Pause({**counts(worker), "clocks": list(pushes)}, spans=spans)

    def rescue(
        self, worker: Worker, before: Sequence[int], reports: Sequence[Any]
    ) -> Callable[[], list[dict[str, Any]]]:
        """Let other masters take over the layers of the dead, as the workers last had them."""
        from manyhands.strategies.server.takeover import rescue

        there = [number for number, _, _ in reports]
        versions = {k: tally[1] for k, (n, _, tally) in enumerate(reports) if n not in before}
        lost = [m for m, number in enumerate(before) if number not in there]
        return rescue(worker, self._spans(worker), versions, lost)

    def progress(self, worker: Worker) -> tuple[int, float] | None:
        """Return what the masters had taken in when worker 0 was answered last."""
        examples = [count for count in worker.state.examples if count is not None]
        # Pushes of the dead are no steps of the survivors.
        if worker.course.others_saw or not examples:
            return None
        pushers = 1 if self.staleness == 0 else worker.config.workers
        return min(worker.state.versions) // pushers, min(examples)

    def consensus(self, worker: Worker) -> Tensor:
        """Return worker 0's copy: what it pulled last; at the end, what the masters handed over."""
        return worker.params


def deal(sizes: Sequence[float], masters: int) -> list[tuple[int, int]]:
    """Deal layers of these sizes to masters, a run of them to each, the largest share kept small.

    Returns:
        Each master's layers as (first, last + 1); none is empty.
    """
    ends = list(accumulate(sizes, initial=0))

    @cache
    def best(stop: int, parts: int) -> tuple[float, tuple[int, ...]]:
        """The largest share when the first `stop` layers go to `parts` masters, and the cuts."""
        if parts == 1:
            return ends[stop], (stop,)
        found = []
        for cut in range(parts - 1, stop):
            largest, cuts = best(cut, parts - 1)
            found.append((max(largest, ends[stop] - ends[cut]), (*cuts, stop)))
        return min(found)

    cuts = (0, *best(len(sizes), masters)[1])
    return list(pairwise(cuts))
