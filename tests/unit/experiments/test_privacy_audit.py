"""The audit's arithmetic: what scores refute, and what an audit decides itself."""

import json
from dataclasses import replace

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn

from manyhands.cli.app import main
from manyhands.errors import ConfigError
from manyhands.experiments import privacy_audit
from manyhands.experiments.privacy_audit import WEAK, audit, estimate, list_clippings, write_report
from manyhands.model.replica import Replica
from manyhands.privacy.canaries import chain, dirac, directions, least_squares, projections
from manyhands.privacy.clipping import PerExample
from manyhands.privacy.layerwise import Layerwise

CLAIM = {"delta": 1e-5, "epsilon_pld": 4.38}  # of a shift by one standard deviation


def scores(mu, canaries=10_000, seed=0):
    """Return scores of a Gaussian mechanism with that shift, and who was in."""
    random = np.random.default_rng(seed)
    inside = random.random(canaries) < 0.5
    return inside + random.standard_normal(canaries) / mu, inside


@pytest.mark.parametrize("seed", range(5))
def test_a_mechanism_as_private_as_it_claims_is_left_in_peace(seed):
    found = estimate(*scores(1.0, seed=seed), CLAIM)
    assert not found.broken
    assert 2.5 < found.estimate.epsilon < 4.38
    assert 0 < found.bound < 4.38


@pytest.mark.parametrize("mu", [1.414, 2.0, 30.0])
def test_a_mechanism_with_less_noise_than_it_claims_is_caught(mu):
    assert estimate(*scores(mu), CLAIM).broken


def test_scores_without_any_noise_are_caught():
    inside = np.arange(4000) % 2 == 0
    assert estimate(inside.astype(float), inside, CLAIM).broken


def test_clipping_left_out_is_caught():
    values, inside = scores(1.0)
    assert estimate(values + 9 * inside, inside, CLAIM).broken


@pytest.mark.parametrize("name", ["model", "batch_size", "lr", "momentum", "partition"])
def test_what_an_audit_decides_itself_is_refused(name):
    with pytest.raises(ConfigError, match=f"{name} is given, but an audit decides it itself"):
        audit({"strategy": "sync", name: 1})


@pytest.mark.parametrize(
    ("strategy", "kind", "ways"),
    [
        ("sync", "gradients", ("layers", "vmap")),
        ("sync", "examples", ("layers",)),
        ("pipeline", "gradients", ("stages",)),
        ("pipeline", "examples", ("stages",)),
    ],
)
def test_every_way_of_clipping_that_a_strategy_has_is_audited(strategy, kind, ways):
    assert list_clippings({"strategy": strategy}, kind) == ways


def test_a_way_of_clipping_that_would_not_run_is_refused():
    with pytest.raises(ConfigError, match="clipping is 'vmap'; expected one of stages"):
        audit({"strategy": "pipeline"}, clipping="vmap")


@pytest.mark.parametrize("opaque", [False, True])
@pytest.mark.parametrize("depth", [2, 3])
def test_canaries_have_gradients_of_their_own_through_the_code_that_clips(depth, opaque):
    x, y = (torch.from_numpy(part) for part in dirac(7, clip=0.5))
    replica = Replica(chain(x.shape[1], depth, opaque=opaque), F.nll_loss)
    layerwise = Layerwise.of(replica, chunk_mb=1)
    assert (layerwise is None) == opaque
    u = directions(replica.module, F.nll_loss, x, y, 0.5)
    assert torch.allclose(u @ u.t(), torch.eye(7), atol=1e-6)  # at right angles, and clipped
    (layerwise or PerExample(replica, chunk_mb=1)).add(x[2:5], y[2:5], 0.5, replica.grad)
    replica.params.sub_(replica.grad, alpha=2.0)
    went = projections(replica.module, 7)
    assert np.allclose(went, [0, 0, 1, 1, 1, 0, 0], atol=1e-6)


@pytest.mark.parametrize(("mu", "code"), [(1.0, 0), (2.0, 1)])
def test_the_command_ends_with_1_when_the_claim_is_broken(tmp_path, monkeypatch, mu, code):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(privacy_audit, "audit", lambda *_, **__: estimate(*scores(mu), CLAIM))
    with pytest.raises(SystemExit) as ended:
        main(["audit", "--strategy", "sync"])
    assert ended.value.code == code


def test_least_squares_finds_who_was_in_where_there_is_no_noise():
    torch.manual_seed(0)
    u, b = torch.randn(30, 200, dtype=torch.float64), torch.randint(2, (30,)).double()
    found = least_squares(u, b @ u, 1e-12)
    assert np.allclose(found, b.numpy(), atol=1e-6)


def test_much_noise_leaves_nothing_but_the_coin():
    u, b = torch.randn(30, 200, dtype=torch.float64), torch.randint(2, (30,)).double()
    assert np.allclose(least_squares(u, b @ u, 1e12), 0.5, atol=1e-3)


def test_directions_add_up_to_the_clipped_sum():
    torch.manual_seed(0)
    model, x, y = nn.Linear(6, 3), torch.randn(9, 6), torch.randint(3, (9,))
    u = directions(model, F.cross_entropy, x, y, 0.5)
    replica = Replica(model, F.cross_entropy)
    PerExample(replica, chunk_mb=1).add(x, y, 0.5, replica.grad)
    assert torch.allclose(0.5 * u.sum(0), replica.grad, atol=1e-6)


def test_record_and_picture_are_written(tmp_path):
    broken, sound = (estimate(*scores(mu, canaries=1000), CLAIM) for mu in (2.0, 1.0))
    words = write_report([sound, replace(broken, clipping="vmap")], tmp_path / "audit")
    assert "nothing speaks against the claim: epsilon 4.380" in words
    assert "the claim is broken: epsilon 4.380" in words
    assert WEAK not in words
    assert json.loads((tmp_path / "audit" / "audit.json").read_text())["broken"] is True
    assert (tmp_path / "audit" / "audit.png").stat().st_size > 0
    assert WEAK in write_report([replace(sound, kind="examples")], tmp_path / "audit")
