"""How workers talk: a small protocol, its implementation over MPI, and a meter of what it costs."""

from manyhands.comm.communicator import Communicator
from manyhands.comm.meter import Meter

__all__ = ["Communicator", "Meter"]
