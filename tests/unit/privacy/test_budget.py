"""The budget of a data set: never passed, whatever races, is killed, renamed or edited."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from manyhands.data import store
from manyhands.errors import ConfigError
from manyhands.privacy import budget as budgets
from manyhands.privacy.accountant import Event, write_bound
from manyhands.privacy.budget import Budget
from manyhands.privacy.budget_filter import choose_orders, spent
from manyhands.privacy.data_fingerprint import fingerprint, key_path, load_key

MARK = "0123abcd-00000000000000000000000000000000"
KEY = bytes(range(32))
RUN = Event(100, 0.05, 1.5)  # two fit into the budget, three do not
DELTA = 1e-5

# In a process of its own: waits for a line, then reserves one run.
RESERVE = """
import sys
from manyhands.errors import ConfigError
from manyhands.privacy.accountant import Event, write_bound
from manyhands.privacy.budget import Budget
account = Budget.find(sys.argv[1], bytes(range(32)))
print("ready", flush=True)
sys.stdin.readline()
try:
    account.reserve({sys.argv[2]: ("", {sys.argv[2]: Event(100, 0.05, 1.5)})})
    print("reserved", flush=True)
except ConfigError as error:
    print("refused", error, flush=True)
sys.stdin.readline()
"""


def cost(runs: int) -> float:
    return spent([RUN] * runs, DELTA, "adaptive", choose_orders(EPSILON, DELTA))


EPSILON = 3.0


@pytest.fixture(autouse=True)
def _own_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))


@pytest.fixture
def account(tmp_path: Path) -> Budget:
    made = Budget.create(MARK, KEY, epsilon=EPSILON, delta=DELTA, ledger=tmp_path / "ledgers")
    assert cost(2) < EPSILON < cost(3)
    return made


def reserve(account: Budget, *runs: str, **more: Event) -> None:
    account.reserve({run: (f"/runs/{run}", {run: RUN, **more}) for run in runs})


def again() -> Budget:
    found = Budget.find(MARK, KEY)
    assert found
    return found


def test_what_would_pass_it_is_refused_with_what_is_spent_and_left(account: Budget) -> None:
    reserve(account, "one")
    reserve(account, "two")
    left = write_bound(EPSILON - cost(2), up=False)
    spent, whole = write_bound(cost(2)), write_bound(cost(3))
    said = f"{spent} is spent and {left} is left.*would cost {whole}"
    with pytest.raises(ConfigError, match=said):
        reserve(again(), "three")
    assert set(again().read().entries) == {"one", "two"}
    assert again().read().cost() == pytest.approx(cost(2), rel=1e-12)


def test_the_noise_that_it_names_fits_and_hardly_less_does(account: Budget) -> None:
    reserve(account, "one", "two")
    with pytest.raises(ConfigError) as refused:
        reserve(account, "three")
    (sigma,) = map(float, re.findall(r"noise_multiplier ([\d.]+) would fit", str(refused.value)))
    less = Event(RUN.steps, RUN.rate, 0.99 * sigma)
    with pytest.raises(ConfigError):
        account.reserve({"less": ("", {"less": less})})
    account.reserve({"fits": ("", {"fits": Event(RUN.steps, RUN.rate, sigma)})})


def test_runs_that_are_reserved_together_are_all_reserved_or_none(account: Budget) -> None:
    with pytest.raises(ConfigError, match="these 3 runs"):
        reserve(account, "one", "two", "three")
    assert not account.read().entries


def test_initial_weights_and_a_resumed_run_count_once(account: Budget) -> None:
    reserve(account, "one")
    reserve(account, "two", one=RUN)  # from the weights of the first
    reserve(account, "two", one=RUN)  # resumed
    assert account.read().cost() == pytest.approx(cost(2), rel=1e-12)
    with pytest.raises(ConfigError):
        reserve(account, "three", one=RUN)


def test_weights_of_a_run_before_the_budget_count(account: Budget) -> None:
    reserve(account, "one", earlier=RUN)
    assert account.read().cost() == pytest.approx(cost(2), rel=1e-12)


def test_earlier_runs_may_be_counted_and_must_fit() -> None:
    three = {f"{i}": ("", {f"{i}": RUN}) for i in range(3)}
    with pytest.raises(ConfigError, match=f"counted runs cost {write_bound(cost(3))}"):
        Budget.create(MARK, KEY, epsilon=EPSILON, delta=DELTA, counted=three)
    assert Budget.find(MARK, KEY) is None
    two = {name: three[name] for name in "01"}
    made = Budget.create(MARK, KEY, epsilon=EPSILON, delta=DELTA, counted=two)
    with pytest.raises(ConfigError, match="would cost"):
        reserve(made, "new")


def test_a_budget_is_set_once(account: Budget) -> None:
    with pytest.raises(ConfigError, match="raising it later would break its promise"):
        Budget.create(MARK, KEY, epsilon=10.0, delta=DELTA)
    assert account.read().epsilon == EPSILON


def test_what_never_started_is_given_back(account: Budget) -> None:
    reserve(account, "one", "two")
    account.release("two")
    account.release("two")
    reserve(account, "three")
    assert set(account.read().entries) == {"one", "three"}


def test_a_planned_run_starts_once(account: Budget) -> None:
    reserve(account, "one")
    assert account.begin("/runs/one", RUN, {}) == "one"
    assert again().begin("/runs/one", RUN, {}) != "one"
    assert account.read().cost() == pytest.approx(cost(2), rel=1e-12)
    small = Event(1, 0.001, 50.0)
    account.reserve({"small": ("/runs/small", {"small": small})})
    assert account.begin("/runs/small", Event(1, 0.001, 49.0), {}) != "small"
    assert account.begin("/runs/other", small, {}) != "small"


def test_a_reservation_is_taken_only_with_the_same_initial_weights(account: Budget) -> None:
    """The attack: reserve a folder, then train there from weights of a run before the budget."""
    reserve(account, "planned")
    with pytest.raises(ConfigError, match="would cost"):
        account.begin("/runs/planned", RUN, {"earlier": RUN})
    account.release("planned")
    reserve(account, "planned", earlier=RUN)
    assert account.begin("/runs/planned", RUN, {"earlier": RUN}) == "planned"


def test_what_has_started_is_never_given_back(account: Budget, tmp_path: Path) -> None:
    """The attack: remove or rename the run's folder, then let the run fail."""
    run = account.begin("", RUN, {})
    account.start(run, str(tmp_path / "gone"))
    again().release(run)
    assert set(again().read().entries) == {run}
    refused = account.begin("/runs/x", RUN, {})
    account.release(refused)
    assert set(again().read().entries) == {run}


def test_a_run_that_has_ended_is_not_begun_again_for_free(account: Budget) -> None:
    first = account.begin("/runs/one", RUN, {})
    account.start(first, "/runs/one")
    assert account.begin("/runs/one", RUN, {}) != first
    assert account.read().cost() == pytest.approx(cost(2), rel=1e-12)


def test_a_copy_that_goes_on_elsewhere_is_charged(account: Budget) -> None:
    run = account.begin("", RUN, {})
    account.start(run, "/runs/one")
    account.resume(run, "/runs/one", RUN, {})
    account.resume(run, "/runs/../runs/one", RUN, {})
    assert account.read().cost() == pytest.approx(cost(1), rel=1e-12)
    for _ in range(2):  # a copy pays once
        account.resume(run, "/runs/copy", RUN, {})
        assert account.read().cost() == pytest.approx(cost(2), rel=1e-12)
    with pytest.raises(ConfigError, match="would cost"):
        account.resume(run, "/runs/another", RUN, {})


def test_a_run_before_the_budget_is_charged_when_it_goes_on(account: Budget) -> None:
    account.resume("old", "/runs/old", RUN, {"earlier": RUN})
    assert account.read().cost() == pytest.approx(cost(2), rel=1e-12)
    account.release("old")
    assert set(account.read().entries) == {"old"}


def test_counted_runs_are_on_the_disk_before_the_budget_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A crash while the budget is set leaves none that has forgotten them."""
    counted = {"old": ("/runs/old", {"old": RUN})}

    def crash(*_: Any) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as crashing:
        crashing.setattr(Budget, "reserve", crash)
        made = Budget.create(MARK, KEY, epsilon=EPSILON, delta=DELTA, counted=counted)
    assert again().read().cost() == pytest.approx(cost(1), rel=1e-12)
    assert made.begin("/runs/old", RUN, {}) != "old"  # it has started already
    other = MARK[:-1] + "1"
    with monkeypatch.context() as crashing:
        crashing.setattr(Budget, "_set_anchor", crash)
        with pytest.raises(KeyboardInterrupt):
            Budget.create(other, KEY, epsilon=EPSILON, delta=DELTA, counted=counted)
    with pytest.raises(ConfigError, match="exists without its anchor"):
        Budget.find(other, KEY)


@pytest.mark.parametrize("elsewhere", [True, False])
def test_removing_the_anchor_alone_does_not_lift_the_budget(
    tmp_path: Path, elsewhere: bool
) -> None:
    ledger = tmp_path / "ledgers" if elsewhere else None
    made = Budget.create(MARK, KEY, epsilon=EPSILON, delta=DELTA, ledger=ledger)
    path = made.read().path
    made.anchor.unlink()
    assert budgets.any_exists()
    with pytest.raises(ConfigError, match=r"without its anchor .* restore the anchor, or move"):
        Budget.find(MARK, KEY)
    path.unlink()
    assert Budget.find(MARK, KEY) is None


def test_shared_initial_weights_of_counted_runs_count_once() -> None:
    counted = {"a": ("/a", {"a": RUN}), "b": ("/b", {"a": RUN, "b": RUN})}
    made = Budget.create(MARK, KEY, epsilon=EPSILON, delta=DELTA, counted=counted)
    assert made.read().cost() == pytest.approx(cost(2), rel=1e-12)


def test_the_noise_that_it_names_leaves_room_for_initial_weights(account: Budget) -> None:
    reserve(account, "one")
    louder = Event(RUN.steps, RUN.rate, 1.0)
    with pytest.raises(ConfigError) as refused:
        account.begin("", louder, {"earlier": RUN})
    (sigma,) = map(float, re.findall(r"noise_multiplier ([\d.]+) would fit", str(refused.value)))
    account.begin("", Event(RUN.steps, RUN.rate, sigma), {"earlier": RUN})


def start(run: str) -> subprocess.Popen[str]:
    pipes: dict[str, Any] = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    return subprocess.Popen([sys.executable, "-c", RESERVE, MARK, run], **pipes)


def tell(process: subprocess.Popen[str], line: str = "go") -> None:
    assert process.stdin
    process.stdin.write(f"{line}\n")
    process.stdin.flush()


def hear(process: subprocess.Popen[str]) -> str:
    assert process.stdout
    return process.stdout.readline()


def test_of_two_processes_one_takes_the_rest(account: Budget) -> None:
    reserve(account, "one")
    racing = [start(f"racer-{i}") for i in range(3)]
    assert [hear(each) for each in racing] == ["ready\n"] * 3
    for each in racing:
        tell(each)
    said = sorted(hear(each).split()[0] for each in racing)
    for each in racing:
        each.communicate("end\n")
    assert said == ["refused", "refused", "reserved"]
    assert len(account.read().entries) == 2


def test_a_process_killed_after_its_reservation_has_paid_and_blocks_nobody(account: Budget) -> None:
    killed = start("killed")
    assert hear(killed) == "ready\n"
    tell(killed)
    assert hear(killed) == "reserved\n"
    os.kill(killed.pid, signal.SIGKILL)
    killed.communicate()
    reserve(account, "one")
    with pytest.raises(ConfigError, match="is left"):
        reserve(account, "two")


def test_a_crash_between_ledger_and_anchor_counts(
    account: Budget, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as crashing:

        def crash(*_: Any) -> None:
            raise KeyboardInterrupt

        crashing.setattr(Budget, "_set_anchor", crash)
        with pytest.raises(KeyboardInterrupt):
            reserve(account, "one")
    assert set(again().read().entries) == {"one"}
    reserve(account, "two")
    assert set(again().read().entries) == {"one", "two"}


def test_a_torn_last_line_is_a_run_that_did_not_start(account: Budget) -> None:
    reserve(account, "one")
    path = account.read().path
    with path.open("ab") as file:
        file.write(b'{"run": "torn", "events": {"to')
    reserve(account, "two")
    assert set(again().read().entries) == {"one", "two"}


def lines(path: Path) -> list[str]:
    return path.read_text().splitlines(keepends=True)


def test_every_edit_of_the_ledger_is_refused(account: Budget) -> None:
    reserve(account, "one")
    reserve(account, "two")
    account.begin("/runs/one", RUN, {})
    path = account.read().path
    whole = lines(path)
    changes = {"removed": [whole[:i] + whole[i + 1 :] for i in range(len(whole))]}
    changes["cut"] = [whole[:i] for i in range(len(whole))]
    changes["exchanged"] = [[whole[0], whole[2], whole[1], whole[3]]]
    changes["edited"] = [
        [*whole[:i], re.sub(r"3\.0|0\.05|one", "7", line, count=1), *whole[i + 1 :]]
        for i, line in enumerate(whole)
        if re.search(r"3\.0|0\.05|one", line)
    ]
    assert len(changes["edited"]) == len(whole)
    for versions in changes.values():
        for version in versions:
            path.write_text("".join(version))
            with pytest.raises(ConfigError, match="cannot be trusted"):
                again().read()
            with pytest.raises(ConfigError, match="cannot be trusted"):
                reserve(again(), "more")
    path.write_text("".join(whole))
    assert again().read().cost() == pytest.approx(cost(2), rel=1e-12)


def test_a_line_sealed_without_the_key_is_refused(account: Budget) -> None:
    """The attack: release a run by a line whose hash is computed as the ledger's own, unkeyed."""
    reserve(account, "one")
    path = account.read().path
    forger = Budget(MARK, bytes(32))
    line, _ = forger._seal({"released": "one"}, json.loads(lines(path)[-1])["mac"])
    with path.open("ab") as file:
        file.write(line)
    with pytest.raises(ConfigError, match="line 3 was edited"):
        again().read()


def test_a_ledger_that_is_missing_or_older_is_refused(account: Budget) -> None:
    reserve(account, "one")
    path = account.read().path
    older = path.read_bytes()
    reserve(account, "two")
    path.write_bytes(older)
    with pytest.raises(ConfigError, match="it has 2 lines; expected 3"):
        again().read()
    path.unlink()
    with pytest.raises(ConfigError, match="it is missing"):
        reserve(again(), "three")
    with pytest.raises(ConfigError, match="it is missing"):
        Budget.create(MARK, KEY, epsilon=10.0, delta=DELTA)


def test_an_anchor_that_is_missing_or_damaged_is_refused(account: Budget) -> None:
    account.anchor.write_text("{")
    with pytest.raises(ConfigError, match="it is damaged"):
        reserve(again(), "one")
    account.anchor.unlink()
    with pytest.raises(ConfigError, match="exists without its anchor"):
        Budget.create(
            MARK, KEY, epsilon=10.0, delta=DELTA, ledger=account.anchor.parents[3] / "ledgers"
        )


def test_without_the_key_no_run_may_start(account: Budget) -> None:
    assert Budget.find(MARK.replace("0", "1", 20).replace("1123", "0123"), KEY) is None
    with pytest.raises(ConfigError, match="of a key 0123abcd, which is no longer in"):
        Budget.find("fedc4321-00000000000000000000000000000000", KEY)


def test_without_key_and_anchor_what_is_left_is_seen(account: Budget) -> None:
    """The attack: lose both, and keep the ledger, here or where the lock says."""
    Budget.create(MARK.replace("-0", "-1"), KEY, epsilon=EPSILON, delta=DELTA)
    for anchor in budgets.folder().glob("*.json"):
        anchor.unlink()
    left = sorted(budgets.folder().glob("*"))
    assert [path.suffix for path in left] == [".lock", ".lock", ".jsonl"]
    for kept in left[1:]:
        for path in left:
            path.unlink(missing_ok=True)
        kept.touch()
        with pytest.raises(ConfigError, match="of a key 0123abcd, which is no longer in"):
            Budget.find("fedc4321-00000000000000000000000000000000", KEY)


def test_name_order_and_test_set_lead_to_the_same_budget(tmp_path: Path) -> None:
    """The attack: rename the file, or shuffle its records, to begin with nothing spent."""
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(60, 4)).astype(np.float32), rng.integers(0, 3, 60)
    shuffled = rng.permutation(60)
    np.savez(tmp_path / "data.npz", x=x, y=y)
    np.savez(tmp_path / "innocent.npz", x=x[shuffled], y=y[shuffled], x_test=x[:5], y_test=y[:5])
    other = x.copy()
    other[0, 0] += 1
    np.savez(tmp_path / "other.npz", x=other, y=y)
    key = load_key()

    def mark(name: str) -> str:
        return fingerprint(store(str(tmp_path / f"{name}.npz"), tmp_path / f"as-{name}"), key)

    Budget.create(mark("data"), key, epsilon=EPSILON, delta=1e-3)
    assert Budget.find(mark("innocent"), key) is not None
    assert Budget.find(mark("other"), key) is None


def test_a_user_without_budgets_pays_for_nothing() -> None:
    assert not budgets.any_exists()
    assert not key_path().exists()
