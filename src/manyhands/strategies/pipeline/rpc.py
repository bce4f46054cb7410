"""Model parallelism by torch RPC: a driver calls one process per stage, as in PyTorch's tutorials.

Distributed autograd records the calls of the forward pass and walks back through them;
DistributedOptimizer lets every stage step. RPC's own threads serve a stage's calls, while its main
thread waits in `worker.batches()`, so that checkpoints, evaluation and requests to stop are
those of any other strategy.
"""

from __future__ import annotations

import atexit
import logging
import os
import shutil
import tempfile
import threading
import time
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from manyhands.errors import ConfigError
from manyhands.launch.host import hostname
from manyhands.model.replica import Loss
from manyhands.strategies.pipeline.schedule import Shape
from manyhands.strategies.pipeline.stage import Stage
from manyhands.strategies.pipeline.timeline import Timeline

if TYPE_CHECKING:
    from torch import Tensor

    from manyhands.comm import Communicator
    from manyhands.worker.worker import Batch, Worker

_PATIENCE = 5.0  # seconds that a driver gives a failing stage to report its error

_stage: RpcStage | None = None  # this process's, for incoming calls


def run(worker: Worker, pipeline: Shape) -> dict[str, Any]:
    """Drive the stages, or be one of them; returns this process's facts."""
    global _stage
    timeline = Timeline(worker, pipeline, pipeline.stage_of(worker.rank, worker.config.workers))
    if worker.rank:
        _stage = RpcStage(worker, timeline)
    _connect(worker)
    if _stage:
        for batch in worker.batches():
            _stage.serve()
            worker.note_nothing(len(batch.x))
    else:
        _drive(worker, timeline)
    _stage = None
    return timeline.facts()


def _connect(worker: Worker) -> None:
    """Let the processes call each other. Collective.

    On one host they listen on its loopback only. Torch cannot begin again once it has ended RPC, so
    it lasts as long as the process.
    """
    logging.getLogger("torch.distributed.optim.optimizer").setLevel(logging.ERROR)
    with warnings.catch_warnings():
        # They are about how torch's own RPC is made; there is nothing a user could do.
        warnings.simplefilter("ignore")
        from torch.distributed import rpc

        if not rpc._is_current_rpc_agent_set():  # type: ignore[attr-defined]
            import torch.distributed.optim  # noqa: F401 — it warns of itself when imported

            _begin(worker)
    if rpc.get_worker_info().name != _name(worker.rank, worker.comm.size):
        raise ConfigError("transport rpc was used by another group of these processes before")
    worker.comm.barrier()


def _begin(worker: Worker) -> None:
    """Start RPC in every process of the group. Collective."""
    from torch.distributed import rpc

    folder = _shared_folder(worker.comm)
    ways: dict[str, Any] = {}
    if len(set(worker.comm.gather(hostname()))) == 1:
        os.environ["TP_SOCKET_IFNAME"] = "lo"
    else:
        # Torch knows hosts by their kernel, and would pass by a simulated network.
        ways = {"_transports": ["uv"], "_channels": ["basic"]}
        if interface := os.environ.get("GLOO_SOCKET_IFNAME"):  # set where one was chosen
            os.environ.setdefault("TP_SOCKET_IFNAME", interface)
    options = rpc.TensorPipeRpcBackendOptions(
        init_method=f"file://{folder}/store",
        rpc_timeout=0,  # the launcher watches over hangs
        **ways,
    )
    size = worker.comm.size
    name = _name(worker.rank, size)
    rpc.init_rpc(name, rank=worker.rank, world_size=size, rpc_backend_options=options)  # type: ignore[no-untyped-call]
    atexit.register(_end)
    worker.comm.barrier()
    if worker.rank == 0:
        shutil.rmtree(folder, ignore_errors=True)


def _shared_folder(group: Communicator) -> str:
    """Return a new folder that all processes see; rank 0 removes it. Collective.

    Raises:
        ConfigError: The hosts share no folder.
    """
    places = [tempfile.gettempdir(), os.getcwd(), str(Path.home())]
    for place in group.gather(places)[0]:
        made = ""
        if group.rank == 0:
            with suppress(OSError):
                made = tempfile.mkdtemp(prefix="manyhands-rpc-", dir=place)
        made = group.gather(made)[0]
        if all(group.gather(bool(made) and Path(made).is_dir())):
            return str(made)
        if group.rank == 0 and made:
            shutil.rmtree(made, ignore_errors=True)
    raise ConfigError(
        "transport is 'rpc', whose processes meet in a folder, but the hosts share neither of "
        f"{', '.join(places)}; set TMPDIR to one that they share, or use transport mpi"
    )


def _end() -> None:
    """End RPC with the process; to wait for the others here, after MPI has ended, would hang."""
    from torch.distributed import rpc

    with suppress(RuntimeError):
        rpc.shutdown(graceful=False)


def _name(rank: int, size: int) -> str:
    return f"manyhands-{rank}-of-{size}"


class RpcStage:
    """Answers the driver's calls with this process's stage.

    Between two steps the gate is shut: no call disturbs what the main thread does then (a
    checkpoint, an evaluation).
    """

    def __init__(self, worker: Worker, timeline: Timeline) -> None:
        assert isinstance(worker.replica, Stage)
        self.worker, self.timeline, self.stage = worker, timeline, worker.replica
        self.gate, self.over = threading.Event(), threading.Event()
        self.failure: BaseException | None = None
        self.begun = self.updating = 0.0  # seconds: when the backward pass came; of the last update
        self.probed = False
        if timeline.index == 0:  # no gradient leaves it: its first weight's is the last
            self.stage.named[0][1].register_hook(self._leave)  # type: ignore[no-untyped-call]

    def serve(self) -> None:
        """Let one step's calls in; returns when the optimizer has stepped."""
        self.timeline.begin()
        self.worker.board.note(self.worker.rank, self.worker.step, "exchange")
        begun = time.monotonic()
        self.gate.set()
        self.over.wait()
        self.over.clear()
        if self.failure:
            raise self.failure
        self.timeline.wait = time.monotonic() - begun - self.timeline.compute - self.updating
        self.timeline.end(self.updating)

    def forward(self, x: Tensor) -> Tensor:
        """Return the stage's output for this step's batch."""
        self.gate.wait()
        worker = self.worker
        if not self.probed:
            self.timeline.probe(x, 1)
            self.probed = True
        begin = time.monotonic()
        try:
            with self.stage.masked():
                y = self.stage.compute(x, worker.config.seed, 0, worker.step, 0)
            if self.stage.masks and self.stage.masks.conceals:
                raise ConfigError(
                    "a dropout layer is recomputed in the backward pass (torch.utils.checkpoint), "
                    "which transport rpc cannot repeat; use transport mpi"
                )
        except BaseException as error:
            self.failure = error  # the main thread reports it
            self.over.set()
            raise
        self.timeline.add("forward", 0, begin, time.monotonic())
        _count(worker, "forward", y)
        y.register_hook(self._enter)  # type: ignore[no-untyped-call]
        if x.requires_grad:
            x.register_hook(self._leave)  # type: ignore[no-untyped-call]
        return y

    def _enter(self, _: Tensor) -> None:
        """Note when the backward pass comes to this stage."""
        self.begun = time.monotonic()

    def _leave(self, gradient: Tensor) -> None:
        """Note that the backward pass has left this stage."""
        self.timeline.add("backward", 0, self.begun, time.monotonic())
        if self.timeline.index:  # of the first stage it is a parameter's, which stays
            _count(self.worker, "backward", gradient)

    def step(self, parameters: list[Tensor]) -> None:
        """Let the optimizer step along what distributed autograd found."""
        begin = time.monotonic()
        worker, stage = self.worker, self.stage
        stage.grad.zero_()
        start = 0
        for p in parameters:
            view = stage.grad[start : start + p.numel()].view(p.shape)
            if p.grad is not None:
                view.copy_(p.grad)
            p.grad = view
            start += p.numel()
        worker.update(stage.grad)
        self.updating = time.monotonic() - begin
        self.timeline.add("update", None, begin, time.monotonic())
        self.gate.clear()
        self.over.set()


class Stepping:
    """The optimizer of this process's stage, in the form that DistributedOptimizer makes itself.

    It is no torch.optim.Optimizer, which would import torch._dynamo, for seconds, to no use.
    """

    def __init__(self, parameters: list[Tensor]) -> None:
        self.parameters = parameters

    def step(self) -> None:
        """Step along the gradients of the parameters."""
        assert _stage
        _stage.step(self.parameters)


def _forward(x: Tensor) -> Tensor:
    """Run on a stage: answer a driver's call."""
    assert _stage
    return _stage.forward(x)


def _parameters() -> list[Any]:
    """Run on a stage: return references to its parameters, which stay where they are."""
    from torch.distributed.rpc import RRef

    assert _stage
    return [RRef(p) for _, p in _stage.stage.named]


def _drive(worker: Worker, timeline: Timeline) -> None:
    """Send every batch through the stages and back."""
    from torch.distributed import autograd, rpc
    from torch.distributed.optim import DistributedOptimizer

    names = [_name(rank, worker.comm.size) for rank in range(1, worker.comm.size)]
    owned = [ref for name in names for ref in rpc.rpc_sync(name, _parameters)]
    optimizer = DistributedOptimizer(Stepping, owned)  # type: ignore[no-untyped-call]
    for batch in worker.batches():
        timeline.begin()
        worker.board.note(worker.rank, worker.step, "exchange")
        with _patience(), autograd.context() as context:
            _pass(worker, timeline, batch, names, context)
            timeline.end()
            worker.board.note(worker.rank, worker.step, "update")
            with timeline.record("update", None):
                optimizer.step(context)  # type: ignore[no-untyped-call]


def _count(worker: Worker, what: str, sent: Tensor) -> None:
    """Count one message of a tensor, without what RPC wraps around it."""
    worker.comm.meter.add(
        f"rpc {what}", payload=sent.nbytes, sent=sent.nbytes, messages=1, seconds=0.0
    )


@contextmanager
def _patience() -> Iterator[None]:
    """Where a call fails, give its stage time to report the error, or to be missed."""
    try:
        yield
    except Exception:
        time.sleep(_PATIENCE)
        raise


def _pass(worker: Worker, timeline: Timeline, batch: Batch, names: list[str], context: int) -> None:
    """Do one batch's forward pass, stage by stage, the loss, and the backward pass."""
    from torch.distributed import autograd, rpc

    stage, x = worker.replica, batch.x
    with timeline.record("wait", 0):
        for name in names:
            _count(worker, "forward", x)
            x = rpc.rpc_sync(name, _forward, args=(x,))
            _count(worker, "backward", x)  # its gradient goes back, as large
    with timeline.record("forward", 0):
        loss = stage.loss(x, batch.y)
        measured = Loss(loss.item(), stage.correct(x, batch.y), len(batch.x))
    with timeline.record("wait", 0):
        autograd.backward(context, [loss * batch.weight])  # type: ignore[attr-defined]
    worker.note_loss(measured)
