"""Calculates the facts of a report anew from the raw records, without the report's own code."""

from __future__ import annotations

import math
import re
import statistics
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from manyhands.privacy import accountant

Record = Mapping[str, Any]
CONSTANTS = {
    "most repeats": 20, "fewest repeats": 2, "part of the updates that is drawn": 0.99,
    "level of the test": 0.05, "near the steps of theory": 0.15,
}  # fmt: skip
TIMED = ("seconds", "examples per second", "seconds of computing")  # compared within rounds
PHASES = ("compute", "update", "communicate", "wait")


class Raw:
    """The records of a report, by the path that facts name them by."""

    def __init__(self, records: Mapping[str, Record]) -> None:
        self.records = records

    def names(self, name: str) -> bool:
        """Say whether a name is a configuration's, or names its data, kernels or all-reduce."""
        lower = name.lower()
        for run in self.records.values():
            if lower.startswith(run["config"]["strategy"]):
                return True
            operations = {o for p in run.get("workers", ()) for o in p.get("operations") or ()}
            others = {
                str((run.get("kernels") or {}).get("choice")), str(run["config"].get("allreduce")),
                str((run.get("data") or {}).get("name")),
                str((run.get("model") or {}).get("name")),
                *(operation.removeprefix("allreduce").strip() for operation in operations),
                *(value for value in run["config"].values() if isinstance(value, str)),
                *(where.partition("/")[0] for where in self.records),
            }  # fmt: skip
            if lower in {other.lower() for other in others}:
                return True
        return False

    def value(self, fact: Mapping[str, Any]) -> float:
        """Return what the value of a fact should be."""
        what, how, more = fact["what"], fact["how"], fact["parameters"]
        runs = [self.records[run] for run in fact["runs"]]
        against = [self.records[run] for run in fact["against"]]
        among = [[self.records[run] for run in one] for one in fact["among"]]
        if how == "constant":
            return CONSTANTS[what]
        if how == "count":
            return len(among) if what == "configurations" else len(runs)
        if how == "derived":
            return derived(what, runs, against, among, more)
        if how == "fit":
            return fitted(what, runs, against, among, more)
        if how == "p-value":
            return probability(what, runs, against, more)
        mine = typical(runs, what, more)
        if how in ("least", "most"):
            others = [typical(each, what, more) for each in among]
            assert runs in among, fact
            assert mine == (min if how == "least" else max)(others), (fact, others)
        if how in ("median", "least", "most"):
            return mine
        if how == "difference":
            return mine - typical(against, what, more)
        if what not in TIMED:
            other = typical(against, what, more)
            return other / mine if how == "ratio" else mine / other
        if how == "ratio":
            return quotient(what, against, runs, more)
        return quotient(what, runs, against, more) - (how == "excess")


def probability(
    what: str, mine: Sequence[Record], theirs: Sequence[Record], more: Mapping[str, Any]
) -> float:
    """Return the p-value of Welch's test, or within rounds of the paired one, corrected."""
    whole = [in_turn(side, what, more) for side in (mine, theirs)]
    complete = [len(values) for values in whole] == [len(mine), len(theirs)]
    turns = rounds(mine, theirs) if "second" in what and complete else []
    if len(turns) > 2:
        assert more["rounds"] == len(turns)
        first, second = (in_turn(side, what, more) for side in zip(*turns, strict=True))
        p = one_sample([a - b for a, b in zip(first, second, strict=True)])
    else:
        assert "rounds" not in more
        p = welch(*whole)
    return min(1.0, p * more["comparisons"])


def rounds(one: Sequence[Record], other: Sequence[Record]) -> list[tuple[Record, Record]]:
    """Return the repeats of each round; none if some round began before the last one was over.

    The repeats are matched by their order; by their seeds where one side has fewer.
    """
    sides = [sorted(side, key=lambda run: run.get("started") or "") for side in (one, other)]
    if len(one) != len(other):
        seeds = [[run["config"].get("seed") for run in side] for side in sides]
        if any(len(set(each)) < len(each) for each in seeds):
            return []
        both = [seed for seed in seeds[0] if seed in seeds[1]]
        sides = [
            [side[each.index(seed)] for seed in both]
            for side, each in zip(sides, seeds, strict=True)
        ]
    found = list(zip(*sides, strict=True))
    starts = [run.get("started") for pair in found for run in pair]
    if len(found) < 2 or not all(starts):
        return []
    kept = all(
        max(starts[i : i + 2]) < min(starts[i + 2 : i + 4]) for i in range(0, len(starts) - 2, 2)
    )
    return found if kept else []


def in_turn(side: Sequence[Record], what: str, more: Mapping[str, Any]) -> list[float]:
    """Return a measure in the order in which the runs began; of times and rates the logarithms."""
    found = [one(run, what, more) for run in sorted(side, key=lambda r: r["started"])]
    known = [value for value in found if value is not None]
    return [math.log(value) for value in known] if "second" in what else known


def one_sample(gaps: Sequence[float]) -> float:
    """Return the two-sided p-value that the mean of the differences is zero."""
    free, gap = len(gaps) - 1, statistics.fmean(gaps)
    variance = statistics.variance(gaps)
    if variance == 0:
        assert gap == 0
        return 1.0
    t2 = gap**2 * len(gaps) / variance
    return _beta(free / (free + t2), free / 2, 0.5)


def quotient(
    what: str, mine: Sequence[Record], theirs: Sequence[Record], more: Mapping[str, Any]
) -> float:
    """Return the value of some repeats divided by that of others, or an end of its range."""
    first, second = (
        [v for run in side if (v := one(run, what, more)) is not None] for side in (mine, theirs)
    )
    complete = (len(first), len(second)) == (len(mine), len(theirs))
    turns = list(zip(mine, mine, strict=True)) if mine == theirs else rounds(mine, theirs)
    if complete and turns:
        found = [one(a, what, more) / one(b, what, more) for a, b in turns]
        middle = statistics.median(found)
    else:
        found = [a / b for a in first for b in second]
        middle = statistics.median(first) / statistics.median(second)
    return {"low": min(found), "high": max(found)}.get(more.get("end", ""), middle)


def enough(mine: Sequence[Record], theirs: Sequence[Record], more: Mapping[str, Any]) -> float:
    """Return the least number of repeats with which the test would tell two sides apart."""
    sides = zip(*rounds(mine, theirs), strict=True) if "rounds" in more else (mine, theirs)
    first, second = (in_turn(side, more["measure"], more) for side in sides)
    gap = statistics.fmean(first) - statistics.fmean(second)
    for n in range(min(len(first), len(second)) + 1, 21):
        if "rounds" in more:
            free = float(n - 1)
            variance = statistics.variance(a - b for a, b in zip(first, second, strict=True))
        else:
            a, b = statistics.variance(first), statistics.variance(second)
            free, variance = (n - 1) * (a + b) ** 2 / (a * a + b * b), a + b
        t2 = gap**2 * n / variance
        if _beta(free / (free + t2), free / 2, 0.5) * more["comparisons"] <= 0.05:
            return n
    raise AssertionError("twenty repeats would not tell them apart")


def private(run: Record) -> bool:
    return isinstance(run.get("privacy"), Mapping)


def one(run: Record, what: str, more: Mapping[str, Any]) -> Any:
    """Return one run's value of a measure; None where its record has none."""
    last = run["epochs"][-1] if run.get("epochs") else {}
    result, config = run.get("result") or {}, run["config"]
    strategy = run.get("strategy") or {}
    masters = strategy.get("masters") or []
    busy = [m["busy"] / (m["busy"] + m["idle"]) for m in masters if "busy" in m]
    pushes = [o for p in run.get("workers") or () if (o := (p.get("operations") or {}).get("push"))]
    if what == "seconds":
        return result.get("seconds") or run["seconds"]["training"]
    if what == "accuracy":
        return last.get("test_accuracy") if private(run) else result["accuracy"]
    if what == "loss":
        return last.get("test_loss") if private(run) else result["loss"]
    if what == "score":
        held = last.get("test_metrics") if private(run) else result.get("metrics")
        return (held or {}).get(run["metrics"][0]["name"])
    if what == "examples":
        if private(run):
            return run["privacy"]["rate"] * run["data"]["train"] * result["steps"]
        return result["examples"]
    if what == "examples per second":
        return one(run, "examples", more) / one(run, "seconds", more)
    if what in ("startup", "evaluation", "callbacks"):
        return run["seconds"].get(what)
    if what == "workers":
        return config.get("workers") or sum(p.get("role") != "master" for p in run["workers"])
    if what == "option":
        return config[more["name"]]
    if what == "threads per worker":
        return run["machine"]["threads_per_worker"]
    if what == "classes":
        return run["data"]["classes"]
    if what == "seconds to target":
        return to_target(run, more["target"], bool(more.get("asked")))
    if what == "steps to target":
        return steps_to_target(run, more["target"])
    if what in MEASURED:
        return MEASURED[what](run)
    if what == "masters":
        return sum(p.get("role") == "master" for p in run["workers"])
    if what == "mean staleness":
        return (strategy.get("staleness") or {}).get("mean")
    if what == "best own accuracy":
        return max(strategy["own_accuracy"])
    if what in ("first distance", "last distance"):
        return dict(strategy["consensus_distance"])[more["step"]]
    if what == "share of a worker":
        shares = strategy["shares"][int(more["measurement"])][1]
        return shares[int(more["worker"])] / sum(shares)
    if what == "busiest master":
        return max(busy, default=None)
    if what == "masters together":
        return sum(busy) or None
    if what == "seconds per push":
        return statistics.fmean(m["busy"] / m["pushes"] for m in masters)
    if what == "bytes per push":
        return statistics.fmean(o["bytes"] / o["calls"] for o in pushes)
    if what == "waiting of the masters":
        return statistics.fmean(
            p["wait"] / sum(p.get(phase) or 0 for phase in PHASES)
            for p in run["workers"]
            if p.get("role") == "master"
        )
    raise AssertionError(f"no raw value is known for {what!r}")


def rate(run: Record) -> float:
    """Return the learning rate of an update."""
    config = run["config"]
    count = one(run, "workers", {})
    scales = {"linear": count, "sqrt": math.sqrt(count), "inverse": 1 / count}
    return config["lr"] * scales.get(config.get("lr_scaling"), 1)


def skew(run: Record) -> float | None:
    """Return the mean over the workers of half the distance between their mix and the whole's."""
    counts = [worker["classes"] for worker in (run.get("partition") or {}).get("workers") or ()]
    if len(counts) < 2:
        return None
    classes = range(len(counts[0]))
    whole = sum(map(sum, counts))
    mix = [sum(row[c] for row in counts) / whole for c in classes]
    return statistics.fmean(
        0.5 * sum(abs(row[c] / sum(row) - mix[c]) for c in classes) for row in counts
    )


MEASURED: Mapping[str, Callable[[Record], Any]] = {
    "bytes": lambda run: sum(p.get("bytes") or 0 for p in run["workers"]),
    "bytes of the parameters": lambda run: run["model"]["parameters"]
    * {"float32": 4, "float64": 8}[run["model"]["dtype"]],
    "learning rate": rate,
    "limit of staleness": lambda run: run["config"]["staleness"],
    "seconds of computing": lambda run: sum(
        (p.get("compute") or 0) + (p.get("update") or 0)
        for p in run["workers"]
        if p.get("role") != "master"
    ),
    "skew": skew,
    "examples seen": lambda run: run["partition"]["seen"] / run["data"]["train"],
}  # fmt: skip


def typical(runs: Sequence[Record], what: str, more: Mapping[str, Any]) -> float:
    """Return the value of a measure over all repeats of a configuration."""
    if what == "processes":
        return max(run.get("processes") or len(run["workers"]) for run in runs)
    if what == "cores":
        return next(n for run in runs if (n := cores(run)))
    if what == "examples per second":
        return typical(runs, "examples", more) / typical(runs, "seconds", more)
    if curve := re.fullmatch(r"test (loss|accuracy|score) at the (first|last) evaluation", what):
        return along(runs, curve[1])[0 if curve[2] == "first" else -1]
    known = [v for run in runs if (v := one(run, what, more)) is not None]
    return statistics.median(known)


def cores(run: Record) -> int:
    machine = run["machine"]
    hosts = 1 if machine.get("lab") else len(machine.get("hosts") or [1])
    return int(machine.get("cores") or 0) * hosts


def along(runs: Sequence[Record], kind: str) -> list[float]:
    """Return the median over the repeats at every evaluation that all of them have."""
    held = []
    for run in runs:
        if kind == "score":
            name = run["metrics"][0]["name"]
            values = [(e.get("test_metrics") or {}).get(name) for e in run["epochs"]]
        else:
            values = [e.get(f"test_{kind}") for e in run["epochs"]]
        if kept := [v for v in values if v is not None]:
            held.append(kept)
    return [statistics.median(those) for those in zip(*held, strict=False)]


def clock(run: Record) -> list[float]:
    """Return the seconds since the beginning at the end of every epoch."""
    values = [epoch["seconds"] for epoch in run["epochs"]]
    end = one(run, "seconds", {})
    rising = values == sorted(values)
    if len(values) < 2 or (rising and abs(values[-1] - end) <= abs(sum(values) - end)):
        return values
    return [sum(values[: i + 1]) for i in range(len(values))]


def to_target(run: Record, target: float, asked: bool) -> float | None:
    result = run["result"]
    if asked and result.get("target_accuracy") == target and result.get("seconds_to_target"):
        return result["seconds_to_target"]
    for epoch, seconds in zip(run["epochs"], clock(run), strict=True):
        if epoch.get("test_accuracy") is not None and epoch["test_accuracy"] >= target:
            return seconds
    accuracy = one(run, "accuracy", {})
    return one(run, "seconds", {}) if accuracy is not None and accuracy >= target else None


def steps_to_target(run: Record, target: float) -> float | None:
    before = None
    for epoch in run["epochs"]:
        steps, accuracy = epoch["steps"], epoch["test_accuracy"]
        if accuracy >= target:
            if before is None:
                return steps
            return before[0] + (target - before[1]) / (accuracy - before[1]) * (steps - before[0])
        before = (steps, accuracy)
    return None


def derived(
    what: str,
    runs: Sequence[Record],
    against: Sequence[Record],
    among: Sequence[Sequence[Record]],
    more: Mapping[str, Any],
) -> float:
    """Return what a formula gives that only one sentence needs."""
    if what.startswith("efficiency"):
        ratio = (
            quotient("seconds", against, runs, more)
            if what == "efficiency"
            else quotient("examples per second", runs, against, more)
        )
        return ratio / typical(runs, "processes", more)
    if what.endswith(" share"):
        phases = what.removesuffix(" share").split(" and ")
        everything = phases == ["unmeasured"]
        parts = [spent(run, (*PHASES, "idle") if everything else phases) for run in runs]
        end = {"low": min, "high": max}.get(more.get("end", ""), statistics.median)
        return 1 - end(parts) if everything else end(parts)
    if what == "target accuracy":
        return max(t for run in runs if (t := run["result"].get("target_accuracy")) is not None)
    if what == "accuracy that half reached":
        floors = sorted(min(known(each, "accuracy")) for each in among)
        return math.floor(200 * floors[len(floors) // 2] + 1e-9) / 200
    if what == "largest deviation of seconds from their median":
        return max(
            max(abs(t - statistics.median(times)) for t in times) / statistics.median(times)
            for times in ([one(run, "seconds", more) for run in each] for each in among)
        )
    if what == "repeats that would tell them apart":
        return enough(runs, against, more)
    if what == "seconds per example":
        return typical(runs, "seconds", more) / typical(runs, "examples", more)
    if what == "seconds beyond proportion to examples":
        grown = typical(runs, "examples", more) / typical(against, "examples", more)
        return quotient("seconds", runs, against, more) / grown - 1
    if what == "computing without a core":
        return max(robbed(run) for run in runs)
    if what == "accuracy of guessing":
        return 1 / runs[0]["data"]["classes"]
    if what == "loss of guessing":
        return math.log(runs[0]["data"]["classes"])
    if what == "workers - 1":
        return typical(runs, "workers", more) - 1
    if what == "workers / masters together":
        return typical(runs, "workers", more) / typical(runs, "masters together", more)
    if what == "learning rate × mean staleness":
        return typical(runs, "learning rate", more) * typical(runs, "mean staleness", more)
    if what == "header bytes of a push":
        extra = typical(runs, "bytes per push", more) - typical(
            runs, "bytes of the parameters", more
        )
        return extra / typical(runs, "masters", more)
    if what == "largest possible skew":
        return 1 - 1 / typical(runs, "workers", more)
    if what == "largest staleness":
        late = [(run.get("strategy") or {}).get("staleness") or {} for run in runs]
        return max(int(k) for each in late for k, n in each.get("histogram", {}).items() if n)
    if "bytes" in what:
        sent = statistics.median([v for run in runs for v in per_exchange(run)])
        count = typical(runs, "workers", more)
        if what == "bytes per exchange against theory":
            return abs(sent / more["theory"] - 1)
        return sent * (count if what == "bytes of all per exchange" else 1)
    if what in ("composed epsilon by pld", "composed epsilon by rdp", "least delta"):
        delta = min(run["privacy"]["delta"] for run in runs)
        events = [event(run["privacy"]) for run in runs]
        for run in runs:
            events += [accountant.Event(*each) for each in run["privacy"].get("before", ())]
        return delta if what == "least delta" else accountant.compose(events, delta, what[-3:])
    return of_one_run(what, runs[0], more)


def known(runs: Sequence[Record], what: str) -> list[float]:
    return [v for run in runs if (v := one(run, what, {})) is not None]


def event(privacy: Record) -> accountant.Event:
    return accountant.Event(privacy["steps"], privacy["rate"], privacy["noise_multiplier"])


def of_one_run(what: str, run: Record, more: Mapping[str, Any]) -> float:
    """Return what only one repeat is asked for."""
    strategy = run.get("strategy") or {}
    team = [p for p in run["workers"] if p.get("role") != "master" and p["compute"] is not None]
    slow = max(team, key=lambda p: p["compute"]) if team else {}
    stages = [s for s in strategy.get("stages") or [] if s.get("stage") is not None]
    busy = [s["compute"] for s in stages if s.get("compute")]
    privacy = run.get("privacy") or {}
    formulas: dict[str, Callable[[], float]] = {
        "rank that computes longest": lambda: slow["rank"],
        "micro-batches": lambda: strategy["micro_batches"],
        "mean bubble": lambda: statistics.fmean(s["bubble"] for s in stages),
        "ideal bubble": lambda: strategy["ideal_bubble"],
        "slowest stage against the fastest": lambda: max(busy) / min(busy),
        "epsilon": lambda: privacy["epsilon_pld"],
        "private steps": lambda: privacy["steps"],
        "some of the private steps": lambda: _half(privacy["steps"]),
        "part of epsilon": lambda: _part(privacy, int(more["first"])),
    }
    return formulas[what]()


def _half(steps: int) -> int:
    """Return the drawn point next to half of the steps: points lie at squares of i / 24."""
    drawn = {math.ceil(steps * (i / 24) ** 2) for i in range(1, 25)}
    return min(sorted(drawn), key=lambda n: abs(n - steps / 2))


def _part(privacy: Record, first: int) -> float:
    """Return an upper bound's part: the picture is drawn on a grid ten times as coarse."""
    some = accountant.Event(first, privacy["rate"], privacy["noise_multiplier"])
    return accountant.epsilon(some, privacy["delta"]) / privacy["epsilon_pld"]


def spent(run: Record, phases: Sequence[str]) -> float:
    """Return which part of a run's time its workers spent in some phases."""
    team = [p for p in run["workers"] if p.get("role") != "master"]
    known = [idle(run, p) if name == "idle" else p.get(name) or 0 for p in team for name in phases]
    return math.fsum(known) / (one(run, "seconds", {}) * len(team))


def idle(run: Record, process: Record) -> float:
    """Return how long a worker idles until the slowest has finished."""
    team = [p for p in run["workers"] if p.get("role") != "master"]
    if not run.get("privacy") and all("training" in p for p in team):
        return max(p["training"] for p in team) - process["training"]
    rest = [
        max(one(run, "seconds", {}) - sum(p.get(phase) or 0 for phase in PHASES), 0) for p in team
    ]
    return rest[team.index(process)] - min(rest)


def robbed(run: Record) -> float:
    parts = []
    for p in run["workers"]:
        busy = (p.get("compute") or 0) + (p.get("update") or 0)
        if p.get("role") != "master" and p.get("user") is not None and busy > 0:
            parts.append(1 - (p["user"] + (p.get("system") or 0)) / busy)
    return max(parts)


def per_exchange(run: Record) -> list[float]:
    """Return the bytes that each worker sent per call of the all-reduce that moved most."""
    moved: dict[str, float] = {}
    for p in run["workers"]:
        for name, operation in (p.get("operations") or {}).items():
            if name.startswith("allreduce"):
                moved[name] = moved.get(name, 0) + (operation.get("bytes") or 0)
    if not moved:
        team = [p for p in run["workers"] if p.get("role") != "master"]
        return [p["bytes"] / p["steps"] for p in team if p.get("bytes") and p["steps"]]
    name = max(moved, key=lambda each: moved[each])
    held = [p["operations"][name] for p in run["workers"] if name in (p.get("operations") or {})]
    return [o["bytes"] / o["calls"] for o in held if o.get("bytes") and o.get("calls")]


def fitted(
    what: str,
    runs: Sequence[Record],
    against: Sequence[Record],
    among: Sequence[Sequence[Record]],
    more: Mapping[str, Any],
) -> float:
    """Return what a fit gives: a straight line's beginning, or a law's serial fraction."""
    if what == "seconds without examples":
        x, y = ([typical(each, m, more) for each in among] for m in ("examples", "seconds"))
        mean = statistics.fmean(x)
        spread = sum((a - mean) ** 2 for a in x)
        slope = sum((a - mean) * b for a, b in zip(x, y, strict=True)) / spread
        return statistics.fmean(y) - slope * mean
    by_workers: dict[int, list[Record]] = {}
    for run in runs:
        by_workers.setdefault(one(run, "workers", more), []).append(run)
    weak = more["law"] == "Gustafson"

    def speed(each: Sequence[Record], end: str) -> float:
        if weak:
            return quotient("examples per second", each, against, {"end": end})
        return quotient("seconds", against, each, {"end": end})

    unit = speed(by_workers[1], "") if 1 in by_workers else 1.0
    ends = ("", "low", "high")
    points = {
        end: [(p, speed(each, end) / unit) for p, each in by_workers.items() if p > 1]
        for end in ends
    }
    fits = [least_squares(points[""], weak)]
    if all(min(len(each), len(against)) > 1 for p, each in by_workers.items() if p > 1):
        fits += [least_squares(points[end], weak) for end in ends[1:]]
    if len(points[""]) > 2:
        fits += [
            least_squares([point for point in points[""] if point != left], weak)
            for left in points[""]
        ]
    serial = {"": fits[0], "low": min(fits), "high": max(fits)}
    if what == "serial fraction":
        return serial[more.get("end", "")]
    assert what == "bound"
    return 1 / serial[{"low": "high", "high": "low"}.get(more.get("end", ""), "")]


def least_squares(points: Sequence[tuple[float, float]], weak: bool) -> float:
    """Return the serial fraction with the least squared error."""

    def error(f: float) -> float:
        return sum(
            (s - (p - f * (p - 1) if weak else 1 / (f + (1 - f) / p))) ** 2 for p, s in points
        )

    serial = min((i / 1000 for i in range(1001)), key=error)
    low, high = max(serial - 1e-3, 0.0), min(serial + 1e-3, 1.0)
    for _ in range(60):  # the error has one minimum between the neighbours of the least
        third = (high - low) / 3
        low, high = (low, high - third) if error(low + third) < error(high - third) else (
            low + third, high,
        )  # fmt: skip
    return (low + high) / 2


def welch(one: Sequence[float], other: Sequence[float]) -> float:
    """Return the two-sided p-value, by the incomplete beta function's continued fraction."""
    parts = [statistics.variance(side) / len(side) for side in (one, other)]
    gap = statistics.fmean(one) - statistics.fmean(other)
    if sum(parts) == 0:
        assert gap == 0
        return 1.0
    degrees = sum(parts) ** 2 / sum(
        part**2 / (len(side) - 1) for part, side in zip(parts, (one, other), strict=True)
    )
    t2 = gap**2 / sum(parts)
    return _beta(degrees / (degrees + t2), degrees / 2, 0.5)


def _beta(x: float, a: float, b: float) -> float:
    """Return the regularised incomplete beta function (Lentz's method)."""
    if x in (0.0, 1.0):
        return x
    if x > (a + 1) / (a + b + 2):
        return 1 - _beta(1 - x, b, a)
    tiny = 1e-300
    front = math.exp(
        math.lgamma(a + b) - math.lgamma(a) - math.lgamma(b) + a * math.log(x) + b * math.log1p(-x)
    )
    c, d = 1.0, 1 / ((1 - (a + b) * x / (a + 1)) or tiny)
    h = d
    for m in range(1, 500):
        for term in (
            m * (b - m) * x / ((a + 2 * m - 1) * (a + 2 * m)),
            -(a + m) * (a + b + m) * x / ((a + 2 * m) * (a + 2 * m + 1)),
        ):
            d = 1 / ((1 + term * d) or tiny)
            c = (1 + term / c) or tiny
            h *= c * d
        if abs(c * d - 1) < 1e-14:
            break
    return front * h / a
