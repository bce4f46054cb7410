"""Communication between workers: a protocol, its implementations, and a meter of its cost."""

from manyhands.comm.communicator import Communicator
from manyhands.comm.meter import Meter

__all__ = ["Communicator", "Meter"]
