"""How processes under mpiexec find each other: rank and size from MPI, a store in a file.

`torch.distributed` wants a key-value store beside its groups. PyTorch's own opens a TCP port on a
host that the user has to name; MPI has brought the processes together already, so the store is a
file that all of them see.
"""

from __future__ import annotations

import atexit
import importlib
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlparse

from mpi4py import MPI
from torch._C._distributed_c10d import FileStore, HashStore, Store

per_host = 1  # processes of this MPI on this host, once installed


def install() -> None:
    """Set RANK, WORLD_SIZE and the like, and make `env://` use MPI's values."""
    global per_host
    world = MPI.COMM_WORLD
    host = world.Split_type(MPI.COMM_TYPE_SHARED)
    per_host = host.size
    patched = {
        "RANK": world.rank,
        "WORLD_SIZE": world.size,
        "LOCAL_RANK": host.rank,
        "LOCAL_WORLD_SIZE": host.size,
    }
    host.Free()
    for name, value in patched.items():
        os.environ.setdefault(name, str(value))
    # The package has a function of the same name as this module.
    handlers: dict[str, Any] = importlib.import_module(
        "torch.distributed.rendezvous"
    )._rendezvous_handlers
    before = handlers["env"]

    def env(url: str, **options: Any) -> Iterator[tuple[Store, int, int]]:
        asked = parse_qs(urlparse(url).query)
        rank = int(asked.get("rank", [os.environ["RANK"]])[0])
        size = int(asked.get("world_size", [os.environ["WORLD_SIZE"]])[0])
        if size != world.size:  # a group that MPI did not start
            yield from before(url, **options)
        else:
            yield shared_store(world), rank, size
            raise RuntimeError("env:// under MPI finds its processes once; it cannot do so again")

    handlers["env"] = env


def shared_store(comm: MPI.Comm) -> Store:
    """Return a store in a file that all ranks of `comm` see; collective.

    Raises:
        RuntimeError: The ranks share no folder.
    """
    if comm.size == 1:
        return HashStore()
    folders = [tempfile.gettempdir(), os.getcwd(), str(Path.home())]
    for folder in comm.bcast(folders):
        path = comm.bcast(_new_file(folder) if comm.rank == 0 else None)
        here = path is not None and Path(path).exists()
        if comm.allreduce(here, MPI.LAND):
            if comm.rank == 0:
                atexit.register(Path(path).unlink, missing_ok=True)
            return FileStore(path, comm.size)
        if comm.rank == 0 and path is not None:
            Path(path).unlink()
    raise RuntimeError(
        f"no folder is seen by all ranks; tried {', '.join(folders)}: set TMPDIR to one that all "
        "hosts share, or pass store= to init_process_group"
    )


def _new_file(folder: str) -> str | None:
    try:
        number, path = tempfile.mkstemp(prefix="manyhands-store-", dir=folder)
    except OSError:
        return None
    os.close(number)
    return path
