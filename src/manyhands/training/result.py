"""The result of a run: its record, its model, and its main figures."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from manyhands.errors import ConfigError
from manyhands.training.find_provenance import ORIGIN
from manyhands.training.progress import last_loss

if TYPE_CHECKING:
    from torch import nn

    from manyhands.training.run import Run


@dataclass(frozen=True)
class Result:
    """The result of a run, which `fit` returns.

    Examples:
        >>> import manyhands as mh
        >>> result = mh.fit("logistic", "blobs", strategy="averaging", workers=2, epochs=1)
        >>> sorted(result.metrics), result.record["status"]
        (['accuracy'], 'finished')
        >>> [name for name, _ in result.model.named_parameters()]
        ['fc1.weight', 'fc1.bias']

    Attributes:
        record: All of `run.json`.
        output: The folder with the records and the model.
        run: The run, with its configuration, model and data.
    """

    record: dict[str, Any]
    output: Path
    run: Run

    def __repr__(self) -> str:
        """Return the main figures; `record` has all of them."""
        text = ", ".join(f"{name}={value}" for name, value in self._shown().items())
        return f"Result({text}, output={str(self.output)!r})"

    def _shown(self) -> dict[str, str]:
        """Return the main figures that are known, as text."""
        config, result = self.record["config"], self.record["result"]
        shown = {"strategy": config["strategy"], "workers": config["workers"], **result["metrics"]}
        shown |= {"loss": self.loss, "training_loss": self.training_loss, "seconds": self.seconds}
        return {
            name: f"{value:.4g}" if isinstance(value, float) else str(value)
            for name, value in shown.items()
            if value is not None
        }

    def _repr_html_(self) -> str:
        """Show the main figures and the curve of the test set in a notebook."""
        from manyhands.report.output import notebook

        shown = self._shown()
        names = [name.replace("_", " ") for name in shown]
        return notebook.show((), names, [list(shown.values())], self.output, str(self.output))

    def plot(self) -> Any:
        """Return the curve of the test set over time as a matplotlib figure."""
        from manyhands.report.output import notebook

        return notebook.plot(self.output)

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
        """The mean training loss of the last epoch over all workers; None for a private run."""
        return last_loss(self.record)

    @property
    def seconds(self) -> float:
        """Seconds of training, without start-up, evaluation and callbacks."""
        return self.record["result"]["seconds"]  # type: ignore[no-any-return]

    @property
    def history(self) -> list[dict[str, Any]]:
        """One row per epoch: examples, seconds, test loss and metrics, and figures per worker."""
        return self.record["epochs"]  # type: ignore[no-any-return]

    @cached_property
    def model(self) -> nn.Module:
        """The trained model in eval mode: the same object each time."""
        return self._load("model.safetensors")

    @cached_property
    def best(self) -> nn.Module:
        """The model after the epoch with the best validation figure: the same object each time."""
        if self.record["result"]["best_epoch"] is None:
            raise ConfigError(
                "there is no best model: there was no validation set; add validation=0.1, or "
                "give Data(train, test, validation=…)"
            )
        return self._load("best.safetensors")

    def _load(self, name: str) -> nn.Module:
        import torch
        from safetensors.torch import load_file

        about = self.record["data"]
        module = self.run.build(tuple(about["shape"]), about["outputs"])
        module.to(getattr(torch, self.record["model"]["dtype"]))
        module.load_state_dict(load_file(self.output / name))
        setattr(
            module, ORIGIN, str(self.output / name)
        )  # a private run asks where weights are from
        return module.eval()
