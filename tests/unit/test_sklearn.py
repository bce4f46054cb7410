"""The estimators keep scikit-learn's rules, and train as `fit` does."""

from __future__ import annotations

import pickle
import subprocess
import sys
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch
from sklearn.base import clone
from sklearn.model_selection import GridSearchCV, cross_val_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.utils import get_tags
from sklearn.utils.estimator_checks import parametrize_with_checks
from torch import nn

import manyhands as mh
from manyhands.sklearn import Classifier, Regressor

QUICK = {"epochs": 5, "batch_size": 16, "lr": 0.01, "random_state": 0}
# In float32 the rounding of a product depends on the number of rows, by more than a check allows.
EXACT = {**QUICK, "dtype": "float64"}
# Every check of scikit-learn applies; one that did not would be named here, with the reason.
EXPECTED_FAILED_CHECKS: dict[str, str] = {}


@pytest.mark.usefixtures("one_thread")
@parametrize_with_checks(
    [Classifier(**EXACT), Regressor(**EXACT)],
    expected_failed_checks=lambda estimator: EXPECTED_FAILED_CHECKS,
)
def test_a_rule_of_scikit_learn_holds(estimator, check, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    check(estimator)
    assert list(tmp_path.iterdir()) == []  # a fit leaves nothing behind


def blobs(rows=120, columns=4):
    x = np.random.default_rng(0).normal(size=(rows, columns))
    return x, np.where(x[:, 0] > x[:, 1], "more", "less")


def net(features, outputs, width=8):
    return nn.Sequential(nn.Linear(features, width), nn.ReLU(), nn.Linear(width, outputs))


def weights(estimator):
    return torch.cat([p.detach().ravel() for p in estimator.module_.parameters()])


def test_a_model_learns_text_labels_and_gives_their_probabilities():
    x, y = blobs()
    model = Classifier(net, **QUICK | {"epochs": 20}).fit(x, y)
    assert list(model.classes_) == ["less", "more"]
    assert model.score(x, y) > 0.9
    chance = model.predict_proba(x)
    np.testing.assert_allclose(chance.sum(axis=1), 1)
    np.testing.assert_array_equal(model.classes_[chance.argmax(axis=1)], model.predict(x))
    np.testing.assert_array_equal(model.decision_function(x) > 0, model.predict(x) == "more")
    assert model.n_iter_ == 20
    assert model.record_["config"]["strategy"] == "sync"


def test_several_workers_end_where_one_does(tmp_path):
    x, y = blobs()
    one = Classifier("logistic", **QUICK).fit(x, y)
    two = Classifier("logistic", workers=2, output=str(tmp_path / "run"), **QUICK).fit(x, y)
    assert two.record_["config"]["workers"] == 2
    torch.testing.assert_close(weights(one), weights(two), rtol=1e-4, atol=1e-5)
    assert (tmp_path / "run" / "run.json").is_file()


def test_the_seed_decides_and_none_is_another_each_time():
    x, y = blobs()
    fit = lambda seed: weights(Classifier("logistic", epochs=1, random_state=seed).fit(x, y))  # noqa: E731
    torch.testing.assert_close(fit(1), fit(1), rtol=0, atol=0)
    assert not torch.equal(fit(1), fit(2))
    assert not torch.equal(fit(None), fit(None))


def test_training_here_leaves_torch_as_it_was():
    x, y = blobs()
    threads, state = torch.get_num_threads(), torch.random.get_rng_state()
    model = Classifier("logistic", epochs=1, random_state=0, options={"threads": 1}).fit(x, y)
    assert model.record_["config"]["threads"] == 1
    assert torch.get_num_threads() == threads
    assert torch.equal(torch.random.get_rng_state(), state)


def test_the_users_module_stays_untrained():
    x, y = blobs()
    module = net(4, 2)
    before = [p.clone() for p in module.parameters()]
    model = Classifier(module, **QUICK).fit(x, y)
    assert model.module_ is not module
    assert all(map(torch.equal, before, module.parameters()))


def test_a_grid_search_over_a_pipeline_finds_a_setting():
    x, y = blobs()
    pipe = make_pipeline(StandardScaler(), Classifier(net, batch_size=8, epochs=10, random_state=0))
    grid = {
        "classifier__lr": [1e-6, 0.03],
        "classifier__model": [partial(net, width=4), partial(net, width=8)],
    }
    search = GridSearchCV(pipe, grid, cv=2).fit(x, y)
    assert search.best_params_["classifier__lr"] == 0.03
    assert search.score(x, y) > 0.8


def test_scores_are_crossed_and_parameters_cloned():
    x, _ = blobs()
    model = Regressor(net, **QUICK | {"epochs": 20})
    assert clone(model).get_params() == model.get_params()
    assert cross_val_score(model, x, x[:, 0] - x[:, 1], cv=2).min() > 0.5


def test_several_targets_keep_their_shape():
    x, _ = blobs()
    model = Regressor("logistic", loss="mae", **QUICK | {"epochs": 40}).fit(x, x[:, :3])
    assert model.predict(x).shape == (len(x), 3)
    assert model.record_["config"]["loss"] == "mae"
    assert model.score(x, x[:, :3]) > 0.8


def test_rows_may_have_more_dimensions():
    x, y = blobs(60, 16)
    shapes = []

    def make(features, outputs):
        shapes.append(features)
        return nn.Sequential(nn.Flatten(), nn.Linear(16, outputs))

    Classifier(make, **QUICK).fit(x.reshape(60, 1, 4, 4), y).predict(x.reshape(60, 1, 4, 4))
    assert set(shapes) == {(1, 4, 4)}


def test_with_a_validation_part_the_best_model_is_kept(tmp_path):
    x, y = blobs()
    model = Classifier(
        net, validation=0.2, patience=2, epochs=30, lr=1.0, random_state=0,
        output=str(tmp_path / "run"),
    ).fit(x, y)  # fmt: skip
    from safetensors.torch import load_file

    best = load_file(tmp_path / "run" / "best.safetensors")
    assert all(torch.equal(v, best[k]) for k, v in model.module_.state_dict().items())
    assert model.n_iter_ < 30


def test_float64_is_trained_and_predicted_in():
    x, y = blobs()
    model = Classifier("logistic", dtype="float64", **QUICK).fit(x, y)
    assert {p.dtype for p in model.module_.parameters()} == {torch.float64}
    again = pickle.loads(pickle.dumps(model))
    np.testing.assert_array_equal(again.predict_proba(x), model.predict_proba(x))


@pytest.mark.parametrize(
    ("given", "random"),
    [
        ({}, False),
        ({"strategy": "hogwild"}, True),
        ({"strategy": "hogwild", "workers": 1}, False),
        ({"strategy": mh.Hogwild()}, True),
        ({"strategy": mh.Server()}, True),
        ({"strategy": mh.Server(staleness=1)}, True),
        ({"strategy": "server", "options": {"staleness": 0}}, False),
        ({"strategy": mh.Gossip()}, False),
        ({"strategy": mh.Gossip(asynchronous=True)}, True),
        ({"strategy": "gossip", "options": {"asynchronous": True, "clip_norm": 1.0}}, True),
        ({"strategy": "gossip", "options": {"asynchronous": "perhaps"}}, False),
        ({"strategy": "no such strategy"}, False),
    ],
)
def test_the_tag_non_deterministic_follows_the_strategy_s_facts(given, random):
    assert get_tags(Classifier(**{"workers": 2, **given})).non_deterministic == random


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"lr": 0.1}, "'lr'.*a parameter of its own"),
        ({"seed": 1}, "'seed'.*random_state"),
        ({"loss": "mse"}, "cross-entropy"),
        ({"wrokers": 1}, "unknown option 'wrokers'"),
    ],
)
def test_an_option_that_has_another_place_is_refused(options, words):
    x, y = blobs()
    with pytest.raises(mh.ConfigError, match=words):
        Classifier("logistic", options=options).fit(x, y)


def test_other_options_reach_the_run():
    x, y = blobs()
    model = Classifier("logistic", options={"clip_norm": 0.5}, **QUICK).fit(x, y)
    assert model.record_["config"]["clip_norm"] == 0.5


def run(code, cwd):
    line = [sys.executable, "-c", code]
    return subprocess.run(line, capture_output=True, text=True, check=False, cwd=cwd, timeout=110)


def test_it_is_imported_when_it_is_first_used(tmp_path):
    code = (
        "import sys, manyhands as mh\n"
        "assert 'sklearn' not in sys.modules\n"
        "print(mh.sklearn.Classifier.__name__, 'sklearn' in sys.modules)"
    )
    assert run(code, tmp_path).stdout.split() == ["Classifier", "True"]


def test_without_scikit_learn_the_message_says_what_to_install(tmp_path):
    code = "import sys; sys.modules['sklearn'] = None; import manyhands as mh; mh.sklearn"
    done = run(code, Path(tmp_path))
    assert "pip install '.[sklearn]'" in done.stderr.splitlines()[-1]
