"""Log a search to MLflow: each run is a child of the active run, with its model as an artifact.

Needs `pip install '.[mlflow]'`. The runs are kept in a folder; or give a tracking server's address
(not tested).
"""

import os
from pathlib import Path

import mlflow

import manyhands as mh
from manyhands.callbacks import MLflow


def main(folder="mlruns"):
    os.environ.setdefault("MLFLOW_ALLOW_FILE_STORE", "true")  # or MLflow asks for a database
    mlflow.set_tracking_uri(Path(folder).absolute().as_uri())
    mlflow.set_experiment("learning rates")
    with mlflow.start_run(run_name="search") as search:
        for lr in (0.01, 0.1):
            mh.fit("mlp", "blobs", workers=2, epochs=3, lr=lr, callbacks=[MLflow()])
    runs = mlflow.search_runs(
        filter_string=f"tags.mlflow.parentRunId = '{search.info.run_id}'", output_format="list"
    )
    for run in runs:
        print(f"lr {run.data.params['lr']}: test loss {run.data.metrics['test/loss']:.4f}")
    return runs


if __name__ == "__main__":
    main()
