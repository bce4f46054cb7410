"""Where the numbers come from: machines, versions, model and data, settings, commands."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from manyhands.report.analysis.run_groups import IGNORED
from manyhands.report.analysis.summary import Summary
from manyhands.report.records.fields import clean, mapping, number, sequence, text
from manyhands.report.records.runs import Run
from manyhands.report.wording.formatting import count, join, plural, size

Pairs = list[tuple[str, str]]


def commands(summary: Summary) -> list[str]:
    """Return how the records were made: by the commands of the sweeps', or else the runs'."""
    sweeps = [source.command for source in summary.loaded.sources if source.command]
    runs = [run.command for run in summary.loaded.runs if run.command]
    return list(dict.fromkeys(sweeps or runs))[:12]


def blocks(summary: Summary) -> list[dict[str, Any]]:
    """Return machines, model and data, and settings, each as a list of pairs."""
    runs = [run for run in summary.loaded.runs if run.finished] or list(summary.loaded.runs)
    by_source = {
        source.label: mine
        for source in summary.loaded.sources
        if (mine := [run for run in runs if run.source == source.label])
    }
    found = [
        *_shared(
            "Machine and versions", {name: _machine(mine) for name, mine in by_source.items()}
        ),
        *_shared("Model and data", {name: _tasks(mine) for name, mine in by_source.items()}),
        {"title": "Settings", "pairs": _settings(runs)},
    ]
    for run in runs:
        found += _profile(run)
    return [block for block in found if block["pairs"]]


def _shared(title: str, by_source: Mapping[str, Pairs]) -> list[dict[str, Any]]:
    """Return a block of what all sources have in common, and one of what only one of them has."""
    if len(by_source) < 2:
        return [{"title": title, "pairs": pairs} for pairs in by_source.values()]
    common = [
        pair for pair in next(iter(by_source.values()))
        if all(pair in pairs for pairs in by_source.values())
    ]  # fmt: skip
    own = {n: [pair for pair in pairs if pair not in common] for n, pairs in by_source.items()}
    named = [{"title": f"{title} of {name}", "pairs": pairs} for name, pairs in own.items()]
    everywhere = {"title": f"{title}, the same in all", "pairs": common}
    return [block for block in (everywhere, *named) if block["pairs"]]


def _profile(run: Run) -> list[dict[str, Any]]:
    """Return where a profiled run's time went: by phase, by operation, by function."""
    profile = mapping(run.facts.get("profile"))
    found = []
    for kind in ("phase", "operation", "function"):
        rows = [mapping(row) for row in sequence(profile.get(f"{kind}s"))]
        pairs = [(text(row, "name"), _spent(row)) for row in rows]
        found.append({"title": f"{run.name}, by {kind}", "pairs": pairs})
    return found


def _spent(row: Mapping[str, Any]) -> str:
    calls, own, whole = (number(row, name) or 0.0 for name in ("calls", "own", "seconds"))
    within = f"{1000 * own:.1f} ms of its own, {1000 * whole:.1f} ms in all"
    return f"{plural(int(calls), 'call')}, {within}"


def _machine(runs: list[Run]) -> Pairs:
    """Return machines and versions; where runs differ, every value with its number of runs."""
    threads = sorted({int(t) for r in runs if (t := number(r.machine, "threads_per_worker"))})
    started = sorted(run.started for run in runs if run.started)
    found: dict[str, Counter[str]] = {}
    for run in runs:
        for key, value in _facts_of_machine(run):
            found.setdefault(key, Counter())[value] += 1
    pairs = [
        *((key, _counted(values)) for key, values in found.items()),
        ("threads per worker", join([str(t) for t in threads])),
        ("kernels", _kernels(runs)),
        ("started", " to ".join(dict.fromkeys((started[0], started[-1]))) if started else ""),
    ]
    return [(key, value) for key, value in pairs if value]


def _facts_of_machine(run: Run) -> Pairs:
    machine = run.machine
    memory = number(machine, "memory_bytes")
    hosts = [clean(str(host)) for host in sequence(machine.get("hosts"))]
    return [
        ("host", join(hosts)),
        ("processor", text(machine, "cpu")),
        ("cores", _shown(machine.get("cores"))),
        ("memory", f"{memory / 2**30:.0f} GiB" if memory else ""),
        ("system", text(machine, "system")),
        ("manyhands", run.version),
        *(
            (key, text(machine, key))
            for key in ("python", "torch", "numpy", "mpi", "mpi4py", "launcher")
        ),
    ]


def _counted(values: Counter[str]) -> str:
    """Return the only value, or each with the number of its runs.

    >>> _counted(Counter({"1": 18, "4": 63})), _counted(Counter({"2": 5}))
    ('4 (63 runs), 1 (18 runs)', '2')
    """
    known = [(value, runs) for value, runs in values.most_common() if value]
    if len(known) < 2:
        return known[0][0] if known else ""
    return ", ".join(f"{value} ({plural(runs, 'run')})" for value, runs in known)


def _kernels(runs: Iterable[Run]) -> str:
    choices = {
        " ".join(filter(None, (text(r.kernels, "choice"), _bracket(text(r.kernels, "source")))))
        for r in runs
    }
    return join(sorted(choices - {""}))


def _bracket(words: str) -> str:
    return f"({words})" if words else ""


def _tasks(runs: list[Run]) -> Pairs:
    """Return model and data; where runs differ, every value."""
    found: dict[str, dict[str, None]] = {}
    for run in runs:
        for key, value in _task(run):
            found.setdefault(key, {})[value] = None
    return [(key, join(list(values))) for key, values in found.items()]


def _task(run: Run) -> Pairs:
    parameters = number(run.model, "parameters")
    pairs = [
        ("model", _unnamed(text(run.model, "name"))),
        ("parameters", count(parameters) if parameters else ""),
        ("type", text(run.model, "dtype")),
        ("data", text(run.data, "name")),
        ("training examples", count(n) if (n := number(run.data, "train")) else ""),
        ("test examples", count(n) if (n := number(run.data, "test")) else ""),
        ("its SHA-256", text(run.data, "sha256")[:16]),
    ]
    if parameters and text(run.model, "dtype") == "float32":
        pairs.insert(2, ("one vector of them", size(4 * parameters)))
    return [(key, value) for key, value in pairs if value]


def _unnamed(name: str) -> str:
    """Return a name; a Python function without one reads as such."""
    return "a function without a name" if name == "<lambda>" else name


def _settings(runs: Iterable[Run]) -> Pairs:
    """Return every option; where it varies, its values; where sources differ, each one's."""
    held: dict[str, dict[str, dict[str, None]]] = {}
    for run in runs:
        for key, value in run.config.items():
            held.setdefault(key, {}).setdefault(run.source, {})[_shown(value)] = None
    skipped = IGNORED - {"strategy", "workers", "seed", "scaling"}
    pairs = []
    for key, by_source in held.items():
        each = {source: _ordered(found) for source, found in by_source.items()}
        values = _ordered([value for found in each.values() for value in found])
        if key not in skipped and set(values) != {""}:
            pairs.append((clean(key).replace("_", " "), _option_values(each, values)))
    return pairs


def _ordered(values: Iterable[str]) -> list[str]:
    """Return different values: numbers by size, others as they came."""
    found = list(dict.fromkeys(values))
    try:
        return sorted(found, key=float)
    except ValueError:
        return found


def _option_values(by_source: Mapping[str, Sequence[str]], values: list[str]) -> str:
    """Return an option's values; those of each source where they are not the same."""
    if len({tuple(sorted(found)) for found in by_source.values()}) < 2:
        return ", ".join(values)
    return "; ".join(
        f"{', '.join(v or 'none' for v in found)} ({source})" for source, found in by_source.items()
    )


def _shown(value: Any) -> str:
    if value is None:
        return ""
    if isinstance(value, str):
        return _unnamed(clean(value))
    if isinstance(value, bool):
        return "yes" if value else "no"
    return f"{value:g}" if isinstance(value, float) else clean(json.dumps(value, default=str))
