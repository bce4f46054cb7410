"""Search a learning rate with Optuna, which ends hopeless trials after a few epochs.

Needs `pip install '.[integrations]'`. Each trial is a run with two workers. The callback is called
in this process (`callbacks_in="caller"`), where the trial is; what it raises ends the run on all
workers.
"""

import optuna

import manyhands as mh


class Pruning:
    """Reports each epoch's loss to the trial, and stops the run if Optuna prunes it."""

    def __init__(self, trial):
        self.trial = trial

    def on_epoch(self, epoch):
        self.trial.report(epoch["test_loss"], epoch["epoch"])
        if self.trial.should_prune():
            raise mh.StopTraining(f"pruned in trial {self.trial.number}")


def objective(trial):
    result = mh.fit(
        "mlp",
        "blobs",
        workers=2,
        epochs=6,
        lr=trial.suggest_float("lr", 1e-4, 1.0, log=True),
        callbacks=[Pruning(trial)],
        callbacks_in="caller",
        progress=False,
    )
    if result.record["result"]["stopped"] == "callback":
        raise optuna.TrialPruned
    return result.loss


def main():
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    pruner = optuna.pruners.MedianPruner(n_startup_trials=2)
    sampler = optuna.samplers.RandomSampler(seed=0)
    study = optuna.create_study(sampler=sampler, pruner=pruner)
    study.optimize(objective, n_trials=8)
    for trial in study.trials:
        epochs = len(trial.intermediate_values)
        print(f"lr {trial.params['lr']:.4f}: {trial.state.name.lower()} after {epochs} epochs")
    print(f"best: lr {study.best_params['lr']:.4f}, test loss {study.best_value:.4f}")
    return study


if __name__ == "__main__":
    main()
