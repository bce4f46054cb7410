"""Reads a run's event file with TensorBoard's own reader."""

from __future__ import annotations

from pathlib import Path

from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from tensorboard.plugins.hparams.plugin_data_pb2 import HParamsPluginData


def points(run: Path) -> dict[str, list[tuple[int, float]]]:
    """Return step and value of every point, by tag, in the order they were written."""
    (file,) = (run / "tensorboard").iterdir()
    found = EventAccumulator(str(file), size_guidance={"scalars": 0}).Reload()
    return {
        tag: [(event.step, event.value) for event in found.Scalars(tag)]
        for tag in found.Tags()["scalars"]
    }


def hyper_parameters(run: Path) -> dict[str, object]:
    """Return the hyper-parameters of a run's event file by name."""
    (file,) = (run / "tensorboard").iterdir()
    content = EventAccumulator(str(file)).Reload().PluginTagToContent("hparams")
    assert "_hparams_/session_end_info" in content
    start = HParamsPluginData.FromString(content["_hparams_/session_start_info"])
    values = start.session_start_info.hparams.items()
    return {name: getattr(value, value.WhichOneof("kind")) for name, value in values}
