"""Trials of one Optuna study that run at the same time, in threads of one process."""

from pathlib import Path

import pytest

import manyhands as mh

optuna = pytest.importorskip("optuna", reason="pip install '.[integrations]'")


@pytest.mark.timeout(600)
def test_two_trials_at_once_have_a_run_of_their_own_each(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    results = {}

    def objective(trial):
        lr = trial.suggest_float("lr", 1e-4, 1.0, log=True)
        result = mh.fit("mlp", "blobs", workers=2, epochs=1, lr=lr, progress=False)
        results[trial.number] = result
        return result.loss

    optuna.logging.set_verbosity(optuna.logging.WARNING)
    study = optuna.create_study(sampler=optuna.samplers.RandomSampler(seed=0))
    study.optimize(objective, n_trials=4, n_jobs=2)
    assert len({Path(result.output) for result in results.values()}) == 4
    for trial in study.trials:
        assert results[trial.number].record["config"]["lr"] == trial.params["lr"]
