"""Measures this machine with this model, group by group, for the forecasts."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from manyhands.config.all_reduces import ALL_REDUCES
from manyhands.config.options import options
from manyhands.experiments.forecast import Calibration
from manyhands.experiments.forecast.probe import Probe
from manyhands.launch.machine import cores, doubling_counts
from manyhands.launch.scratch import private_folder
from manyhands.launch.signals import raise_on_signals
from manyhands.training.start_fit import fit

SECONDS = 0.4  # for one measurement; there are about fifteen in a group
# The options of a run that decide how long a step takes.
DECIDING = tuple(
    name
    for name, option in options().items()
    if option.owners == ("run",) and option.is_taken_by("predict") and not option.tags.length
)


def calibrate(
    model: Any = None,
    data: Any = None,
    *,
    loss: Any = None,
    groups: Sequence[int] | None = None,
    seconds: float = SECONDS,
    say: Callable[[str], None] | None = None,
    **options: Any,
) -> Calibration:
    """Measure a model's step on this machine, alone and beside others, and what talking costs.

    Args:
        model: As in `fit`.
        data: As in `fit`.
        loss: As in `fit`.
        groups: How many workers at once; by default 1, 2, 4 … up to the cores, two at
            least.
        seconds: Time for one measurement, about.
        say: Called with what is being measured.
        **options: The options of `fit` that decide a step: batch_size, optimizer, threads …
    """
    options = {name: value for name, value in options.items() if value is not None}
    records = []
    with raise_on_signals(), private_folder() as folder:
        for size in groups or doubling_counts(max(2, cores())):
            if say:
                say(f"measuring {size} worker{'s' if size > 1 else ''}")
            probe = _make_probe(size, options, seconds)
            result = fit(
                model,
                data,
                loss=loss,
                progress=False,
                strategy=probe,
                workers=size,
                max_steps=1,
                epochs=1,
                output=str(folder / str(size)),
                **{"threads": max(probe.threads), **options},
            )
            records.append(result.record)
            options["kernels"] = result.record["kernels"]["choice"]  # one choice for all
    return merge(records, threads=options.get("threads"))


def _make_probe(size: int, asked: Mapping[str, Any], seconds: float) -> Probe:
    batch = int(asked.get("batch_size") or options()["batch_size"].default)
    batches = {batch, -(-batch // size), max(1, batch // 4), max(1, batch // 16), 1}
    threads = {asked.get("threads") or max(1, cores() // size)}
    if not asked.get("threads"):  # a process more leaves each fewer threads
        threads |= {max(1, cores() // (size + 1)), 1}
    kind: Any = Probe  # a protocol's empty methods count as abstract
    return kind(  # type: ignore[no-any-return]
        batches=tuple(sorted(batches)),
        threads=tuple(sorted(threads)),
        algorithms=ALL_REDUCES,
        seconds=seconds,
    )


def merge(records: Sequence[Mapping[str, Any]], *, threads: int | None) -> Calibration:
    """Return the calibration that the probes' records make together."""
    first = records[0]
    facts = [record["strategy"] for record in records]
    bits = 64 if first["model"]["dtype"] == "float64" else 32
    kept = {name: first["config"].get(name) for name in DECIDING}
    return Calibration.from_dict(
        {
            "schema": 1,
            "machine": first["machine"],
            "options": {**kept, "threads": threads, "kernels": first["kernels"]["choice"]},
            "cores": first["machine"]["cores"],
            "parameters": first["model"]["parameters"],
            "itemsize": bits // 8,
            "layers": [layer["parameters"] for layer in first["model"]["layers"]],
            "examples": first["data"]["train"],
            "add_per_byte": facts[-1]["add_per_byte"],
            "curves": [curve for fact in facts for curve in fact["curves"]],
            "groups": [fact["group"] for fact in facts],
            "held_out": [held for fact in facts for held in fact["held_out"]],
            "service": next((f["service"] for f in facts if f["service"]), None),
        }
    )
