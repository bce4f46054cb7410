"""Trials of one Optuna study that run at the same time, in threads of one process."""

from pathlib import Path

import pytest

import manyhands as mh

optuna = pytest.importorskip("optuna", reason="pip install '.[integrations]'")


@pytest.mark.timeout(600)
def test_pruning_ends_only_the_trial_that_asks_for_it(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    results = {}

    class Pruning:
        def __init__(self, trial):
            self.trial = trial

        def on_epoch(self, epoch):
            self.trial.report(epoch["test_loss"], epoch["epoch"])
            if self.trial.number % 2:  # by the trial, so that the other thread cannot matter
                raise mh.StopTraining(f"pruned in trial {self.trial.number}")

    def objective(trial):
        results[trial.number] = mh.fit(
            "mlp",
            "blobs",
            workers=2,
            epochs=2,
            lr=trial.suggest_float("lr", 1e-4, 1.0, log=True),
            callbacks=[Pruning(trial)],
            callbacks_in="caller",
            progress=False,
        )
        if results[trial.number].record["result"]["stopped"] == "callback":
            raise optuna.TrialPruned
        return results[trial.number].loss

    optuna.logging.set_verbosity(optuna.logging.WARNING)
    study = optuna.create_study(sampler=optuna.samplers.RandomSampler(seed=0))
    study.optimize(objective, n_trials=4, n_jobs=2)
    for trial in study.trials:
        pruned, end = trial.number % 2 == 1, results[trial.number].record["result"]
        assert trial.state.name == ("PRUNED" if pruned else "COMPLETE")
        assert len(trial.intermediate_values) == (1 if pruned else 2)
        asked = f"Pruning.on_epoch: pruned in trial {trial.number}" if pruned else None
        assert end.get("stopped_by") == asked


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
