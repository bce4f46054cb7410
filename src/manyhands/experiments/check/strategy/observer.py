"""What each process observes while a strategy trains: parameters, consensus, state, data."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, TextIO

import numpy as np
import torch

from manyhands.config.options import flatten
from manyhands.config.strategy_class_rules import option_values
from manyhands.experiments.check.strategy.collective_call_log import Tracer
from manyhands.experiments.check.strategy.trial_runs import PROBE
from manyhands.worker.abilities import SplitsModel


class Probe:
    """Observes the workers of one process, one trial after the other; it is a `StepHook`.

    It writes a row as soon as it knows something: a process may be ended at any time.
    """

    def __init__(self, tracer: Tracer) -> None:
        self.tracer = tracer
        self.entered = False  # whether a worker trains
        self._file: TextIO | None = None
        self._worker: Any = None
        self._before: dict[str, str] = {}
        self._place, self._other = 0, False

    def begin(self, folder: Path, rank: int, *, other_examples: bool = False) -> None:
        """Begin a trial, in which the worker may train on other examples."""
        self._other = other_examples
        folder.mkdir(parents=True, exist_ok=True)
        self._file, self._worker = (folder / PROBE.format(rank)).open("w"), None

    def end(self) -> None:
        """End a trial: say whether data and configuration are what they were."""
        if self._worker is not None:
            after = _things(self._worker)
            changed = [name for name, digest in self._before.items() if after.get(name) != digest]
            self.write({"kind": "end", "changed": changed})
        self.entered, self._worker = False, None
        if self._file:
            self._file.close()

    def write(self, row: dict[str, Any]) -> None:
        """Write a row."""
        if self._file and not self._file.closed:
            self._file.write(json.dumps(row) + "\n")
            self._file.flush()

    def install(self, kind: Any) -> None:
        """Observe all workers that objects of this class train."""
        prepare = kind.prepare

        def prepared(strategy: Any, worker: Any) -> None:
            if self._other:
                _change_examples(worker.data.train)
            self._attach(worker)
            self._observe(strategy)
            prepare(strategy, worker)

        kind.prepare = prepared

    def _observe(self, strategy: Any) -> None:
        """Observe an object's begin and consensus; its class keeps its own, which messages name."""
        begin, consensus = strategy.begin, strategy.consensus

        def begun(worker: Any) -> None:
            begin(worker)
            self.write({"kind": "begin", "step": worker.step, "state": describe(worker.state)})

        def agreed(worker: Any) -> Any:
            before = digest_of(worker.params)
            result = consensus(worker)
            row = {"before": before, "after": digest_of(worker.params), "result": None}
            if torch.is_tensor(result):
                row["result"] = digest_of(result)
            self.write({"kind": "consensus", "step": worker.step, **row})
            return result

        with suppress(AttributeError):  # a dataclass with slots
            object.__setattr__(strategy, "begin", begun)
            object.__setattr__(strategy, "consensus", agreed)

    def _attach(self, worker: Any) -> None:
        self._worker, self._before = worker, _things(worker)
        self._place, self.entered = worker.params.data_ptr(), True
        self.tracer.step = lambda: worker.step
        worker.hooks.append(self)

    def after_step(self, worker: Any, examples: int) -> None:
        """Note what a step left."""
        self.tracer.note(worker.step, "gradient")
        self.write(
            {
                "kind": "step",
                "step": worker.step,
                "params": digest_of(worker.params),
                "moved": worker.params.data_ptr() != self._place,
                "state": describe(worker.state),
            }
        )


def _change_examples(split: Any) -> None:
    """Let a split give other examples of its own: the last in place of the first, and so on."""
    given = split.batch
    split.batch = lambda indices: given(len(split) - 1 - indices)


def _things(worker: Any) -> dict[str, str]:
    """Return digests of what a strategy must leave alone."""
    found = {}
    for part, split in (("training", worker.data.train), ("test", worker.data.test)):
        if split is not None:
            x, y = split.batch(np.arange(len(split)))
            found[f"the {part} data"] = digest_of(x) + digest_of(y)
    options = {**flatten(worker.config), **option_values(worker.config.strategy)}
    found |= {f"the option {name}": repr(value) for name, value in options.items()}
    found |= {f"the optimizer's {name}": text for name, text in _hyperparameters(worker).items()}
    if not isinstance(worker.config.strategy, SplitsModel):  # whose parts draw by the example
        found["the seed of torch"] = repr(torch.initial_seed())
    return found


def _hyperparameters(worker: Any) -> dict[str, str]:
    """Return what the optimizer's groups say beside their parameters; of a rate, what is scheduled.

    A schedule sets the rate before each update, as a factor of the initial one.
    """
    groups = [dict(group) for group in getattr(worker.optimizer, "param_groups", ())]
    for group in groups:
        rate = group.pop("initial_lr", group.get("lr"))
        if worker.computation.rate:
            group["lr"] = rate
    names = sorted({name for group in groups for name in group} - {"params"})
    return {name: repr([group.get(name) for group in groups]) for name in names}


def digest_of(tensor: Any) -> str:
    """Return a short digest of a tensor's bits."""
    content = tensor.detach().cpu().contiguous().numpy()
    return hashlib.blake2b(content.tobytes(), digest_size=8).hexdigest()


def describe(value: Any, name: str = "worker.state") -> dict[str, str]:
    """Return digests of the tensors, numbers and texts in what a strategy keeps, by name."""
    if torch.is_tensor(value):
        return {name: digest_of(value)}
    if isinstance(value, np.ndarray):
        return {name: hashlib.blake2b(value.tobytes(), digest_size=8).hexdigest()}
    if isinstance(value, Mapping):
        parts = [(f"{name}[{key!r}]", part) for key, part in value.items()]
    elif isinstance(value, (list, tuple)):
        parts = [(f"{name}[{place}]", part) for place, part in enumerate(value)]
    elif hasattr(value, "__dict__") and not callable(value):
        parts = [(f"{name}.{key}", part) for key, part in vars(value).items()]
    else:
        return {name: repr(value)} if isinstance(value, (bool, int, float, str)) else {}
    found: dict[str, str] = {}
    for key, part in parts if name.count(".") + name.count("[") < 5 else ():
        found |= describe(part, key)
    return found
