"""`manyhands privacy`: which noise for which promise, and the reverse, without training."""

from __future__ import annotations

import json
import re
import shlex
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import manyhands as mh
from manyhands.cli.app import main
from manyhands.cli.privacy import compute_budget, format_budget, write
from manyhands.config.options import configure
from manyhands.errors import ConfigError
from manyhands.experiments.sweep.experiment_definition import read
from manyhands.experiments.sweep.plan import make_schedule
from manyhands.privacy.accountant import Event, compose
from manyhands.privacy.statement import LABELS
from manyhands.privacy.steps_rate_noise import solve
from manyhands.privacy.tradeoff import misses

PAGE = Path(__file__).parents[3] / "docs" / "privacy.md"

RECIPE: dict[str, Any] = {"examples": 60_000, "batch_size": 512, "epochs": 40}
FLAGS = ["privacy", "--examples", "60000", "--batch-size", "512", "--epochs", "40"]


def call(*flags: str) -> None:
    with pytest.raises(SystemExit) as ended:
        main([*FLAGS, *flags])
    assert not ended.value.code


def test_which_noise(capsys: pytest.CaptureFixture[str]) -> None:
    call("--epsilon", "3", "--delta", "1e-5")
    said = capsys.readouterr().out
    assert "σ = 1.069" in said
    assert "ε = 2.9955 at δ = 1e-05 by PLD; 3.2753 by RDP" in said
    assert "4,687 steps" in said


def test_the_page_shows_what_the_command_prints(capsys: pytest.CaptureFixture[str]) -> None:
    """The block of docs/privacy.md with the whole statement, line by line."""
    (shown,) = re.findall(r"```console\n\$ manyhands (.*?)\n(.*?)```", PAGE.read_text(), re.DOTALL)
    command, printed = shown
    with pytest.raises(SystemExit):
        main(shlex.split(command))
    assert capsys.readouterr().out == printed
    assert all(f"  {label}: " in printed for label in LABELS.values())


def test_which_promise_as_json(capsys: pytest.CaptureFixture[str]) -> None:
    call("--noise-multiplier", "1.23", "--json")
    found = json.loads(capsys.readouterr().out)
    assert round(found["epsilon_pld"], 3) == 2.363
    assert round(found["epsilon_rdp"], 3) == 2.581
    assert found["curve"][-1][0] == found["steps"] == 4687


def test_the_noise_for_several_runs_together() -> None:
    """The same σ for each run, and ε for all: by RDP, which shares no code, hardly more."""
    found = compute_budget(**RECIPE, epsilon=3.0, runs=8)
    event = Event(4687, 512 / 60_000, found["noise_multiplier"])
    assert 2.99 < found["epsilon_of_runs"] <= 3
    assert found["epsilon_of_runs"] <= compose([event] * 8, 1e-5, "rdp") < 1.15 * 3
    assert found["epsilon_pld"] < found["epsilon_of_runs"]
    given = compute_budget(**RECIPE, noise_multiplier=found["noise_multiplier"], runs=8)
    assert given == found
    assert [each for each in found["tradeoff"] if not 0 < each[1] < 1 - each[0]] == []


@pytest.mark.parametrize("sigma", [1.5, 2.0, 4.0])
def test_the_curve_that_is_shown_is_still_a_bound(sigma: float) -> None:
    """In every digit: misses are rounded down, detections up."""
    found = compute_budget(10_000, batch_size=500, epochs=1, noise_multiplier=sigma)
    event = Event(found["steps"], found["rate"], found["noise_multiplier"])
    alphas = [alpha for alpha, _ in found["tradeoff"]]
    exact = dict(zip(alphas, misses([event], alphas), strict=True))
    assert all(exact[a] - 1e-6 <= shown <= exact[a] for a, shown in found["tradeoff"])
    (line,) = (each for each in format_budget(found) if "detection of" in each)
    detected = re.findall(r"([\d.]+)% \(at ([\d.]+)%", line)
    assert len(detected) == 3
    for most, alpha in detected:
        tight = 1 - exact[float(alpha) / 100]
        assert tight <= float(most) / 100 + 1e-12 < tight + 1.1e-4


def test_the_curve_as_a_picture(tmp_path: Path) -> None:
    found = compute_budget(**RECIPE, noise_multiplier=4.0)
    write(found, tmp_path / "new")
    assert json.loads((tmp_path / "new" / "privacy.json").read_text()) == found
    assert (tmp_path / "new" / "privacy-steps.png").read_bytes().startswith(b"\x89PNG")
    assert "<svg" in (tmp_path / "new" / "privacy-steps.svg").read_text()


def test_it_is_the_cost_of_the_strategy_that_would_run() -> None:
    plain = compute_budget(**RECIPE, noise_multiplier=4.0)
    shared = compute_budget(**RECIPE, noise_multiplier=4.0, strategy="sync", workers=4)
    pushed = compute_budget(**RECIPE, noise_multiplier=4.0, strategy="server", workers=4)
    assert shared["epsilon_pld"] == plain["epsilon_pld"]
    assert (pushed["steps"], pushed["rate"]) == (4687 // 4, 4 * plain["rate"])
    assert pushed["epsilon_pld"] > plain["epsilon_pld"]
    assert len({plain["trust"], shared["trust"], pushed["trust"]}) == 3


@pytest.mark.parametrize(
    ("flags", "trusted"),
    [
        ((), "a reader of messages need not"),
        (("--staleness", "0"), "the workers trust the masters"),
    ],
)
def test_whom_a_server_asks_to_trust(
    capsys: pytest.CaptureFixture[str], flags: tuple[str, ...], trusted: str
) -> None:
    call("--noise-multiplier", "4", "--strategy", "server", "--workers", "4", *flags)
    assert f"who is trusted: {trusted}" in capsys.readouterr().out


def test_command_file_and_python_ask_for_the_same_noise(tmp_path: Path) -> None:
    shared = {"batch_size": 512, "epochs": 40, "workers": 4}
    asked = compute_budget(60_000, **shared, epsilon=3.0, strategy="averaging")
    file = tmp_path / "mine.toml"
    file.write_text(
        'strategies = ["averaging"]\n[options]\nprivate = true\nepsilon = 3.0\n'
        "batch_size = 512\nepochs = 40\nworkers = 4\n"
    )
    (run,) = make_schedule(replace(read(file), repeats=1, baseline=False)).runs
    python = {**shared, "strategy": "averaging", "privacy": mh.Privacy(epsilon=3.0)}
    for config in (configure(run.options), configure(python)):
        terms = solve(config, 60_000)
        assert terms.as_dict() == {name: asked[name] for name in terms.as_dict()}
        assert terms.delta == 1e-5


def test_a_delta_that_gives_a_record_away_is_refused() -> None:
    with pytest.raises(ConfigError, match="expected less than 1/n"):
        compute_budget(
            examples=1000, batch_size=100, epochs=1, noise_multiplier=4.0, delta=1e-3
        )  # fmt: skip
    assert compute_budget(1000, batch_size=100, epochs=1, noise_multiplier=4.0)["delta"] == 1e-4


def test_what_cannot_be_answered_is_refused() -> None:
    with pytest.raises(ConfigError, match="neither of epsilon and noise_multiplier"):
        compute_budget(**RECIPE)
    with pytest.raises(ConfigError, match="examples is 0"):
        compute_budget(0, epsilon=1.0)
    with pytest.raises(ConfigError, match="batch_size is 512, more than the 100"):
        compute_budget(100, batch_size=512, epsilon=1.0)


def test_more_steps_than_the_accountant_can_compose_are_refused():
    with pytest.raises(ConfigError, match="100,000,000,000 steps, more than the 10,000,000"):
        compute_budget(10**12, batch_size=10, epochs=1, noise_multiplier=1.1)
