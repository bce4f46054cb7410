"""Groups that survive lost members: MPI's user-level failure mitigation (ULFM).

Where MPI runs with it, a process that dies does not end the others: what they do with it fails
instead. Whoever notices revokes the group, so that everybody's next call fails as well, and all who
are left meet in a smaller one (Bland et al. 2013, "Post-failure recovery of MPI communication
capability"). Open MPI has it since version 5 (`mpirun --with-ft ulfm`); it is not tested there with
one-sided windows, so a lasting group uses none.
"""

from __future__ import annotations

import os

from mpi4py import MPI

from manyhands.allreduce.hidden_communicator import duplicate
from manyhands.comm.mpi import MPICommunicator

_LOST = {
    getattr(MPI, name, None)
    for name in ("ERR_PROC_FAILED", "ERR_PROC_FAILED_PENDING", "ERR_REVOKED", "ERR_IN_STATUS")
}
_SWITCH = "OMPI_MCA_mpi_ft_enable"  # what `mpirun --with-ft ulfm` tells its processes


def obstacle() -> str:
    """Return why this process's MPI cannot continue after a death; "" if it can."""
    kind = MPI.Get_library_version().replace("\0", "").split("\n")[0].strip()[:30]
    try:
        MPI.COMM_WORLD.Is_revoked()
    except (AttributeError, NotImplementedError, MPI.Exception):
        return f"{kind} has no ULFM"
    if os.environ.get(_SWITCH, "0") not in ("1", "true"):
        return f"{kind} was started without --with-ft ulfm"
    return ""


def fault_tolerant_group(comm: MPI.Comm) -> MPICommunicator:
    """Return a group over a duplicate of `comm` that can lose members. Collective."""
    return MPICommunicator(comm.Dup(), windows=False)


def is_loss(error: MPI.Exception) -> bool:
    """Return whether a call failed because a member is gone or the group is revoked."""
    return error.Get_error_class() in _LOST


def revoke(group: MPICommunicator) -> None:
    """Make every call in this group fail from now on, on all processes."""
    for comm in filter(None, (group.comm, duplicate(group.comm))):
        if not comm.Is_revoked():
            comm.Revoke()


def all_alive(group: MPICommunicator, well: bool) -> bool:
    """Return whether all members are alive and well; all survivors get the same answer.

    Also in a group that was revoked. Nobody is left behind by one who believes that all is over.
    """
    try:
        return bool(group.comm.Agree(int(well)))
    except MPI.Exception as error:
        if is_loss(error):
            return False
        raise


def shrink(group: MPICommunicator) -> MPICommunicator:
    """Return the group of the survivors, in the order of their ranks."""
    left = MPICommunicator(group.comm.Shrink(), windows=False)
    left.meter = group.meter
    return left
