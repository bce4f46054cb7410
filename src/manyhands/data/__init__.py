"""Data: what users give, how it is stored, and which worker sees what when."""

from manyhands.data.datasets import Data, store
from manyhands.data.plan import Plan, Share
from manyhands.data.split import Split
from manyhands.data.stored import Stored

__all__ = ["Data", "Plan", "Share", "Split", "Stored", "store"]
