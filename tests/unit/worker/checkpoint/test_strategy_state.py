"""What a strategy may put into a checkpoint."""

from dataclasses import dataclass
from types import SimpleNamespace

import pytest
import torch

import manyhands as mh
from manyhands.errors import WorkerError
from manyhands.strategies import Checkpointable
from manyhands.worker.checkpoint.saved_contents import capture_common


@dataclass(frozen=True)
class Keeps(mh.Strategy, Checkpointable):
    def step(self, worker, batch): ...

    def consensus(self, worker): ...

    def state(self, worker):
        return worker.state


def worker(*state):
    optimizer = torch.optim.SGD([torch.zeros(2)])
    return SimpleNamespace(
        config=SimpleNamespace(strategy=Keeps()), optimizer=optimizer, state=state
    )


def test_tensors_and_what_json_can_hold_are_kept():
    tensors, numbers = capture_common(worker({"own": torch.ones(2)}, {"n": 3, "texts": ["a"]}))
    assert tensors["strategy.own"].tolist() == [1, 1]
    assert numbers == {"n": 3, "texts": ["a"]}


@pytest.mark.parametrize(
    ("state", "words"),
    [
        (({}, {"own": torch.ones(2)}), "a Tensor as 'own' among the numbers"),
        (({"n": 3}, {}), "a int as 'n' among the tensors"),
    ],
)
def test_what_no_checkpoint_can_hold_is_named_with_its_line(state, words):
    with pytest.raises(WorkerError, match=rf"Keeps \(.*test_strategy_state.py:\d+\): .*{words}"):
        capture_common(worker(*state))
