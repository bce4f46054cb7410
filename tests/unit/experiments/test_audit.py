"""What an audit decides itself, what it trains, and when it says that a claim is refuted."""

import json
import re
from dataclasses import replace
from decimal import Decimal

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.nn.functional import cross_entropy

from manyhands.cli.app import main
from manyhands.config.options import configure
from manyhands.errors import ConfigError
from manyhands.experiments.audit import audited_training, models, run
from manyhands.experiments.audit.audited_training import list_clippings
from manyhands.experiments.audit.canary_attack import Attack
from manyhands.experiments.audit.run import Audit, audit
from manyhands.experiments.audit.simulated_private_run import rehearse
from manyhands.experiments.audit.transcript_checks import Claim, examine
from manyhands.model.replica import Replica
from manyhands.model.zoo import OWN_LOSS
from manyhands.privacy.layerwise import Layerwise
from manyhands.privacy.mechanism_tests import Finding, rejected
from manyhands.privacy.steps_rate_noise import Terms

pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.mark.parametrize("name", ["init", "resume", "checkpoint_every", "callbacks", "validation"])
def test_what_an_audit_does_not_take_is_refused(name):
    with pytest.raises(ConfigError, match=f"{name} is given, which an audit does not take"):
        audit({"strategy": "sync", name: 1})


@pytest.mark.parametrize(
    ("way", "said"), [("flat", "2 workers: a"), ("per-layer", "2 workers, per-layer clipping: a")]
)
def test_the_way_of_clipping_is_the_runs_and_is_named(way, said):
    recipe = audited_training.of_audit({"strategy": "sync", "clipping": way}, None, lambda: None)
    assert said in recipe.name
    assert recipe.options["clipping"] == way


def test_a_run_without_privacy_is_not_audited():
    with pytest.raises(ConfigError, match="private is False, but an audit is of a private run"):
        audit({"private": False})


def test_an_audit_of_your_run_needs_its_noise():
    with pytest.raises(ConfigError, match="neither of epsilon and noise_multiplier given"):
        audit({"model": "mlp", "data": "blobs"})


@pytest.mark.parametrize(
    ("given", "own"),
    [
        ({"strategy": "sync", "workers": 2, "epsilon": 3.0, "distrust": True, "seed": 1}, True),
        ({"private": True, "dtype": "float64", "masters": 2, "threads": 1}, True),
        ({"model": "mlp"}, False),
        ({"data": "blobs"}, False),
        ({"batch_size": 32}, False),
        ({"lr": 0.1}, False),
        ({"max_steps": 10}, False),
        ({"partition": "by-id"}, False),
    ],
)
def test_any_option_of_the_recipe_makes_the_run_the_users(given, own):
    assert audited_training.is_given(given) is not own


def test_the_users_run_is_trained_as_the_options_say(tmp_path):
    given = {"model": "mlp", "data": "blobs", "batch_size": 50, "epochs": 2, "lr": 0.3,
             "strategy": "averaging", "epsilon": 3.0}  # fmt: skip
    recorded = []
    recipe = audited_training.of_user(given, lambda: recorded.append(1), tmp_path / "data")
    chosen = {**recipe.options}
    made = chosen.pop("model")()
    assert recorded == [1]
    assert isinstance(made[-1] if isinstance(made, torch.nn.Sequential) else made, torch.nn.Module)
    assert chosen.pop("loss") == OWN_LOSS["mlp"]
    given.pop("model")
    assert chosen == {**given, "private": True, "name": "audit"}
    assert recipe.name == "averaging, 2 workers: mlp on blobs"


@pytest.mark.parametrize("canaries", [0, 99, 2001])
def test_a_number_of_canaries_that_makes_no_sense_is_refused(canaries):
    with pytest.raises(ConfigError, match=f"canaries is {canaries}"):
        audit({"strategy": "sync"}, canaries=canaries)


@pytest.mark.parametrize(
    ("strategy", "ways"), [("sync", ("layers", "vmap")), ("pipeline", ("stages",))]
)
def test_every_way_of_clipping_that_a_strategy_has_is_audited(strategy, ways):
    assert list_clippings({"strategy": strategy}) == ways


@pytest.mark.parametrize(("clipping", "known"), [("layers", True), ("vmap", False)])
def test_the_models_are_clipped_as_their_names_say(clipping, known):
    unknown = Layerwise.unknown(Replica(models.build(clipping), cross_entropy))
    assert bool(unknown) != known


def test_most_records_gradients_are_longer_than_any_usual_clipping_norm():
    torch.manual_seed(0)
    replica = Replica(models.layers(), cross_entropy)
    x, y = (torch.from_numpy(part) for part in models.make_records(40, 0))
    norms = []
    for i in range(40):
        loss, _ = replica.objective(replica.module, x[i : i + 1], y[i : i + 1])
        found = torch.autograd.grad(loss, [p for _, p in replica.named])
        norms.append(float(torch.cat([g.flatten() for g in found]).norm()))
    assert np.median(norms) > 10


def outcome(p):
    """Return an audit with one test of that p-value beside 99 that say nothing."""
    quiet = Finding(test="variance of the noise", where="worker 0", value=1, expected="1", p=0.5)
    guesses = Attack(canaries=1000, right=600, p=1.0, bound=0.1, reach=5.0)
    return Audit(
        recipe="sync, 2 workers: mlp on blobs",
        claimed=3.0,
        terms=Terms(steps=30, rate=0.1, noise_multiplier=2.0, clip=1.0, delta=1e-5),
        attack=guesses,
        findings=(replace(quiet, p=p, test="reachability"), *[quiet] * 99),
    )


@pytest.mark.parametrize(
    ("p", "broken"), [(0.0, True), (0.99e-6, True), (1.01e-6, False), (1.0, False)]
)
def test_the_claim_is_refuted_when_a_test_fires(tmp_path, p, broken):
    """At 1e-4 over all: a hundredth of that for one of a hundred."""
    words = run.write_report([outcome(p)], tmp_path)
    assert json.loads((tmp_path / "audit.json").read_text())["broken"] is broken
    assert ("the claim is refuted" in words) == broken
    assert bool(run.fired([outcome(p)])) is broken
    assert f"exit code {int(broken)}" in words
    assert "tests, at an error of 0.0001 over all 100 together" in words
    (line,) = [line for line in words.splitlines() if line.startswith("  reachability     ")]
    assert ("1 fired" in line) is broken
    (line,) = [line for line in words.splitlines() if "variance of the noise     " in line]
    assert line.endswith(" 99  none fired; least p-value 0.5")


@pytest.mark.parametrize(("p", "code"), [(1.0, 0), (0.0, 1)])
def test_the_command_ends_with_1_when_a_test_fires(tmp_path, monkeypatch, p, code):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(run, "audit", lambda *_, **__: outcome(p))
    with pytest.raises(SystemExit) as ended:
        main(["audit", "--strategy", "sync"])
    assert ended.value.code == code


def test_canaries_of_another_kind_are_superseded(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SystemExit) as ended:
        main(["audit", "--kind", "examples"])
    assert ended.value.code == 2
    assert "kind is 'examples', but the audit plants gradients only" in capsys.readouterr().err


@pytest.mark.parametrize(("reach", "few"), [(2.9, True), (3.1, False)])
def test_too_few_canaries_are_called_so(tmp_path, reach, few):
    one = outcome(1.0)
    words = run.write_report([replace(one, attack=replace(one.attack, reach=reach))], tmp_path)
    assert ("too few canaries to refute the claim by guesses alone" in words) == few


bounds = st.floats(1e-6, 50)


@given(claimed=bounds, bound=bounds, reach=bounds)
def test_a_claim_is_rounded_up_and_what_is_refuted_down(claimed, bound, reach):
    guesses = replace(outcome(1.0).attack, bound=bound, reach=reach)
    found = run._describe(replace(outcome(1.0), claimed=claimed, attack=guesses))
    number = r"(\d+\.\d+)"
    (up,) = re.findall(f"claim: epsilon {number}", found[1])
    (down,) = re.findall(f"epsilon below {number}", found[2])
    (most,) = re.findall(f"would refute {number}", found[2])
    assert Decimal(up) >= Decimal(claimed)
    assert Decimal(down) <= Decimal(bound)
    assert Decimal(most) <= Decimal(reach)
    test = guesses.finding(claimed)
    assert Decimal(f"{test.value:.6g}") <= Decimal(bound)
    assert Decimal(test.expected.split()[5]) >= Decimal(claimed)


def test_the_error_holds_for_all_runs_of_an_audit_together():
    assert [each.p for each in run.fired([outcome(0.99e-6)])] == [0.99e-6]
    assert run.fired([outcome(0.99e-6), outcome(1.0)]) == []


def rehearsed(given):
    config = configure(
        {"private": True, "noise_multiplier": 1.0, "fixed_key": 5, "epochs": 5, "max_steps": 5,
         "batch_size": 30, "workers": 2, **given}
    )  # fmt: skip
    x, y = (torch.from_numpy(part) for part in models.make_records(300, 0))
    transcripts, terms = rehearse(config, models.layers, cross_entropy, x, y, canaries=100)
    return transcripts, Claim.of(config, terms)


def test_a_master_that_adds_no_noise_is_no_worker_without_messages():
    transcripts, claim = rehearsed({"strategy": "server"})
    idle = replace(transcripts[0], rank=2, noise=[], drawn=[], scales=[], master=True)
    assert rejected(examine([*transcripts, idle], claim), 1e-4) == []


def test_a_worker_that_is_missing_is_no_master():
    transcripts, claim = rehearsed({"strategy": "server"})
    transcripts[1].master = True
    fires = rejected(examine(transcripts, claim), 1e-4)
    assert [each.test for each in fires] == ["number of workers"]
