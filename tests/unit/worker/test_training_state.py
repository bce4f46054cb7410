"""What a run remembers of its epochs does not grow without an end."""

from __future__ import annotations

import itertools

import pytest
import torch

from manyhands.worker import training_state
from manyhands.worker.training_state import TrainingState


def kept(state: TrainingState) -> list[int]:
    """Return the epochs whose copies are there."""
    return [i + 1 for i, copy in enumerate(state.kept) if copy is not None]


@pytest.mark.parametrize("every", [1, 3])
def test_copies_of_epochs_are_limited_and_lie_evenly(
    monkeypatch: pytest.MonkeyPatch, every: int
) -> None:
    monkeypatch.setattr(training_state, "BYTES_OF_COPIES", 0)
    state = TrainingState()
    for epoch in range(1, 600 * every + 1):
        state.keep(epoch, torch.zeros(4) if epoch % every == 0 else None)
        assert len(kept(state)) <= training_state.MOST_COPIES
    epochs = kept(state)
    assert len(epochs) == training_state.MOST_COPIES
    assert (epochs[0], epochs[-1]) == (every, 600 * every)
    gaps = [after - before for before, after in itertools.pairwise(epochs)]
    assert max(gaps) <= 40 * every  # a mean of 19.3


def test_small_models_keep_a_copy_of_each_epoch(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(training_state, "BYTES_OF_COPIES", 16 * 100)
    state = TrainingState()
    for epoch in range(1, 102):
        state.keep(epoch, torch.zeros(4))
    assert len(kept(state)) == 100


def test_an_epoch_that_is_kept_again_replaces_its_copy() -> None:
    state = TrainingState()
    for epoch, value in ((1, 1.0), (3, 3.0), (3, 4.0)):
        state.keep(epoch, torch.tensor([value]))
    assert kept(state) == [1, 3]
    assert state.kept[2] is not None
    assert state.kept[2].item() == 4.0
