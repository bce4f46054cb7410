"""An option with many values: what each costs, for which strategy, in one picture and few words."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import records
from committed_records import packed
from report_cases import EVEN, SKEWED, partitioned, partitions

from manyhands.report import build
from manyhands.report.analysis import option_values
from manyhands.report.analysis.option_values import Comparison
from manyhands.report.analysis.summarise import summarise
from manyhands.report.analysis.summary import Summary
from manyhands.report.figures import option_cost
from manyhands.report.figures.all_figures import charts
from manyhands.report.output.option_table import pivot
from manyhands.report.records.load import read
from manyhands.report.wording.sentences import Sentence


def summary(folder: Path) -> Summary:
    return summarise(read([folder]))


def compared(folder: Path) -> Comparison:
    found = option_values.compare(summary(folder))
    assert found is not None
    return found


def told(found: Comparison) -> str:
    return " ".join(option_cost.sentences(found)).replace("\u202f", " ")


def test_five_sentences_say_what_costs_what_and_why(tmp_path: Path) -> None:
    found = compared(partitions(tmp_path))
    assert (found.option, found.reference) == ("partition", "balanced")
    sentences = option_cost.sentences(found)
    assert len(sentences) <= 5
    assert all(isinstance(sentence, Sentence) for sentence in sentences)
    words = told(found)
    assert words.startswith(("Partition by-label costs most", "Partition dirichlet:0.3 costs most"))
    assert "averaging lets each worker learn alone" in words
    assert "With sync, no partition costs accuracy that 3 repeats can tell from chance." in words
    assert "The reason is that sync sums the gradients of all workers at every step" in words
    assert "differ from balanced by no more than chance may explain with 3 repeats" in words
    assert "random-sampling uses only 70 % of the examples" in words


def test_losses_beyond_chance_are_exactly_those_that_were_made(tmp_path: Path) -> None:
    found = compared(partitions(tmp_path))
    clear = {(c.value, c.strategy, c.row.workers) for c in found.others if c.clear}
    assert clear == {(kind, "averaging", p) for kind in SKEWED for p in (2, 4)}


def test_a_loss_of_every_repeat_that_the_test_does_not_tell_is_said_to_be_one(
    tmp_path: Path,
) -> None:
    folder = partitions(tmp_path)
    for path in folder.rglob("run.json"):
        run = json.loads(path.read_text())
        config = run["config"]
        lost = (config["strategy"], config["workers"], config["partition"])
        if lost == ("averaging", 2, "dirichlet:0.3"):
            run["result"]["accuracy"] = (0.2, 0.5, 0.9)[config["seed"]]
            path.write_text(json.dumps(run))
    words = told(compared(folder))
    assert "Large, but not beyond chance by the test as one of 20 comparisons: " in words
    assert "by averaging with 2 workers on dirichlet:0.3 in every repeat (p = " in words


def test_nothing_is_claimed_where_nothing_was_lost(tmp_path: Path) -> None:
    words = told(compared(partitions(tmp_path, lost=0.0)))
    assert words.startswith("No partition costs accuracy that 3 repeats can tell")
    assert "costs most" not in words


def test_a_partition_with_the_same_mix_that_differs_is_named(tmp_path: Path) -> None:
    runs = [
        partitioned("sync", 2, kind, seed, 0.05 if kind == "random-sampling" else 0.0)
        for seed in range(4)
        for kind in (*EVEN, "dirichlet:0.3")
    ]
    words = told(compared(records.sweep(tmp_path / "p", runs)))
    assert "Partition random-sampling costs most: sync with 2 workers loses" in words
    assert "Random-sampling" not in words  # it is not among those that cannot be told apart


def test_single_runs_tell_nothing_of_chance(tmp_path: Path) -> None:
    found = compared(partitions(tmp_path, seeds=1))
    assert not any(cell.clear for cell in found.cells)
    assert "costs most" not in told(found)
    assert "ran once" in option_cost.comment(found)[0]


def test_the_test_is_stated_with_the_number_of_comparisons(tmp_path: Path) -> None:
    words = " ".join(option_cost.comment(compared(partitions(tmp_path))))
    assert "each tested as one of 20 comparisons" in words  # 5 values, 2 strategies, 2 P
    assert words.count("t-test over the repeats") == 1
    assert "One worker alone (sequential) reaches 9" in words


def test_skew_is_measured_from_the_records(tmp_path: Path) -> None:
    found = compared(partitions(tmp_path))
    table = pivot(found)
    skew = {line[0].text: line[table.titles.index("skew")].text for line in table.lines}
    assert skew["balanced"] == "0.00"
    assert float(skew["by-label"]) > 0.6


def test_the_table_has_a_line_for_each_value_and_the_reference_first(tmp_path: Path) -> None:
    table = pivot(compared(partitions(tmp_path)))
    assert table.titles[:3] == ("partition", "averaging, 2 workers", "averaging, 4 workers")
    assert table.lines[0][0].text == "balanced"
    assert {line[0].text for line in table.lines} == {*EVEN, *SKEWED}
    assert {line[0].text for line in table.lines[-2:]} == set(SKEWED)  # the costliest last


def test_other_figures_show_the_reference_alone(tmp_path: Path) -> None:
    found = charts(summary(partitions(tmp_path)))
    assert found[0].id == "categories"
    assert len({chart.id for chart in found}) == len(found)
    lines = [label for chart in found if chart.id == "time" for label in drawn_labels(chart)]
    assert sorted(lines) == ["averaging", "sequential", "sync"]


def drawn_labels(chart: Any) -> list[str]:
    from matplotlib.figure import Figure

    axes = Figure().add_axes((0, 0, 1, 1))
    chart.draw(axes)
    return list(axes.get_legend_handles_labels()[1])


def test_the_page_folds_the_long_table_and_leads_with_the_picture(tmp_path: Path) -> None:
    page = build([partitions(tmp_path)], tmp_path / "out").read_text()
    assert page.index('id="categories"') < page.index('id="results"')
    assert "All 25 configurations, with time and speed-up" in page
    assert page.index("All 25 configurations") < page.index("averaging · random-partition")
    assert "Against the number of workers, with partition balanced" in page


def test_any_option_of_words_with_many_values_is_compared(tmp_path: Path) -> None:
    shapes = ("ring", "exponential", "complete", "pairs", "star")
    runs = []
    for seed in range(3):
        for shape in shapes:
            one = records.record("gossip", 4, repeat=seed, topology=shape)
            one["result"]["accuracy"] = 0.9 + 0.001 * seed - 0.2 * (shape == "star")
            runs.append(one)
    found = compared(records.sweep(tmp_path / "g", runs, axes={"topology": list(shapes)}))
    assert (found.option, found.reference) == ("topology", "ring")
    words = told(found)
    assert "Topology star costs most: gossip with 4 workers loses 20.00 percentage points" in words
    assert "The reason" not in words  # none is known for this option


def test_a_metric_that_should_be_small_is_compared_the_other_way(tmp_path: Path) -> None:
    runs = []
    for seed in range(3):
        for i, kind in enumerate((*EVEN, *SKEWED)):
            one = records.record("sync", 2, repeat=seed, partition=kind)
            one["metrics"] = [{"name": "rmse", "higher": False}]
            one["result"] |= {"accuracy": None, "metrics": {"rmse": 0.5 + 0.001 * seed + 0.1 * i}}
            runs.append(one)
    sweep = records.sweep(tmp_path / "m", runs, axes={"partition": [*EVEN, *SKEWED]})
    words = told(compared(sweep))
    assert "Partition by-label costs most: sync with 2 workers loses 0.5 against balanced" in words
    assert "1.001 instead of 0.501" in words


@pytest.mark.parametrize("count", [2, 4])
def test_few_values_stay_curves(tmp_path: Path, count: int) -> None:
    runs = [partitioned("sync", p, kind, 0) for p in (2, 4) for kind in EVEN[:count]]
    assert option_values.compare(summary(records.sweep(tmp_path / "f", runs))) is None


def test_the_committed_partitions_are_told_in_four_sentences() -> None:
    found = option_values.compare(summarise(read([packed("partitioning")])))
    assert found is not None
    assert len(option_cost.sentences(found)) == 4
    assert "averaging with 4 workers loses" in told(found)
