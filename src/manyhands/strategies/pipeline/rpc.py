"""Model parallelism by torch RPC: a driver calls one process per part, as in PyTorch's tutorials.

Distributed autograd records the calls of the forward pass and walks back through them;
DistributedOptimizer lets every part step. A part's calls are served by RPC's own threads, while its
main thread waits in `worker.batches()`, so that checkpoints, evaluation and requests to stop are
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
from manyhands.launch.host import host
from manyhands.model.replica import Loss
from manyhands.strategies.pipeline.schedule import Shape
from manyhands.strategies.pipeline.stage import Stage
from manyhands.strategies.pipeline.timeline import Notes

if TYPE_CHECKING:
    from torch import Tensor

    from manyhands.comm import Communicator
    from manyhands.worker.worker import Batch, Worker

_PATIENCE = 5.0  # seconds that a driver leaves a failing part to tell of it itself

_part: Part | None = None  # this process's, for the calls that come in


def work(worker: Worker, pipeline: Shape) -> dict[str, Any]:
    """Drive the parts, or be one of them; returns what this process noted."""
    global _part
    notes = Notes(worker, pipeline, pipeline.stage_of(worker.rank, worker.config.workers))
    if worker.rank:
        _part = Part(worker, notes)
    _connect(worker)
    if _part:
        for batch in worker.batches():
            _part.serve()
            worker.note_nothing(len(batch.x))
    else:
        _drive(worker, notes)
    _part = None
    return notes.facts()


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
    if len(set(worker.comm.gather(host()))) == 1:
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


class Part:
    """What a part answers with: its stage, and whose turn it is.

    Between two steps the gate is shut: whatever the main thread does then (a checkpoint, an
    evaluation) no call disturbs.
    """

    def __init__(self, worker: Worker, notes: Notes) -> None:
        assert isinstance(worker.replica, Stage)
        self.worker, self.notes, self.stage = worker, notes, worker.replica
        self.gate, self.over = threading.Event(), threading.Event()
        self.failure: BaseException | None = None
        self.begun = self.updating = 0.0  # seconds: when the backward pass came; of the last update
        self.probed = False
        if notes.index == 0:  # no gradient leaves it: its first weight's is the last that is found
            self.stage.named[0][1].register_hook(self._leave)  # type: ignore[no-untyped-call]

    def serve(self) -> None:
        """Let one step's calls in; returns when the optimizer has stepped."""
        self.notes.begin()
        self.worker.board.note(self.worker.rank, self.worker.step, "exchange")
        begun = time.monotonic()
        self.gate.set()
        self.over.wait()
        self.over.clear()
        if self.failure:
            raise self.failure
        self.notes.wait = time.monotonic() - begun - self.notes.compute - self.updating
        self.notes.end(self.updating)

    def forward(self, x: Tensor) -> Tensor:
        """Return the stage's output for this step's batch."""
        self.gate.wait()
        worker = self.worker
        if not self.probed:
            self.notes.probed(x, 1)
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
            self.failure = error  # the main thread tells of it
            self.over.set()
            raise
        self.notes.spent("forward", 0, begin, time.monotonic())
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
        self.notes.spent("backward", 0, self.begun, time.monotonic())
        if self.notes.index:  # of the first stage it is a parameter's, which stays
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
        self.notes.spent("update", None, begin, time.monotonic())
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
        assert _part
        _part.step(self.parameters)


def _forward(x: Tensor) -> Tensor:
    """Run on a part: answer a driver's call."""
    assert _part
    return _part.forward(x)


def _parameters() -> list[Any]:
    """Run on a part: return references to its parameters, which stay where they are."""
    from torch.distributed.rpc import RRef

    assert _part
    return [RRef(p) for _, p in _part.stage.named]


def _drive(worker: Worker, notes: Notes) -> None:
    """Send every batch through the parts and back."""
    from torch.distributed import autograd, rpc
    from torch.distributed.optim import DistributedOptimizer

    parts = [_name(rank, worker.comm.size) for rank in range(1, worker.comm.size)]
    owned = [ref for part in parts for ref in rpc.rpc_sync(part, _parameters)]
    optimizer = DistributedOptimizer(Stepping, owned)  # type: ignore[no-untyped-call]
    for batch in worker.batches():
        notes.begin()
        worker.board.note(worker.rank, worker.step, "exchange")
        with _patience(), autograd.context() as context:
            _pass(worker, notes, batch, parts, context)
            notes.end()
            worker.board.note(worker.rank, worker.step, "update")
            with notes.spending("update", None):
                optimizer.step(context)  # type: ignore[no-untyped-call]


def _count(worker: Worker, what: str, sent: Tensor) -> None:
    """Count one message of a tensor, without what RPC wraps around it."""
    worker.comm.meter.add(
        f"rpc {what}", payload=sent.nbytes, sent=sent.nbytes, messages=1, seconds=0.0
    )


@contextmanager
def _patience() -> Iterator[None]:
    """Where a call fails, leave its part some time: to tell why, or to be missed."""
    try:
        yield
    except Exception:
        time.sleep(_PATIENCE)
        raise


def _pass(worker: Worker, notes: Notes, batch: Batch, parts: list[str], context: int) -> None:
    """Do one batch's forward pass, part by part, the loss, and the backward pass."""
    from torch.distributed import autograd, rpc

    stage, x = worker.replica, batch.x
    with notes.spending("wait", 0):
        for part in parts:
            _count(worker, "forward", x)
            x = rpc.rpc_sync(part, _forward, args=(x,))
            _count(worker, "backward", x)  # its gradient goes back, as large
    with notes.spending("forward", 0):
        loss = stage.loss(x, batch.y)
        noted = Loss(loss.item(), stage.correct(x, batch.y), len(batch.x))
    with notes.spending("wait", 0):
        autograd.backward(context, [loss * batch.weight])  # type: ignore[attr-defined]
    worker.note_loss(noted)
