"""Reads a run's event file with TensorBoard's own reader."""

from __future__ import annotations

from pathlib import Path

from tensorboard.backend.event_processing.event_accumulator import EventAccumulator


def points(run: Path) -> dict[str, list[tuple[int, float]]]:
    """Return step and value of every point, by tag, in the order they were written."""
    (file,) = (run / "tensorboard").iterdir()
    found = EventAccumulator(str(file), size_guidance={"scalars": 0}).Reload()
    return {
        tag: [(event.step, event.value) for event in found.Scalars(tag)]
        for tag in found.Tags()["scalars"]
    }
