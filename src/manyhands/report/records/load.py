"""Read the records of finished, failed and damaged runs into typed rows.

A folder is a sweep (`sweep.json`, `runs/ID/run.json`), one run (`run.json`), or a folder of runs;
it may be packed as `NAME.tar.xz`.
What cannot be read becomes a `Problem` that names the file; nothing raises for what a file holds.
"""

from __future__ import annotations

import itertools
import json
import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from manyhands.report.records.archive import ArchiveError, is_archive, unpacked
from manyhands.report.records.fields import clean, mapping, number, sequence, text, total
from manyhands.report.records.published import published
from manyhands.report.records.runs import Epoch, Loaded, Problem, Process, Run, Source
from manyhands.report.wording.formatting import plural

SCHEMA = 1
DIFFERENT = (
    "counts steps in two ways: an older version let the other workers train while worker 0 "
    "evaluated. Its steps by epoch, speed-up and time to the target are left out. Run it again to "
    "have them"
)


def read(folders: Sequence[Path]) -> Loaded:
    """Read every run below `folders`; several sweeps are told apart by their labels."""
    sources: list[Source] = []
    runs: list[Run] = []
    problems: list[Problem] = []
    for folder in dict.fromkeys(Path(f) for f in folders):
        source, found, failed = _read_source(folder)
        problems += failed
        if source is not None:
            sources.append(source)
            runs += [replace(run, source=str(len(sources) - 1)) for run in found]
    labels = _labels(sources, runs)
    named = [replace(run, source=labels[int(run.source)]) for run in runs]
    titles = {label: _title(label, labels, sources, named) for label in labels}
    kept = {
        label: replace(source, label=label, title=source.title or titles[label])
        for label, source in zip(labels, sources, strict=True)
    }
    return Loaded(tuple(kept.values()), tuple(named), tuple(problems))


def _read_source(path: Path) -> tuple[Source | None, list[Run], list[Problem]]:
    if not is_archive(path):
        return _read_folder(path, path)
    try:
        with unpacked(path) as folder:
            source, runs, problems = _read_folder(folder, path)
            named = [replace(p, where=p.where.replace(str(folder), str(path))) for p in problems]
            return source, runs, named
    except ArchiveError as error:
        return None, [], [Problem(str(path), error.reason)]


def _read_folder(folder: Path, given: Path) -> tuple[Source | None, list[Run], list[Problem]]:
    """Read a folder, which may be unpacked from the archive that was given."""
    if not folder.is_dir():
        return None, [], [Problem(str(folder), "is not a folder")]
    problems: list[Problem] = []
    sweep: Mapping[str, Any] = {}
    if (folder / "sweep.json").exists():
        sweep = _read_json(folder / "sweep.json", "sweep.json", problems)
    if (folder / "run.json").exists():
        places = [folder]
    else:
        parent = folder / "runs" if (folder / "runs").is_dir() else folder
        places = sorted(p for p in parent.iterdir() if p.is_dir() and _holds_run(p))
    runs = [run for place in places if (run := _read_run(place, folder, sweep, problems))]
    if not places and not sweep:
        problems.append(Problem(str(folder), "holds neither run.json nor sweep.json"))
        return None, [], problems
    planned = [text(p, "id") for p in sequence(sweep.get("planned")) if isinstance(p, Mapping)]
    present = {place.name for place in places}
    single = not sweep and (folder / "run.json").exists()
    source = Source(
        label="runs" if single else text(sweep, "name") or clean(folder.resolve().name),
        title=text(sweep, "title"),
        folder=""
        if sweep
        else clean((given.resolve().parent if single else folder.resolve()).name),
        question=text(sweep, "question"),
        command=text(sweep, "command"),
        scaling=text(sweep, "scaling"),
        axes=mapping(sweep.get("axes")),
        planned=len(planned),
        missing=tuple(p for p in planned if p and p not in present),
    )
    return source, runs, problems


def _holds_run(folder: Path) -> bool:
    """Whether a run was, or should have been, recorded here."""
    return (folder / "run.json").exists() or folder.parent.name == "runs"


def _labels(sources: Sequence[Source], runs: Sequence[Run]) -> list[str]:
    """Name the sources; sweeps of one name are told apart by their host, then by number."""
    hosts = [next((_host(r) for r in runs if r.source == str(i)), "") for i in range(len(sources))]
    labels = [source.label for source in sources]
    shared = Counter(labels)
    labels = [
        f"{label} ({host})" if shared[label] > 1 and label != "runs" and host else label
        for label, host in zip(labels, hosts, strict=True)
    ]
    shared = Counter(labels)
    return [
        f"{label} #{labels[:i].count(label) + 1}"
        if shared[label] > 1 and label != "runs"
        else label
        for i, label in enumerate(labels)
    ]


def _title(
    label: str, labels: Sequence[str], sources: Sequence[Source], runs: Sequence[Run]
) -> str:
    """Return a title for runs without a sweep: what one run is, or how many there are and where."""
    folders = {source.folder for own, source in zip(labels, sources, strict=True) if own == label}
    mine = [run for run in runs if run.source == label]
    if not mine or "" in folders:
        return ""
    if len(mine) == 1:
        return _describe(mine[0])
    place = f" in {folders.pop()}" if len(folders) == 1 else ""
    return f"{plural(len(mine), 'run')}{place}"


def _describe(run: Run) -> str:
    """Return what one run is, such as "sync with 2 workers: cnn on mnist"."""
    shown = run.strategy
    trains = sum(process.trains for process in run.team)
    if trains > run.workers:  # stages or slices of a model, which a worker shares
        shown += f" with {trains} processes"
    elif run.strategy != "sequential":
        shown += f" with {plural(run.workers, 'worker')}"
    model, data = (
        text(known, "name") or text(run.config, kind)
        for kind, known in (("model", run.model), ("data", run.data))
    )
    task = " on ".join(name for name in (model, data) if name)
    return f"{shown}: {task}" if task else shown


def _host(run: Run) -> str:
    hosts = [clean(str(h)) for h in sequence(run.machine.get("hosts"))]
    return hosts[0] if hosts else ""


def _read_json(path: Path, where: str, problems: list[Problem]) -> Mapping[str, Any]:
    try:
        loaded = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        problems.append(
            Problem(where, "is missing: the run has not finished yet, or was interrupted")
        )
        return {}
    except (OSError, UnicodeDecodeError, RecursionError) as error:
        problems.append(Problem(where, f"cannot be read: {error}"))
        return {}
    except json.JSONDecodeError as error:
        problems.append(Problem(where, f"is damaged: {error}"))
        return {}
    if not isinstance(loaded, dict):
        problems.append(Problem(where, f"holds a {type(loaded).__name__}, not an object"))
        return {}
    return loaded


def _read_run(
    place: Path, folder: Path, sweep: Mapping[str, Any], problems: list[Problem]
) -> Run | None:
    path = place / "run.json"
    where = clean(str(path.relative_to(folder.parent)))
    record = _read_json(path, where, problems)
    if not record:
        return None
    schema = record.get("schema")
    if schema != SCHEMA:
        problems.append(Problem(where, f"has schema {schema!r}; this version reads {SCHEMA}"))
        return None
    if not text(record, "config", "strategy"):
        problems.append(Problem(where, "names no strategy (config.strategy)"))
        return None
    if counts_differently(record):
        problems.append(Problem(where, DIFFERENT, read=True))
    return parse(record, identity=place.name, where=where, scaling=text(sweep, "scaling"))


def parse(record: Mapping[str, Any], *, identity: str, where: str, scaling: str = "") -> Run:
    """Turn one record into a `Run`; of a private run nothing is read that it may not publish."""
    record = published(record)
    config = mapping(record.get("config"))
    seconds = number(record, "result", "seconds") or number(record, "seconds", "training")
    team = _idle_at_the_end(
        [_process(w) for w in sequence(record.get("workers")) if isinstance(w, Mapping)], seconds
    )
    workers = int(number(config, "workers") or sum(p.trains for p in team) or 1)
    examples = number(record, "result", "examples")
    metric, higher = _metric(record)
    return Run(
        id=clean(identity),
        name=text(record, "name") or clean(identity),
        source="",
        where=where,
        finished=record.get("status") == "finished",
        error=_error(record),
        command=text(record, "command"),
        started=text(record, "started"),
        version=text(record, "manyhands"),
        config=config,
        machine=mapping(record.get("machine")),
        model=mapping(record.get("model")),
        data=mapping(record.get("data")),
        kernels=mapping(record.get("kernels")),
        privacy=mapping(record.get("privacy")),
        strategy=text(record, "config", "strategy"),
        facts=mapping(record.get("strategy")),
        partition=mapping(record.get("partition")),
        workers=workers,
        processes=int(number(record, "processes") or len(team) or workers),
        cores=_cores(record),
        scaling=text(record, "config", "scaling") or scaling,
        seconds=seconds,
        startup=number(record, "seconds", "startup"),
        evaluation=number(record, "seconds", "evaluation"),
        callbacks=number(record, "seconds", "callbacks"),
        accuracy=number(record, "result", "accuracy"),
        metric=metric,
        higher=higher,
        score=number(record, "result", "metrics", metric),
        loss=number(record, "result", "loss"),
        steps=number(record, "result", "steps"),
        examples=examples,
        update=number(record, "batch", "update") or number(record, "config", "batch_size"),
        target=number(record, "result", "target_accuracy"),
        seconds_to_target=number(record, "result", "seconds_to_target"),
        team=team,
        story=tuple(mapping(event) for event in sequence(record.get("story"))),
        epochs=_epochs(record, seconds, examples, metric),
        whole=number(record, "seconds", "total"),
        overran=counts_differently(record),
        summary=text(record, "own_strategy", "summary"),
    )


def _cores(record: Mapping[str, Any]) -> int | None:
    """Return the cores of all hosts; simulated ones share theirs. A record has one host's."""
    machine = mapping(record.get("machine"))
    hosts = 1 if machine.get("lab") else len(sequence(machine.get("hosts"))) or 1
    return int(number(machine, "cores") or 0) * hosts or None


def _metric(record: Mapping[str, Any]) -> tuple[str, bool]:
    """Return what the run was judged by, if it is not accuracy, and whether more is better."""
    first = next(iter(sequence(record.get("metrics"))), None)
    name = text(mapping(first), "name")
    return ("", True) if name == "accuracy" else (name, mapping(first).get("higher") is not False)


def _process(worker: Mapping[str, Any]) -> Process:
    sent, shared = number(worker, "bytes"), number(worker, "shared")
    if "shared" not in worker and sent and number(worker, "messages") == 0:
        sent, shared = 0.0, sent  # an older record: what no message carried, shared memory did
    return Process(
        rank=int(number(worker, "rank") or 0),
        role=text(worker, "role"),
        steps=number(worker, "steps"),
        cpu=total(number(worker, name) for name in ("user", "system")),
        training=number(worker, "training"),
        compute=number(worker, "compute"),
        update=number(worker, "update"),
        communicate=number(worker, "communicate"),
        wait=number(worker, "wait"),
        idle=None,
        bytes=sent,
        messages=number(worker, "messages"),
        shared=shared,
        operations=mapping(worker.get("operations")),
    )


def _idle_at_the_end(team: Sequence[Process], seconds: float | None) -> tuple[Process, ...]:
    """Add how long each worker idles after its own end, until the slowest has finished as well.

    No phase is recorded then. Where a record does not say when each worker finished (private runs
    do not), the worker with the least time outside of its phases shows what is not idling.
    """
    mine = [p for p in team if p.trains and p.wait is not None]
    ends = [p.training for p in mine if p.training is not None]
    if len(ends) == len(mine):
        rest = {p.rank: -(p.training or 0.0) for p in mine}
    else:
        rest = {
            p.rank: max((seconds or 0.0) - math.fsum(part or 0.0 for part in p.phases), 0.0)
            for p in mine
        }
    least = min(rest.values(), default=0.0)
    return tuple(replace(p, idle=rest[p.rank] - least) if p.rank in rest else p for p in team)


def _epochs(
    record: Mapping[str, Any], seconds: float | None, examples: float | None, metric: str
) -> tuple[Epoch, ...]:
    entries = [e for e in sequence(record.get("epochs")) if isinstance(e, Mapping)]
    known = not counts_differently(record)
    clock = _running([number(e, "seconds") for e in entries], seconds)
    seen = _running([number(e, "examples") for e in entries], examples)
    ends = [
        _evaluation(entry, metric, i, known=known, seconds=clock[i], examples=seen[i])
        for i, entry in enumerate(entries)
    ]
    within = [
        _evaluation(
            each, metric, 0, known=known,
            seconds=number(each, "seconds"), examples=number(each, "examples"),
        )
        for each in sequence(record.get("evaluations")) if isinstance(each, Mapping)
    ]  # fmt: skip
    return tuple(sorted([*ends, *within], key=lambda each: each.epoch) if within else ends)


def _evaluation(
    entry: Mapping[str, Any],
    metric: str,
    place: int,
    *,
    known: bool,
    seconds: float | None,
    examples: float | None,
) -> Epoch:
    epoch = number(entry, "epoch") or place
    return Epoch(
        epoch=int(epoch) if epoch == int(epoch) else epoch,
        steps=number(entry, "steps") if known else None,
        seconds=seconds,
        examples=examples,
        loss=number(entry, "test_loss"),
        accuracy=number(entry, "test_accuracy"),
        score=number(entry, "test_metrics", metric),
    )


def _running(values: Sequence[float | None], end: float | None) -> list[float | None]:
    """Return values that count from the beginning, whether given so or per epoch."""
    known = [v for v in values if v is not None]
    if len(known) != len(values) or len(known) < 2 or end is None:
        return list(values)
    rising = all(a <= b for a, b in itertools.pairwise(known))
    if rising and abs(known[-1] - end) <= abs(sum(known) - end):
        return list(values)
    return [sum(known[: i + 1]) for i in range(len(known))]


def _error(record: Mapping[str, Any]) -> str:
    for key in ("error", "message", "failure"):
        value = record.get(key)
        if isinstance(value, Mapping):
            rank = number(value, "rank")
            message = text(value, "message") or text(value, "error")
            return f"rank {rank:.0f}: {message}" if rank is not None and message else message
        if isinstance(value, str) and value:
            return clean(value)
    return ""


def counts_differently(record: Mapping[str, Any]) -> bool:
    """Say whether the last epoch has the most steps of a worker, and the result has worker 0's.

    Older versions recorded that where workers that do not step together stopped at a target.
    """
    rows = [mapping(row) for row in sequence(record.get("epochs"))]
    team = [mapping(row) for row in sequence(record.get("workers"))]
    counts = [number(row, "steps") or 0.0 for row in team if text(row, "role") in ("", "worker")]
    last = number(rows[-1], "steps") if rows else None
    steps = number(record, "result", "steps")
    return steps is not None and last == max(counts, default=None) and last != steps
