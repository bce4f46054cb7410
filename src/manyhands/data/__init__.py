"""Data: what users pass, how it is stored, and which worker uses which examples when."""

from manyhands.data.datasets import Data, store
from manyhands.data.example_batches import Split
from manyhands.data.sampler_batch_plan import SampledPlan
from manyhands.data.stored import Stored
from manyhands.data.streaming import Streamed, StreamPlan
from manyhands.data.worker_batch_plan import Plan, Share

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
