"""The result of a run: its record, its model, and its main figures."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from manyhands.errors import ConfigError
from manyhands.training.progress import last_loss

if TYPE_CHECKING:
    from torch import nn

    from manyhands.training.run import Run


@dataclass(frozen=True)
class Result:
    """The result of a run.

    Attributes:
        record: All of `run.json`.
        output: The folder with the records and the model.
        run: What was run.
    """

    record: dict[str, Any]
    output: Path
    run: Run

    def __repr__(self) -> str:
        """Say what came out; `record` has all of it."""
        config, found = self.record["config"], self.record["result"]
        said = {"strategy": config["strategy"], "workers": config["workers"], **found["metrics"]}
        said |= {"loss": self.loss, "training_loss": self.training_loss, "seconds": self.seconds}
        known = {name: value for name, value in said.items() if value is not None}
        told = ", ".join(
            f"{name}={value:.4g}" if isinstance(value, float) else f"{name}={value}"
            for name, value in known.items()
        )
        return f"Result({told}, output={str(self.output)!r})"

    @property
    def accuracy(self) -> float | None:
        """The test accuracy at the end, 0 to 1; None without a test set or classes."""
        return self.record["result"]["accuracy"]  # type: ignore[no-any-return]

    @property
    def metrics(self) -> dict[str, float]:
        """The metrics on the test set at the end, by name."""
        return self.record["result"]["metrics"]  # type: ignore[no-any-return]

    @property
    def loss(self) -> float | None:
        """The test loss at the end; None without a test set."""
        return self.record["result"]["loss"]  # type: ignore[no-any-return]

    @property
    def training_loss(self) -> float | None:
        """The mean training loss of the last epoch, over all workers; None of a private run."""
        return last_loss(self.record)

    @property
    def seconds(self) -> float:
        """Seconds of training, without start-up, evaluation and callbacks."""
        return self.record["result"]["seconds"]  # type: ignore[no-any-return]

    @property
    def history(self) -> list[dict[str, Any]]:
        """One row per epoch: examples, seconds, test loss and accuracy, and each worker's own."""
        return self.record["epochs"]  # type: ignore[no-any-return]

    @property
    def model(self) -> nn.Module:
        """The trained model, newly built and in eval mode."""
        return self._load("model.safetensors")

    @property
    def best(self) -> nn.Module:
        """The best model on the validation part, of those at the ends of the epochs."""
        if self.record["result"]["best_epoch"] is None:
            raise ConfigError("there is no best model: nothing was kept aside; add validation=0.1")
        return self._load("best.safetensors")

    def _load(self, name: str) -> nn.Module:
        import torch
        from safetensors.torch import load_file

        about = self.record["data"]
        module = self.run.build(tuple(about["shape"]), about["outputs"])
        module.to(getattr(torch, self.record["model"]["dtype"]))
        module.load_state_dict(load_file(self.output / name))
        return module.eval()
