"""Data: what users pass, how it is stored, and which worker uses which examples when."""

from manyhands.data.datasets import Data, store
from manyhands.data.plan import Plan, Share
from manyhands.data.sampled_plan import SampledPlan
from manyhands.data.split import Split
from manyhands.data.stored import Stored
from manyhands.data.streaming import Streamed, StreamPlan

__all__ = [
    "Data",
    "Plan",
    "SampledPlan",
    "Share",
    "Split",
    "Stored",
    "StreamPlan",
    "Streamed",
    "store",
]
