"""Every fact of a report is calculated anew from the raw records, over generated ones."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import pytest
import records
from committed_records import packed, run_at
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from recalculation import Raw
from report_cases import summary

from manyhands.report import _summary
from manyhands.report.analysis.summary import Summary
from manyhands.report.figures.all_figures import charts
from manyhands.report.output.report_json import contents

CONSTANT = re.compile(r"1/P|1 / f|\(P − 1\)|\b2 n\b|\b2 (?=\()")  # digits of formulas
LOOSE = {"part of epsilon": 0.03}  # the picture is drawn on a coarser grid
UNITS = {
    "%": 0.01, "percentage": 0.01, "ms": 1e-3, "µs": 1e-6, "min": 60.0, "h": 3600.0, "kB": 1e3,
    "MB": 1e6, "GB": 1e9, "TB": 1e12,
}  # fmt: skip


def sentences(told: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    yield from told["scope"]
    yield from told["answer"]
    yield from told["notes"]
    for topic in told["topics"]:
        yield from topic["sentences"]
    for section in told["sections"]:
        yield from section["sentences"]
        for figure in section["figures"]:
            yield from figure["sentences"]


def reads_as(text: str, value: float, *, up: bool = False) -> bool:
    """Say whether a text shows a value, as precisely as it has digits; `up`: rounded up."""
    plain = text.replace("\u202f", " ").replace(",", "")
    if plain.startswith("p <"):
        return 0 <= value < float(plain[3:])
    shown = re.findall(r"(-?\d+(?: \d{3})*(?:\.\d+)?(?:e[-+]?\d+)?)\s*([%\wµ×-]*)", plain)
    total, unit = 0.0, 1.0
    for digits, name in shown:
        unit = UNITS.get(name, 1.0)
        total += float(digits.replace(" ", "")) * unit
    digits = shown[-1][0].replace(" ", "")
    mantissa, _, exponent = digits.partition("e")
    last = 10.0 ** (int(exponent or 0) - len(mantissa.partition(".")[2])) * unit
    if "." not in mantissa and len(shown) == 1 and re.search(r"[kMGT]B|m?s$|×|µs", plain):
        last = max(last, 10.0 ** (math.floor(math.log10(abs(value) or 1)) - 2))  # three digits
    if up:
        return -1e-9 * value <= total - value <= last * (1 + 1e-9)
    return abs(abs(value) - total) <= 0.51 * last + 1e-9 * abs(value)


def check(told: Mapping[str, Any], raw: Raw) -> int:
    """Check every sentence of a report; return how many facts it has."""
    count = 0
    known = {one[key] for one in told["configurations"] for key in ("name", "label")}
    for sentence in sentences(told):
        rest = sentence["text"]
        for name in sentence["names"]:
            assert raw.names(name), (sentence["text"], name)
        parts = sorted({*known, *sentence["names"]}, key=len, reverse=True)
        for name in parts:
            rest = rest.replace(name, "…").replace(name[:1].upper() + name[1:], "…")
        for fact in sorted(sentence["facts"], key=lambda one: -len(one["text"])):
            count += 1
            value = raw.value(fact)
            loose = LOOSE.get(fact["what"], 1e-6 if fact["how"] == "fit" else 0.0)
            near = pytest.approx(value, rel=max(loose, 1e-6), abs=loose or 1e-12)
            assert fact["value"] == near, (sentence["text"], fact, value)
            if fact["text"]:
                assert fact["text"] in sentence["text"], (sentence["text"], fact)
                up = fact["what"].startswith(("composed epsilon", "epsilon"))  # a bound
                assert reads_as(fact["text"], fact["value"], up=up), fact
                rest = rest.replace(fact["text"], "…")
        assert not re.search(r"\d", CONSTANT.sub("", rest)), (sentence["text"], rest)
    return count


def raw_of(found: Summary, runs: Sequence[Mapping[str, Any]]) -> Raw:
    return Raw({run.where: runs[int(run.id)] for run in found.loaded.runs})


@st.composite
def sweeps(draw: st.DrawFn) -> list[dict[str, Any]]:
    """Make the runs of a sweep: strategies, workers, repeats, and what varies between them."""
    names = draw(
        st.lists(
            st.sampled_from(["sync", "averaging", "hogwild", "server", "gossip", "pipeline"]),
            min_size=1, max_size=3, unique=True,
        )
    )  # fmt: skip
    workers = draw(st.lists(st.sampled_from([1, 2, 4, 8]), min_size=1, max_size=3, unique=True))
    cores = draw(st.sampled_from([1, 2, 4, 16]))
    repeats, weak = draw(st.integers(1, 3)), draw(st.booleans())
    target = draw(st.sampled_from([None, None, 0.9, 0.9625]))
    limits = draw(st.sampled_from([(None,), (None,), (1000, 4000), (1000, 2000, 4000)]))
    cases = [("sequential", 1)] * draw(st.booleans())
    cases += [(name, count) for name in names for count in sorted(workers)]
    found = []
    for name, count in cases:
        for limit in limits:
            for repeat in range(repeats):
                more = {"masters": 1} if name == "server" else {}
                more |= {} if limit is None else {"limit": limit}
                run = records.record(name, count, repeat=repeat, cores=cores, weak=weak, **more)
                found.append(_varied(draw, run, target))
    return found


def _varied(draw: st.DrawFn, run: dict[str, Any], target: float | None) -> dict[str, Any]:
    """Change what a run measured; its processes and its epochs change with it."""
    factor = draw(st.floats(0.2, 5))
    final = draw(st.floats(0.05, 0.999))
    result = run["result"]
    off = final - result["accuracy"]
    result |= {"seconds": factor * result["seconds"], "accuracy": final, "target_accuracy": target}
    run["seconds"]["training"] = result["seconds"]
    if run["config"].get("limit"):
        result["examples"] = 5 * run["config"]["limit"]
    for epoch in run["epochs"]:
        epoch |= {"seconds": factor * epoch["seconds"], "test_loss": draw(st.floats(0.01, 4))}
        epoch["test_accuracy"] = min(max(epoch["test_accuracy"] + off, 0.0), 1.0)
    result["loss"] = run["epochs"][-1]["test_loss"]
    for process in run["workers"]:
        for phase in ("compute", "update", "communicate", "wait", "user"):
            process[phase] *= factor * draw(st.floats(0.1, 1.5))
        if run["config"]["strategy"] == "pipeline" and process["rank"]:
            process["role"] = "stage"
    return run


@settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck))
@given(sweeps())
def test_every_fact_of_a_generated_report_is_that_of_its_records(runs: list[Any]) -> None:
    found = summary(*runs)
    assert check(contents(found, charts(found)), raw_of(found, runs)) > 0


def test_every_fact_of_equal_steps_of_unequal_work_is_that_of_their_records() -> None:
    """`max_steps` ended them: a step of the server is a batch, one of sync a share of it."""
    cases = (("sequential", 1, 1), ("sync", 2, 1), ("server", 2, 2), ("server", 4, 4))
    runs = []
    for repeat in range(3):
        for name, workers, batches in cases:
            more = {"masters": 1} if name == "server" else {}
            run = records.record(name, workers, repeat=repeat, cores=16, max_steps=300, **more)
            run["result"]["examples"] = 38_400 * batches
            runs.append(run)
    found = summary(*runs)
    assert all(row.uneven for row in found.rows)
    assert check(contents(found, charts(found)), raw_of(found, runs)) > 0


def test_every_fact_of_private_runs_is_that_of_their_records() -> None:
    pytest.importorskip("dp_accounting")
    runs = [
        records.private("sync", 4, sigma=sigma, repeat=repeat)
        for sigma in (0.9, 1.8)
        for repeat in (0, 1)
    ]
    for run in runs:
        run["privacy"]["epsilon_pld"] = 3.0 if run["privacy"]["noise_multiplier"] < 1 else 1.0
    runs += [records.record("sync", 4, repeat=repeat) for repeat in (0, 1)]
    found = summary(*runs)
    told = contents(found, charts(found))
    for sentence in sentences(told):
        sentence["facts"][:] = [f for f in sentence["facts"] if f["what"] != "part of epsilon"]
    texts = [s for s in sentences(told) if "steps cost" not in s["text"]]
    assert (
        check(
            {**told, "sections": [], "topics": [], "answer": texts, "notes": []},
            raw_of(found, runs),
        )
        > 10
    )


@pytest.mark.parametrize(
    "name",
    ["psgd", "model-parallel", "staleness", "flights", "momentum", "partitioning", "server-cnn"],
)
def test_every_fact_of_a_committed_report_is_that_of_its_records(name: str) -> None:
    found = _summary([packed(name)])
    raw = Raw({run.where: run_at(run.where) for run in found.loaded.runs})
    assert check(contents(found, charts(found)), raw) > 20


def test_the_check_sees_a_false_number() -> None:
    runs = [records.record("sync", p, repeat=r) for p in (1, 2) for r in (0, 1)]
    found = summary(*runs)
    told = contents(found, charts(found))
    raw = raw_of(found, runs)
    assert check(told, raw) > 0
    fact = next(f for s in sentences(told) for f in s["facts"] if f["what"] == "accuracy")
    fact["value"] += 0.01
    with pytest.raises(AssertionError):
        check(told, raw)
    fact["value"] -= 0.01
    told["notes"].append({"text": "It took 3 s.", "names": [], "facts": []})
    with pytest.raises(AssertionError, match="It took 3 s"):
        check(told, raw)
