"""`manyhands partition`: the table, the picture and the record say what a run would see."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from manyhands.cli.app import main
from manyhands.cli.partition import (
    describe_coverage,
    divide,
    divide_rows,
    draw_picture,
    make_table,
)
from manyhands.data import Data, Plan, Stored, store
from manyhands.data.fixed_shards import skew


def test_it_says_what_the_plan_of_a_run_says(tmp_path: Path) -> None:
    found = divide(epoch=2, data="blobs", workers=3, partition="dirichlet:0.5", seed=4)
    labels = Stored.open(store("blobs", tmp_path / "d")).train.labels
    plan = Plan("dirichlet:0.5", examples=2000, batch_size=128, rank=0, size=3, seed=4,
                labels=labels)  # fmt: skip
    workers = [{k: v for k, v in w.items() if k != "skew"} for w in found["workers"]]
    assert {**found, **plan.describe(2), "workers": workers} == {**found, "workers": workers}
    assert workers == plan.describe(2)["workers"]
    assert found["train"] == sum(w["examples"] for w in found["workers"]) == 2000


def test_shares_and_strategies_decide_as_in_a_run() -> None:
    cut = divide(data="blobs", workers=3, partition="random-partition", shares=(0.7, 0.2, 0.1))
    assert [w["examples"] for w in cut["workers"]] == [1400, 400, 200]
    assert divide(data="blobs", strategy="averaging")["kind"] == "random-partition"
    dealt = divide(
        data="blobs", strategy="hogwild", workers=3, batch_size=900, partition="balanced"
    )
    assert [w["examples"] for w in dealt["workers"]] == [900, 900, 200]  # whole batches, in turn


def test_a_table_has_a_row_for_each_worker_and_a_strip_for_its_classes() -> None:
    found = divide(data="blobs", workers=2, partition="by-label")
    shown = make_table(found)
    strips = list(shown.columns[-1].cells)
    assert shown.row_count == 2
    assert [len(strip) for strip in strips] == [4, 4]
    assert strips[0][-1] == " " != strips[1][-1]  # worker 0 has none of the last class
    assert "2,000 of 2,000 examples are seen (100.0%), 0 more than once" in describe_coverage(found)


def test_a_picture_shows_every_count() -> None:
    found = divide(data="blobs", workers=2, partition="by-label")
    words = {text.get_text() for text in draw_picture(found).axes[0].texts}
    counts = {f"{count:,}" for w in found["workers"] for count in w["classes"]}
    assert words == counts


def test_a_class_of_which_there_is_no_example_counts_none() -> None:
    found = divide(data="mnist", workers=2, limit=3)
    assert found["classes"] == 10
    assert [len(w["classes"]) for w in found["workers"]] == [10, 10]


def test_numbers_as_targets_have_no_classes(tmp_path: Path) -> None:
    x = np.arange(20, dtype=np.float32)[:, None]
    np.savez(tmp_path / "line.npz", x=x, y=x[:, 0])
    found = divide(data=str(tmp_path / "line.npz"), workers=2)
    assert [w["skew"] for w in found["workers"]] == [None, None]
    assert make_table(found).row_count == 2
    assert len(draw_picture(found).axes[0].texts) == 2


def test_json_and_output(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    line = ["partition", "--data", "blobs", "--workers", "4", "--output", str(tmp_path / "p")]
    with pytest.raises(SystemExit) as ended:
        main([*line, "--json"])
    assert ended.value.code == 0
    found = json.loads(capsys.readouterr().out)
    assert found == json.loads((tmp_path / "p" / "partition.json").read_text())
    assert (tmp_path / "p" / "partition.png").read_bytes().startswith(b"\x89PNG")
    assert "<svg" in (tmp_path / "p" / "partition.svg").read_text()
    with pytest.raises(SystemExit):
        main(line)
    shown = capsys.readouterr().out
    assert "2,000 of 2,000 examples are seen" in shown
    assert f"each worker's example indices: {tmp_path / 'p' / 'partition.npz'}" in shown


@pytest.mark.parametrize("limit", [(), ("--limit", "500")])
def test_output_holds_the_examples_of_every_worker(tmp_path: Path, limit: tuple[str, ...]) -> None:
    line = ["partition", "--data", "blobs", "--workers", "3", "--partition", "by-label", *limit]
    with pytest.raises(SystemExit) as ended:
        main([*line, "--output", str(tmp_path / "p")])
    assert ended.value.code == 0
    found = json.loads((tmp_path / "p" / "partition.json").read_text())
    labels = Stored.open(store("blobs", tmp_path / "d")).train.labels
    assert labels is not None
    with np.load(tmp_path / "p" / "partition.npz") as rows:
        assert list(rows) == ["worker-0", "worker-1", "worker-2"]
        each = [rows[f"worker-{w['rank']}"] for w in found["workers"]]
    counts = [np.bincount(labels[mine], minlength=found["classes"]).tolist() for mine in each]
    assert counts == [w["classes"] for w in found["workers"]]
    assert len(np.unique(np.concatenate(each))) == found["seen"] == found["train"]


def test_the_indices_are_those_of_a_run_in_their_order(tmp_path: Path) -> None:
    _, rows = divide_rows(epoch=2, data="blobs", workers=2, seed=4)
    for rank in range(2):
        plan = Plan("balanced", examples=2000, batch_size=128, rank=rank, size=2, seed=4)
        used = np.concatenate([share.indices for share in plan.epoch(2)])
        assert rows[f"worker-{rank}"].tolist() == used.tolist()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--partition", "blanced"], "Did you mean 'balanced'"),
        (["--wrokers", "4"], "Did you mean --workers"),
        (["--epochs", "4"], "Did you mean --epoch"),
        (["--partition", "dirichlet:nan"], "finite ALPHA above 0"),
        (["--workers", "3000", "--batch-size", "9000"], "2000 workers at most"),
        (["--workers", "9", "--batch-size", "8"], "at least one example per worker"),
        (["--shares", "0.5,0.4"], "sum to 0.9"),
        (["--epoch", "0"], "epoch is 0"),
        (["--output", "/proc/nowhere"], "cannot be written"),
    ],
)
def test_what_cannot_work_is_refused(
    arguments: list[str], message: str, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    place = [] if "--output" in arguments else ["--output", str(tmp_path / "p")]
    with pytest.raises(SystemExit) as ended:
        main(["partition", "--data", "blobs", *arguments, *place])
    assert ended.value.code == 2
    assert message in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []


def test_skew_is_none_for_the_same_mix_and_one_for_classes_apart() -> None:
    assert skew([[5, 10], [10, 20]]) == [0.0, 0.0]
    assert skew([[10, 0, 0], [0, 10, 0], [0, 0, 10]]) == [pytest.approx(2 / 3)] * 3
    assert skew([[1, 1], [0, 0]]) == [0.0, 0.5]  # a worker without examples has no mix


def people(order: np.ndarray) -> Data:
    x = order[:, None].astype(np.float32)
    return Data((x, order % 3), ids=[f"person-{i}" for i in order], name="people")


def test_records_keep_their_worker_by_id_wherever_they_stand(tmp_path: Path) -> None:
    def owners(name: str, order: np.ndarray, limit: int | None = None) -> dict[int, int]:
        data = Stored.open(people(order).store(tmp_path / name), train_limit=limit)
        ids, found = data.ids, {}
        for rank in range(3):
            plan = Plan("by-id", examples=len(data.train), batch_size=30, rank=rank, size=3,
                        seed=1, ids=ids)  # fmt: skip
            for share in plan.epoch(1):
                found |= {int(data.train.x[i, 0]): rank for i in share.indices}
        return found

    before = owners("a", np.arange(100))
    assert set(before.values()) == {0, 1, 2}
    more = owners("b", np.arange(150)[::-1].copy())
    assert {k: more[k] for k in before} == before
    part = owners("c", np.arange(100), limit=40)
    assert len(part) == 40
    assert part.items() <= before.items()


def test_a_limit_leaves_a_record_its_row_as_its_id(tmp_path: Path) -> None:
    rows = np.arange(100)
    folder = Data((rows[:, None].astype(np.float32), rows % 2)).store(tmp_path / "d")
    assert Stored.open(folder).ids is None
    part = Stored.open(folder, train_limit=30)
    assert part.ids is not None
    assert part.ids.tolist() == part.train.x[:, 0].int().tolist()


def test_ids_are_stored_checked_and_part_of_the_hash(tmp_path: Path) -> None:
    x, y = np.ones((6, 2), np.float32), np.arange(6) % 2
    np.savez(tmp_path / "a.npz", x=x, y=y, ids=np.array(list("abcdef")))
    named = Stored.open(store(str(tmp_path / "a.npz"), tmp_path / "a"))
    plain = Stored.open(Data((x, y)).store(tmp_path / "b"))
    assert named.ids is not None
    assert named.ids.tolist() == list("abcdef")
    assert named.sha256 != plain.sha256
    for wrong in (["a"] * 5, np.ones(6), [["a"]] * 6):
        with pytest.raises(Exception, match="a whole number or a text"):
            Data((x, y), ids=wrong)
    (tmp_path / "a" / "train_ids.npy").unlink()
    with pytest.raises(Exception, match="train_ids"):
        Stored.open(tmp_path / "a")


@pytest.mark.parametrize("classes", [None, 4])
def test_a_run_uses_the_ids_it_was_given(tmp_path: Path, classes: int | None) -> None:
    """The command divides by ids as `assemble` does: through the same function."""
    x = np.arange(40, dtype=np.float32)[:, None]
    y = x[:, 0] if classes is None else np.arange(40) % classes
    np.savez(tmp_path / "one.npz", x=x, y=y, ids=np.zeros(40, np.int64))
    found = divide(data=str(tmp_path / "one.npz"), workers=4, partition="by-id")
    assert sorted(w["examples"] for w in found["workers"]) == [0, 0, 0, 40]
