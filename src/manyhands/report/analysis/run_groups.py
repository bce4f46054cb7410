"""Groups of runs, one per curve: by strategy and by every option that varies."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from manyhands.config.option_declaration import find_tagged
from manyhands.config.presets import PRESETS
from manyhands.config.run import RunConfig
from manyhands.report.records.fields import clean
from manyhands.report.records.runs import Run
from manyhands.report.wording.formatting import option, plural

# What differs from run to run without making it another experiment.
IGNORED = frozenset(
    {"strategy", "workers", "seed", "repeat", "folder", "processes", "scaling", "timeout"}
    | set(find_tagged(RunConfig, lambda tags: not tags.changes_result))
)
_PRESET = frozenset(name for preset in PRESETS.values() for name in preset.options)
PRIVATE = "private"  # an axis like an option, known from the run's statement
Key = tuple[str, str, tuple[str, ...]]


@dataclass(frozen=True, kw_only=True, eq=False)
class Group:
    """One curve: a strategy with one setting of the options that vary, from one source."""

    label: str
    source: str
    strategy: str
    options: Mapping[str, Any]


@dataclass(frozen=True, kw_only=True)
class Layout:
    """How runs are laid out: the option along the axis (`x`), and each run's group."""

    x: str
    axes: tuple[str, ...]
    members: Mapping[Group, tuple[Run, ...]]

    def position(self, run: Run) -> float:
        """Return where the run stands on the axis."""
        return float(run.workers if self.x == "workers" else run.config[self.x])


def layout(runs: Sequence[Run]) -> Layout:
    """Find the options that vary, the one along the axis, and the groups."""
    axes = varying(runs)
    x = _along(runs, axes)
    fixed = tuple(a for a in axes if a != x)
    if x != "workers":
        fixed = (*fixed, "workers")
    cells: dict[Key, list[Run]] = defaultdict(list)
    for run in runs:
        cells[run.source, run.strategy, tuple(_frozen(_value(run, a)) for a in fixed)].append(run)
    several = len({run.source for run in runs}) > 1
    members = {
        _group(key, fixed, found, cells, several): tuple(found) for key, found in cells.items()
    }
    return Layout(x=x, axes=axes, members=members)


def varying(runs: Sequence[Run]) -> tuple[str, ...]:
    """Return the options that vary within one strategy of one source, and not just with workers.

    An option that differs between strategies only is a property of the strategy; one that is
    proportional to the workers (a batch that grows with them) is weak scaling, not another curve;
    one that some records lack (an older version's) is not thereby another setting; and what a
    preset decides is told by the preset's name.
    """
    cells: dict[tuple[str, str], list[Run]] = defaultdict(list)
    for run in runs:
        cells[run.source, run.strategy].append(run)
    names = dict.fromkeys((*(name for run in runs for name in run.config), PRIVATE))
    axes = tuple(
        name
        for name in names
        if name not in IGNORED and any(_varies(name, cell) for cell in cells.values())
    )
    if "preset" not in axes:
        return axes
    return tuple(a for a in axes if a not in _PRESET or not _follows_preset(a, cells.values()))


def _follows_preset(name: str, cells: Iterable[Sequence[Run]]) -> bool:
    """Say whether runs of one strategy and one preset all have the same value."""
    for cell in cells:
        for preset in {run.config.get("preset") for run in cell}:
            if _varies(name, [run for run in cell if run.config.get("preset") == preset]):
                return False
    return True


def _varies(name: str, runs: Iterable[Run]) -> bool:
    held = [run for run in runs if name in run.config or name == PRIVATE]
    pairs = {(run.workers, _frozen(_value(run, name))) for run in held}
    if len({value for _, value in pairs}) < 2:
        return False
    try:
        ratios = {round(float(value) / workers, 6) for workers, value in pairs}
    except ValueError:
        return True
    return len(ratios) > 1


def _along(runs: Sequence[Run], axes: Sequence[str]) -> str:
    """Return "workers" where a curve has several of them, else the number that varies most."""
    counts: dict[Key, set[int]] = defaultdict(set)
    for run in runs:
        key = (run.source, run.strategy, tuple(_frozen(_value(run, a)) for a in axes))
        counts[key].add(run.workers)
    if any(len(found) > 1 for found in counts.values()):
        return "workers"
    numeric = {
        axis: len({_value(r, axis) for r in runs})
        for axis in axes
        if all(_is_number(_value(r, axis)) for r in runs)
    }
    return max(numeric, key=lambda axis: numeric[axis]) if numeric else "workers"


def _group(
    key: Key,
    axes: Sequence[str],
    runs: Sequence[Run],
    cells: Mapping[Key, Sequence[Run]],
    several: bool,
) -> Group:
    source, strategy = key[:2]
    kin = [other[2] for other in cells if other[:2] == (source, strategy)]
    parts = [source, strategy] if several else [strategy]
    for i, axis in enumerate(axes):
        value = _value(runs[0], axis)
        beside = value is None and PRIVATE in axes and not runs[0].privacy
        if len({other[i] for other in kin}) > 1 and not beside:
            parts.append(plural(value, "worker") if axis == "workers" else option(axis, value))
    options = {axis: _value(runs[0], axis) for axis in axes if axis != "workers"}
    return Group(
        label=clean(" · ".join(parts)),
        source=source,
        strategy=strategy,
        options=options,
    )


def _value(run: Run, name: str) -> Any:
    if name == PRIVATE:
        return bool(run.privacy)
    return run.workers if name == "workers" else run.config.get(name)


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _frozen(value: Any) -> str:
    return json.dumps(value, sort_keys=True, default=str)
