"""Search a network's width and learning rate with scikit-learn, then train it with two workers.

Needs `pip install '.[sklearn]'`. The search trains in this process; with `n_jobs=-1` its fits run
in parallel. The digits come with scikit-learn.
"""

from functools import partial

from sklearn.datasets import load_digits
from sklearn.model_selection import GridSearchCV, train_test_split
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from torch import nn

import manyhands as mh


def net(features, outputs, width):
    return nn.Sequential(nn.Linear(features, width), nn.ReLU(), nn.Linear(width, outputs))


def main():
    X, y = load_digits(return_X_y=True)
    X, X_test, y, y_test = train_test_split(X, y, test_size=0.25, random_state=0)
    pipe = make_pipeline(StandardScaler(), mh.sklearn.Classifier(epochs=5, random_state=0))
    grid = {
        "classifier__model": [partial(net, width=width) for width in (8, 32)],
        "classifier__lr": [1e-3, 1e-2],
    }
    search = GridSearchCV(pipe, grid, cv=2, refit=False).fit(X, y)
    for setting, score in zip(
        search.cv_results_["params"], search.cv_results_["mean_test_score"], strict=True
    ):
        width = setting["classifier__model"].keywords["width"]
        print(f"width {width}, lr {setting['classifier__lr']}: accuracy {score:.3f}")
    best = pipe.set_params(**search.best_params_, classifier__workers=2).fit(X, y)
    print(f"the best, with two workers: test accuracy {best.score(X_test, y_test):.3f}")


if __name__ == "__main__":
    main()
