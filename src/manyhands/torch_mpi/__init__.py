"""MPI for `torch.distributed`, from stock wheels: `init_process_group("mpi4py")` under mpiexec.

    import torch.distributed as dist
    import manyhands.torch_mpi

    dist.init_process_group("mpi4py")

PyTorch's wheels have no MPI backend. Importing this module registers one that is written over
mpi4py: `group` is the process group, `engine` drives its operations, `collectives` and
`reduction` say what each operation sends, `rendezvous` finds rank, world size and a store. Nothing
of PyTorch is built anew, and no port is opened. What works is in docs/torch-mpi.md.

Importing it before `mpi4py.MPI` also selects the MPI library of the mpiexec that started the
process, where pip installed that one.
"""

from __future__ import annotations

import torch.distributed as dist

from manyhands.launch.mpi_libraries import load_matching

load_matching()  # before any module below imports mpi4py.MPI, which starts MPI

from manyhands.torch_mpi import rendezvous  # noqa: E402
from manyhands.torch_mpi.group import MPIProcessGroup, create  # noqa: E402

BACKEND = "mpi4py"

if not hasattr(dist.Backend, BACKEND.upper()):
    dist.Backend.register_backend(BACKEND, create, extended_api=True, devices=["cpu", "cuda"])
    rendezvous.install()

__all__ = ["BACKEND", "MPIProcessGroup"]
