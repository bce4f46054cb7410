"""A parameter server: masters own the layers, workers push gradients and pull parameters."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from manyhands.config.option_declaration import Tags, check_declared, option
from manyhands.strategies.server.ownership import owned_spans, restrict_optimizer
from manyhands.strategies.server.snapshot import SnapshotCheckpoints
from manyhands.strategies.server.spec import ServerSpec
from manyhands.strategies.server.statistics import merge
from manyhands.strategies.server.takeover import TakeoverRecovery
from manyhands.strategies.strategy import Strategy
from manyhands.value_checks import whole

if TYPE_CHECKING:
    from torch import Tensor

    from manyhands.worker.worker import Worker


@dataclass(frozen=True)
class Server(ServerSpec, Strategy, SnapshotCheckpoints, TakeoverRecovery):
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

    masters: int = option(
        1,
        "extra processes that own the layers",
        whole(1, 65_536),
        tags=Tags(decides_pace=True),
    )
    staleness: int | None = option(
        None,
        "steps a worker may be ahead of the slowest; 0: all step together",
        whole(0, 10**12),
        tags=Tags(commands=("privacy",)),
    )
    staleness_aware: bool = option(False, "divide a push's step by its staleness")
    prefetch: int = option(
        0, "1: compute the next gradient before the reply to a push arrives", whole(0, 1)
    )
    layerwise: bool = option(False, "push each layer's gradient as soon as it is computed")

    def __post_init__(self) -> None:
        check_declared(self)
        self.check_options()

    def prepare(self, worker: Worker) -> None:
        """Leave a master's optimizer with the master's span."""
        if worker.role == "master":
            spans = owned_spans(worker, self.masters)
            restrict_optimizer(worker, spans[worker.rank - worker.config.workers])

    def run(self, worker: Worker) -> None:
        """Work or serve, by rank; then gather the masters' facts."""
        facts = None
        if worker.role == "worker":
            self._work(worker)
        else:
            facts = self._serve(worker)
        worker.facts |= merge(worker.comm.gather(facts))

    def _work(self, worker: Worker) -> None:
        from manyhands.strategies.server.link import WorkerLink

        link = WorkerLink(worker, self, owned_spans(worker, self.masters))
        for batch in worker.batches():
            if link.owed and not self.prefetch:  # a resumed run: the answer to its last push
                link.pull()
            g, read = worker.gradient(batch), link.versions
            worker.shorten(g)
            with worker.exchanging():
                if link.owed:  # prefetch: the answer to the push before
                    link.pull()
                link.push(g, round(batch.examples), read)
                if not self.prefetch:
                    link.pull()
        link.close()

    def _serve(self, worker: Worker) -> dict[str, Any]:
        from manyhands.strategies.server.master import Master

        master = Master(worker, self, owned_spans(worker, self.masters))
        master.begin()
        while master.clock.running:
            for k in master.wait_for_pushes():
                master.apply(k)  # w[m] ← w[m] − η_τ g[m];  c_k ← c_k + 1
            master.answer()  # every k with c_k − min c ≤ s
        return master.hand_over()

    def consensus(self, worker: Worker) -> Tensor:
        """Return worker 0's copy: its last pull; at the end, the masters' final w."""
        return worker.params
