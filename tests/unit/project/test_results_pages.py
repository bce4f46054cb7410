"""The pages that are made from records: their tables, and conclusions that the records carry."""

from __future__ import annotations

import json
import random
import re
import sys
from pathlib import Path
from typing import Any

import pytest
import records

sys.path.insert(0, str(Path(__file__).parents[3] / "benchmarks"))
sys.path.insert(0, str(Path(__file__).parents[3] / "studies"))
sys.path.insert(0, str(Path(__file__).parents[3] / "tools/docs"))
import default_tables
import examples
import explained
import flights_tables
import model_parallel
import partitioning
import private_cost
import rates
import repeatability
import results

EVEN = ("balanced", "random-sampling", "random-partition")
SKEWED = ("dirichlet:0.3", "by-label")


def run(strategy: str, workers: int, kind: str, seed: int, drop: float = 0.0) -> dict[str, Any]:
    found = records.record(strategy, workers, repeat=seed, partition=kind)
    noise = random.Random(f"{strategy}{workers}{kind}{seed}").uniform(-0.002, 0.002)
    found["result"] |= {"accuracy": 0.95 + noise - drop, "loss": 0.2 + drop}
    found["data"]["train"] = 60000
    return found


def sweep(folder: Path, seeds: int = 3, lost: float = 0.3) -> Path:
    """Return a sweep in which averaging suffers from skewed shards, and nothing else matters."""
    runs = [
        run(s, p, kind, seed, lost if s == "averaging" and kind in SKEWED else 0.0)
        for seed in range(seeds)
        for s in ("sync", "averaging")
        for p in (2, 4)
        for kind in (*EVEN, *SKEWED)
    ]
    runs += [run("sequential", 1, "balanced", seed) for seed in range(seeds)]
    return records.sweep(folder / "partitioning", runs, source=[])


def test_a_table_has_a_row_for_each_partition_and_a_column_for_each_strategy(
    tmp_path: Path,
) -> None:
    lines = partitioning.accuracy(sweep(tmp_path)).splitlines()
    assert lines[0] == (
        "| partition | sequential | sync, P=2 | sync, P=4 | averaging, P=2 | averaging, P=4 |"
    )
    assert [line.split(" | ")[0] for line in lines[2:7]] == [
        f"| {kind}" for kind in (*EVEN, *SKEWED)
    ]
    assert lines[3].split(" | ")[1] == ""  # one worker has nothing to divide
    assert all(line.count("|") == 7 for line in lines[:7])
    assert lines[-1] == "![accuracy by partition](images/partitioning.png)"


def test_who_saw_what_is_told_once_for_each_partition(tmp_path: Path) -> None:
    lines = partitioning.division(sweep(tmp_path)).splitlines()
    assert len(lines) == 2 + 1 + 2 * 5  # the head, sequential, P = 2 and 4
    assert "| balanced | 2 | 30,000 | 100.0% | 0.0% | 0.000 |" in lines


def test_conclusions_are_the_report_s_and_follow_the_records(tmp_path: Path) -> None:
    told = partitioning.conclusion(sweep(tmp_path))
    assert "costs most: averaging with" in told
    assert "differ from balanced by no more than chance may explain with 3 repeats" in told
    assert "With sync, no partition costs accuracy that 3 repeats can tell" in told
    assert "each strategy at most, in percentage points, least first:\n    - sync: " in told
    assert "was tested as one of 16 comparisons" in told  # 4 values, 2 strategies, 2 P
    assert "Filled marks" not in told  # those are in the report's picture


def test_nothing_is_lost_where_nothing_was_lost(tmp_path: Path) -> None:
    told = partitioning.conclusion(sweep(tmp_path, lost=0.0))
    assert "No partition costs accuracy that 3 repeats can tell" in told
    assert "costs most" not in told


def test_one_seed_tells_nothing_of_chance(tmp_path: Path) -> None:
    told = partitioning.conclusion(sweep(tmp_path, seeds=1))
    assert "Every configuration ran once" in told
    assert "costs most" not in told  # with one value, no difference is improbable enough


def test_pages_are_written_between_their_marks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(results, "DOCS", tmp_path)
    sweep(tmp_path / "records")
    page = "a\n<!-- time partitioning -->\nold\n<!-- end -->\nb\n"
    page += (
        "<!-- table partitioning -->\nold\n<!-- end -->\n<!-- table other -->\nkept\n<!-- end -->\n"
    )
    made = results.write(page)
    assert "old" not in made
    assert "sync, P=2" in made
    assert "| sync · by-label | 2 | 2 |" in made
    assert "<!-- table other -->\nkept\n<!-- end -->" in made
    assert results.write(made) == made


def test_a_picture_has_a_panel_for_each_strategy(tmp_path: Path) -> None:
    partitioning.picture(sweep(tmp_path), tmp_path / "p.png")
    assert (tmp_path / "p.png").read_bytes().startswith(b"\x89PNG")


def test_every_mark_of_the_committed_pages_can_be_written() -> None:
    import re

    for page in results.PAGES:
        text = (results.DOCS / page).read_text()
        marks = re.findall(r"<!-- (\w+) (\S+) -->", text)
        assert marks
        assert {kind for kind, _ in marks} <= {
            "table",
            "spark",
            *default_tables.TABLES,
            *results.WRITERS,
        }
        assert text.count("<!-- end -->") == len(marks)


def test_two_sweeps_are_compared_row_by_row(tmp_path: Path) -> None:
    def timed(workers: int, seed: int, times: float) -> dict[str, Any]:
        found = records.record("sync", workers, repeat=seed)
        found["result"]["seconds"] = (10 + seed) * times / workers
        if times == 0.9:  # another program had a core
            found["workers"][0]["user"] /= 2
        return found

    def sweep(name: str, *times: float) -> Path:
        runs = [timed(p, s, t) for p, t in zip((1, 2), times, strict=True) for s in range(3)]
        return records.sweep(tmp_path / name, runs)

    rows = repeatability.compared(sweep("a", 1.0, 1.0), sweep("b", 1.04, 0.9))
    assert [row["ratio"] for row in rows] == [pytest.approx(1.04), pytest.approx(0.9)]
    assert [repeatability.beyond(row, 0.05) for row in rows] == [False, True]
    assert rows[0]["spread"] == pytest.approx(2 / 11)
    assert rows[0]["kernels"] == ["native"]
    assert rows[0]["robbed"] < 0.1 < 0.4 < rows[1]["robbed"]
    with pytest.raises(ValueError, match="different configurations"):
        repeatability.compared(tmp_path / "a", records.sweep(tmp_path / "c", [timed(1, 0, 1.0)]))


def split_sweep(folder: Path) -> Path:
    """Return a sweep of one model split in every way, with times that one can tell apart."""
    piped = {"stages": 2, "cut": None, "transport": "mpi", "micro_batches": 4}
    configs: list[tuple[float, str, int, dict[str, Any]]] = [
        (24.0, "sequential", 1, {}), (16.0, "sync", 2, {"allreduce": "ring"}),
        (17.0, "sync", 2, {"allreduce": "allgather"}), (22.0, "tensor", 1, {"slices": 2}),
        (40.0, "pipeline", 1, piped | {"transport": "rpc", "micro_batches": None}),
        *((s, "pipeline", 1, piped | {"micro_batches": m}) for s, m in ((30.0, 1), (20.0, 4))),
        (21.0, "pipeline", 1, piped | {"cut": "time"}),
    ]  # fmt: skip
    runs = []
    for seed in range(2):
        for seconds, strategy, workers, own in configs:
            found = records.record(strategy, workers, repeat=seed, **own)
            found["result"] |= {"seconds": seconds + seed, "accuracy": 0.97}
            stages = [{"rank": r, "layers": ls} for r, ls in enumerate((["conv1"], ["fc1"]))]
            found["strategy"] = {"stages": stages, "cut": ["fc1"]} if own.get("stages") else {}
            memory = {"parameters": 400, "gradients": 400, "optimizer": 400, "activations": 1000}
            for each in found["workers"]:
                each["memory"] = {k: v // (1 + ("stages" in own)) for k, v in memory.items()}
            runs.append(found)
    return records.sweep(folder / "model-parallel", runs, source=[])


def test_ways_of_splitting_are_told_beside_each_other(tmp_path: Path) -> None:
    lines = model_parallel.split(split_sweep(tmp_path)).splitlines()
    assert [line.split(" | ")[0] for line in lines[2:]] == [
        "| unsplit", "| 2 stages, RPC", "| 2 stages, MPI, whole batches",
        "| 2 stages, MPI, 4 micro-batches", "| 2 stages, MPI, 4 micro-batches, cut by time",
        "| 2 slices (tensor)", "| sync, allgather, 2 workers", "| sync, ring, 2 workers",
    ]  # fmt: skip
    assert (
        lines[3]
        == "| 2 stages, RPC | 1 | 40.5 (40.0 to 41.0) | 0.60 | 97.00 % (97.00 to 97.00) | 2 |"
    )
    assert all(line.count("|") == 7 for line in lines)


def test_conclusions_on_splitting_follow_the_records(tmp_path: Path) -> None:
    told = model_parallel.told(split_sweep(tmp_path))
    assert "With 1 and 4 micro-batches training takes 30.5 and 20.5 s." in told
    assert "The best number is 4, 1.49 times as fast as whole batches." in told
    assert "With 4 micro-batches, MPI is 1.98 times as fast as RPC." in told
    assert "between convolutions and fully connected layers (at fc1): 20.5 s\n" in told
    assert "sync, ring, 2 workers: 16.5 s\n" in told
    assert "1.24 times as fast as the fastest split model (2 stages, MPI, 4 micro-batches)" in told
    assert "holds 50 % of what the unsplit process holds" in told


def test_memory_and_time_of_every_process(tmp_path: Path) -> None:
    folder = split_sweep(tmp_path)
    assert "| unsplit | 1.2 | 1.0 |" in model_parallel.memory(folder)
    spent = model_parallel.spent(folder).splitlines()
    assert sum(line.startswith("| sync, ring, 2 workers |") for line in spent) == 1
    assert all(line.count("|") == 8 for line in spent)


def test_a_synchronous_server_is_compared_with_what_makes_updates_of_its_size(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def told(strategy: str, workers: int, batch: int, accuracy: float, **rest: Any) -> list[Any]:
        run = {"strategy": strategy, "workers": workers, "batch_size": batch, **rest}
        return [{**run, "private": p, "accuracy": accuracy - p * 0.05} for p in (True, False)]

    runs = told("sequential", 1, 512, 0.97) + told("sequential", 1, 128, 0.98)
    runs += told("server", 4, 128, 0.96, staleness=0) + told("server", 4, 128, 0.95)
    monkeypatch.setattr(private_cost, "rows_of", lambda folder: ([], runs))
    (tmp_path / "sweep.json").write_text(json.dumps({"planned": [{"config": {"model": "cnn"}}]}))
    found = [line.split(" | ") for line in private_cost.table(tmp_path).splitlines()[2:]]
    assert {line[0] for line in found} == {"| cnn"}
    assert [line[1:4] + line[6:7] for line in found] == [
        ["sequential", "1", "512", "–"],
        ["server, synchronous", "4", "512", "1.00"],
        ["sequential", "1", "128", "–"],
        ["server", "4", "128", "3.00"],
    ]


def test_accuracies_stand_by_strategy_and_rate(tmp_path: Path) -> None:
    def run(strategy: str, lr: float, seed: int, accuracy: float) -> dict[str, Any]:
        found = records.record(strategy, 2, repeat=seed, lr=lr)
        found["result"]["accuracy"] = accuracy
        return found

    runs = [run("sync", 0.05, 0, 0.9), run("sync", 0.05, 1, 0.8), run("sync", 0.02, 0, 0.98)]
    runs.append(run("gossip", 0.02, 0, 0.97))
    lines = rates.table(records.sweep(tmp_path / "sweep", runs, source=[])).splitlines()
    assert lines[0] == "| strategy | 0.02 | 0.05 |"
    assert sorted(lines[2:]) == [
        "| gossip | 97.00 % | – |",
        "| sync | 98.00 % | 85.00 % (80.00 to 90.00) |",
    ]


def test_examples_are_told_in_one_table(tmp_path: Path) -> None:
    for name, strategy in (("flight_delays", "gossip"), ("transformer_on_text", "sync")):
        kept = tmp_path / f"{name}-{strategy}"
        kept.mkdir()
        told = {"config": {"workers": 2}, "data": {"train": 4000}}
        told["result"] = {"loss": 5.5514, "steps": 315}
        (kept / "run.json").write_text(json.dumps(told))
    lines = examples.table(tmp_path).splitlines()
    assert lines[2:] == [
        "| [flight_delays](../examples/flight_delays.py) | gossip | 2 | 4,000 | 315 "
        "| 5.55 minutes off |",
        "| [transformer_on_text](../examples/transformer_on_text.py) | sync | 2 | 4,000 | 315 "
        "| 5.551 nats a letter |",
    ]


def test_examples_that_have_a_record_are_left_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ran: list[tuple[str, str]] = []
    monkeypatch.setattr(examples, "RECORDS", tmp_path)
    monkeypatch.setattr(examples, "run", lambda name, strategy, *rest: ran.append((name, strategy)))
    (tmp_path / "autoencoder-sync").mkdir()
    (tmp_path / "autoencoder-sync" / "run.json").write_text("{}")
    monkeypatch.setattr(sys, "argv", ["examples.py", "--quick"])
    examples.main()
    assert ("autoencoder", "sync") not in ran
    assert len(ran) == 3 * 6 + 3 - 1
    monkeypatch.setattr(sys, "argv", ["examples.py", "--again"])
    examples.main()
    assert ran.count(("autoencoder", "sync")) == 1


def test_ways_of_preparing_are_told_in_their_order(tmp_path: Path) -> None:
    taken = {"seconds": 90.0, "cpu_seconds": 100.0, "peak_bytes": 2.5e9, "load": [1.0, 2.25]}
    done = {"rows": 327346, "rows_per_cpu_second": 3273.46}
    ways = [("mapreduce", 1, {}), ("local[2]", 10, done), ("pandas", 1, done)]
    told = [{"way": w, "scale": s, **taken, **more} for w, s, more in ways]
    (tmp_path / "preparing.json").write_text(json.dumps({"preparing": told}))
    marks = "<!-- spark {} -->\nold\n<!-- end -->\n"
    page = marks.format("preparing") + marks.format("training")
    lines = flights_tables.write(page, tmp_path).splitlines()
    assert lines[3:6] == [
        "| 1 | pandas | 327,346 | 100 | 3,273 | 2.50 GB | 90 | 1.0, 2.2 |",
        "| 1 | mapreduce | failed | 100 | – | 2.50 GB | 90 | 1.0, 2.2 |",
        "| 10 | local[2] | 327,346 | 100 | 3,273 | 2.50 GB | 90 | 1.0, 2.2 |",
    ]
    assert lines[-2] == "old", "what was not measured stays"


def test_training_from_shards_is_told_beside_memory() -> None:
    rates = {"memory": [100.0, 300.0, 200.0], "streamed": [180.0]}
    shares = {"memory": 1.0, "streamed": 0.9}
    kind = {"workers": 2, "examples_per_second": rates, "shares": shares}
    kind |= {"examples_per_cpu_second": rates, "cpu_shares": shares}
    lines = flights_tables.training({"training": [kind]}).splitlines()
    assert lines[0] == "| workers | examples a second | memory | streamed |"
    assert lines[2] == "| 2 | wall clock | 200 | 180 (0.90) |"
    assert lines[3] == "| 2 | processor time | 200 | 180 (0.90) |"


def test_profiles_stand_side_by_side(tmp_path: Path) -> None:
    for name, functions in (("sequential", ["clip", "draw"]), ("sync-2", ["wait", "clip"])):
        rows = [{"name": f, "calls": 1200, "own": 0.25, "seconds": 1.5} for f in functions]
        told = {"phases": [{**rows[0], "name": "gradient"}], "functions": rows}
        (tmp_path / name).mkdir()
        (tmp_path / name / "run.json").write_text(json.dumps({"strategy": {"profile": told}}))
    lines = flights_tables.profile(tmp_path).splitlines()
    cells = "1,200 | 0.250 s | 1.500 s"
    assert lines[2:] == [
        f"| *gradient* | {cells} | {cells} |",
        f"| `clip` | {cells} | {cells} |",
        f"| `draw` | {cells} | – | – | – |",
        f"| `wait` | – | – | – | {cells} |",
    ]


def test_times_stand_against_rows(tmp_path: Path) -> None:
    runs = []
    for limit, seconds in ((1000, 2.0), (8000, 12.0)):
        for repeat in (0, 1):
            found = records.record("sync", 2, repeat=repeat, limit=limit)
            found["result"]["seconds"] = found["seconds"]["training"] = seconds + repeat
            runs.append(found)
    lines = flights_tables.growth(records.sweep(tmp_path / "g", runs)).splitlines()
    assert lines[0] == "| seconds | 1,000 rows | 8,000 rows | a row's time, last column to first |"
    assert lines[2] == "| sync, 2 workers | 2.50 (2.00 to 3.00) | 12.50 (12.00 to 13.00) | 0.62 |"


def test_the_page_on_spark_is_that_of_the_committed_records() -> None:
    text = (results.DOCS / "spark.md").read_text()
    assert flights_tables.write(results.write(text)) == text


@pytest.mark.parametrize("page", results.PAGES)
def test_every_page_is_what_its_records_give(page: str) -> None:
    """After a change of a record or of a table: `make results`."""
    text = (results.DOCS / page).read_text()
    assert "<!-- end -->" in text
    assert results.write_defaults(results.write(text)) == text


def test_the_study_of_defaults_compares_each_loss_with_the_best_of_its_task(tmp_path: Path) -> None:
    losses = {
        ("digits", 0.02): (0.1, 0.3), ("digits", 0.05): (0.2, 0.4),
        ("table", 0.02): (2.0, 2.0), ("table", 0.05): (1.0, 1.0),
        ("text", 0.02): (1.0, 1.0), ("text", 0.05): (1.0, None),
    }  # fmt: skip
    runs = [
        {"task": task, "lr": lr, "batch_size": 64, "seed": seed, "loss": loss}
        for (task, lr), found in losses.items()
        for seed, loss in enumerate(found)
    ]
    division = [
        {"strategy": given["strategy"], "workers": 8, "lr_scaling": scaling, "loss": loss}
        for given in default_tables.INDEPENDENT.values()
        for scaling, loss in (("inverse", 0.25), ("inverse", 0.75), ("none", 1.0), ("none", None))
    ]
    kept = tmp_path / "large"
    kept.mkdir()
    found = {"records": [{"runs": runs, "division": division}]}
    (kept / "defaults.json").write_text(json.dumps(found))
    marks = "<!-- {} large -->\nold\n<!-- end -->\n"
    page = results.write_defaults(marks.format("settings") + marks.format("division"), tmp_path)
    lines = page.splitlines()
    assert lines[1:5] == [
        "| batch | learning rate | digits | table | text | worst | mean |",
        "|---|---|---|---|---|---|---|",
        "| 64 | 0.02 | 1.00 | 2.00 | 1.00 | 2.00 | 1.33 |",
        "| 64 | 0.05 | 1.50 | 1.00 | diverged | diverged | diverged |",
    ]
    assert (
        "| hogwild | 8 | 0.500 (0.250 to 0.750) | 1.000 (1.000 to 1.000), 1 of 2 diverged |"
        in lines
    )
    absent = marks.format("division")
    assert results.write_defaults(absent, tmp_path / "none") == absent, "not measured: stays"


def test_the_pages_of_the_algorithms_say_what_the_report_says() -> None:
    marked = set()
    for path in sorted(explained.FOLDER.glob("*.md")):
        text = path.read_text()
        assert explained.write(text) == text, f"{path.name}: run `make results`"
        marked |= {mark[1] for mark in explained.MARK.findall(text)}
    assert marked == {"sync", "averaging", "hogwild", "server", "gossip", "pipeline", "tensor"}


def test_a_text_that_differs_from_the_report_s_is_replaced() -> None:
    page = "a\n<!-- explained server how,benefits -->\noutdated\n<!-- end -->\nb\n"
    made = explained.write(page)
    assert "outdated" not in made
    assert "M masters (parameter servers) hold the parameters" in made
    assert "\n\n**Benefits.** No worker waits" in made
    assert made.endswith("<!-- end -->\nb\n")


def test_the_partitioning_page_states_one_figure_for_one_loss() -> None:
    page = (results.DOCS / "partitioning.md").read_text(encoding="utf-8")
    for told, ranked in (
        (r"averaging with 4 workers loses", r"averaging: ([\d.]+) \(by-label, 4 workers\)"),
        (r"The largest loss is", r"sync: ([\d.]+) \(random-sampling:replace, 2 workers\)"),
    ):
        stated = re.search(told + r" ([\d.]+) percentage points", page)
        listed = re.search(r"\*\*Robustness.*" + ranked, page, re.DOTALL)
        assert stated
        assert listed
        assert stated[1] == listed[1]
