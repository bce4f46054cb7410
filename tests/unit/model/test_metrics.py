"""Metrics are sums: in whatever parts a set is judged, the value is that of the whole."""

import itertools

import numpy as np
import pytest
import torch
import torchmetrics
import torchmetrics.functional.classification as published
from torch import nn

from manyhands.config.options import configure
from manyhands.data import Data, Stored
from manyhands.errors import ConfigError
from manyhands.model import metrics
from manyhands.model.replica import Replica
from manyhands.model.zoo import LOSSES
from manyhands.training.job import Job
from manyhands.training.process import objective
from manyhands.worker.clock import Epoch
from manyhands.worker.stopping import Aim

torch.manual_seed(0)
SCORES = torch.randn(101, 6)
LABELS = torch.randint(0, 5, (101,))  # the last class never occurs
MANY = (torch.rand(101, 4) > 0.7).float()
NUMBERS = torch.randn(101, 3)


def judged(given, output, y, classes=None, parts=(0, 101)):
    metric = metrics.build(given, output[:10], y[:10], classes)
    metric.begin()
    for start, stop in itertools.pairwise(parts):
        metric.add(None, output[start:stop], y[start:stop], output[start:stop])
    return metric.value()


def test_auroc_does_not_depend_on_how_the_set_is_cut():
    """Scores of one part within 0 and 1, of the other not: all are made probabilities, or none."""
    output = torch.tensor([[0.9, 0.9], [0.8, 0.2], [2.0, -1.0], [0.1, 0.3]])
    y = torch.tensor([[0.0, 1.0], [0.0, 0.0], [1.0, 0.0], [0.0, 1.0]])
    whole = judged("auroc", output, y, parts=(0, 4))
    assert (
        whole
        == judged("auroc", output, y, parts=(0, 2, 4))
        == judged("auroc", output, y, None, range(5))
    )
    labels = torch.tensor([0, 1, 0, 1])
    parts = [judged("auroc", output, labels, 2, p) for p in ((0, 4), (0, 2, 4), (0, 1, 4))]
    assert len(set(parts)) == 1
    sure = output.softmax(1)
    assert judged("auroc", sure, labels, 2, (0, 4)) == parts[0]


KNOWN = [
    ("accuracy", SCORES, LABELS, lambda o, y: (o.argmax(1) == y).double().mean()),
    ("top-2", SCORES, LABELS, lambda o, y: published.multiclass_accuracy(
        o, y, 6, average="micro", top_k=2)),
    ("f1", SCORES, LABELS, lambda o, y: published.multiclass_f1_score(o, y, 6, average="macro")),
    ("auroc", SCORES[:, :5], LABELS, lambda o, y: published.multiclass_auroc(o, y, 5)),
    ("f1", SCORES[:, :4], MANY, lambda o, y: published.multilabel_f1_score(
        o.sigmoid(), y.long(), 4)),
    ("auroc", SCORES[:, :4], MANY, lambda o, y: published.multilabel_auroc(o, y.long(), 4)),
    ("mse", SCORES[:, :3], NUMBERS, lambda o, y: nn.functional.mse_loss(o.double(), y.double())),
    ("mae", SCORES[:, :3], NUMBERS, lambda o, y: nn.functional.l1_loss(o.double(), y.double())),
]  # fmt: skip


@pytest.mark.parametrize(("name", "output", "y", "expected"), KNOWN)
def test_a_named_metric_is_what_others_compute_in_whatever_parts(name, output, y, expected):
    classes = None if y.is_floating_point() else 5
    value = judged(name, output, y, classes)
    assert value == pytest.approx(float(expected(output, y)), rel=1e-5)
    assert judged(name, output, y, classes, (0, 1, 1, 40, 41, 101)) == pytest.approx(value, 1e-12)


def test_scores_in_bfloat16_are_judged_as_the_same_numbers_in_float32():
    """torchmetrics refuses or rounds what autocast leaves; the numbers are what they are."""
    short = SCORES[:, :5].bfloat16()
    assert judged("auroc", short, LABELS, 5) == judged("auroc", short.float(), LABELS, 5)
    mean = torchmetrics.MeanSquaredError()
    assert judged(mean, short[:, :3], NUMBERS) == judged(mean, short[:, :3].float(), NUMBERS)


def test_a_metric_of_torchmetrics_asks_no_group_of_torch_by_itself(monkeypatch):
    """Under torchrun it would gather on its own, where only one worker judges, and hang."""
    mean = torchmetrics.MeanSquaredError(
        distributed_available_fn=lambda: True, dist_sync_fn=lambda *given: pytest.fail("gathered")
    )
    assert judged(mean, NUMBERS, NUMBERS) == 0


def test_labels_of_sequences_are_counted_one_by_one():
    scores, words = torch.randn(8, 5, 7), torch.randint(0, 5, (8, 7))
    right = (scores.argmax(1) == words).double().mean()
    metric = metrics.build("accuracy", scores, words, 5)
    metric.add(None, scores, words, scores)
    assert metric.value() == float(right)


@pytest.mark.parametrize("single", [True, False])
def test_a_function_gives_values_or_their_mean(single):
    def far(output, target):
        errors = (output - target).abs().amax(1)
        return errors.mean() if single else errors

    value = judged(far, SCORES[:, :3], NUMBERS, parts=(0, 3, 101))
    assert value == pytest.approx(float((SCORES[:, :3] - NUMBERS).abs().amax(1).mean()), rel=1e-6)
    with pytest.raises(ConfigError, match=r"metric wrong gave a shape of \(3, 3\) for 3 examples"):
        judged(wrong, SCORES[:, :3], NUMBERS, parts=(0, 3))


def wrong(output, target):
    return output - target


@pytest.mark.parametrize(
    ("name", "output", "y", "classes", "message"),
    [
        ("accuracy", SCORES[:, 0], LABELS, 5, "expected a score for each class"),
        ("accuracy", SCORES[:, :3], LABELS, 5, "expected a score for each class"),
        ("accuracy", NUMBERS, NUMBERS, None, "expected a score for each class"),
        ("top-7", SCORES, LABELS, 5, "there are 6 classes"),
        ("mse", SCORES[:, :1], NUMBERS[:, 0], None, r"gives \(101, 1\) for targets of shape \(101"),
        ("mse", {"a": SCORES}, NUMBERS, None, "compares one tensor with one"),
    ],
)
def test_what_makes_no_sense_is_refused(name, output, y, classes, message):
    with pytest.raises(ConfigError, match=message):
        metrics.build(name, output, y, classes)
    assert not metrics.is_applicable(name, output, y, classes)


def made(model, data, folder, **given):
    loss, own = given.pop("function", None), given.pop("metrics", ())
    job = Job(
        config=configure({"strategy": "sequential", **given}), model=model, loss=loss, metrics=own,
        data="", output="", name="", command="", launched=0.0,
    )  # fmt: skip
    stored = Stored.open(data.store(folder / "data"))
    replica = Replica(model, objective.make_loss(job, None, stored))
    found = objective.make_metrics(job, replica, stored, stored.train.batch(np.arange(4)))
    return replica, found, objective.make_aim(job.config, found)


FEATURES = np.random.default_rng(0).normal(size=(20, 3)).astype(np.float32)


@pytest.mark.parametrize(
    ("targets", "outputs", "given", "loss", "names"),
    [
        (np.arange(20) % 4, 4, {}, "cross-entropy", ["accuracy"]),
        (FEATURES[:, :2], 2, {}, "mse", []),
        (FEATURES[:, :2], 2, {"loss": "mae", "metrics": ("mse",)}, "mae", ["mse"]),
        ((FEATURES > 0).astype(np.int64), 3, {"loss": "bce"}, "bce", ["f1"]),
        (None, 3, {}, "mse", []),
    ],
)
def test_what_a_run_is_about_follows_from_its_targets(
    tmp_path, targets, outputs, given, loss, names
):
    data = Data(FEATURES if targets is None else (FEATURES, targets))
    replica, found, _ = made(nn.Linear(3, outputs), data, tmp_path, **given)
    assert replica.loss is LOSSES[loss]
    assert [metric.name for metric in found] == names
    assert replica.classifies == ("accuracy" in names)


def test_no_accuracy_is_claimed_of_a_model_without_scores(tmp_path):
    def own(output, target):
        return nn.functional.binary_cross_entropy_with_logits(output[:, 0], target.float())

    data = Data((FEATURES, np.arange(20) % 2))
    replica, found, _ = made(nn.Linear(3, 1), data, tmp_path, function=own)
    assert found == ()
    assert not replica.classifies
    with pytest.raises(ConfigError, match="metric is 'accuracy', but the model gives"):
        made(nn.Linear(3, 1), data, tmp_path, function=own, metrics=("accuracy",))


@pytest.mark.parametrize(
    ("model", "given", "message"),
    [
        (nn.Linear(3, 1), {}, r"loss is 'mse', but the model gives \(4, 1\) for .* \(4,\)"),
        (nn.Linear(3, 1), {"function": lambda output, target: output}, r"loss gave a shape of"),
        (nn.Flatten(0), {"function": lambda output, target: 3.0}, r"loss gave 3.0; expected"),
        (
            nn.Sequential(nn.Linear(3, 1), nn.Flatten(0)),
            {"target_accuracy": 0.9},
            "the model is judged by its loss; give metric",
        ),
    ],
)
def test_losses_and_targets_that_cannot_work_are_refused(tmp_path, model, given, message):
    model = nn.Sequential(nn.Linear(3, 3), model) if isinstance(model, nn.Flatten) else model
    with pytest.raises(ConfigError, match=message):
        made(model, Data((FEATURES, FEATURES[:, 0])), tmp_path, **given)


def epochs(*values, name="mae"):
    return [
        Epoch(i, validation_loss=-i, validation_metrics={name: value})
        for i, value in enumerate(values, 1)
    ]


def test_the_chosen_metric_decides_what_is_best_and_when_to_stop():
    aim = Aim(metric="mae", higher=False, chosen=True, patience=2, target=0.2)
    assert aim.best(epochs(0.5, 0.3, 0.4)).epoch == 2
    assert aim.over(epochs(0.5, 0.3, 0.4)) is None
    assert aim.over(epochs(0.5, 0.3, 0.4, 0.3)) == "patience"
    assert aim.over(epochs(0.5, 0.2)) == "target"
    more = Aim(metric="mae", higher=True, chosen=True, target=0.6)
    assert more.best(epochs(0.5, 0.3, 0.4)).epoch == 1
    assert more.over(epochs(0.5, 0.3)) is None
    assert Aim(metric="mae", higher=False).best(epochs(0.5, 0.3, 0.4)).epoch == 3  # by the loss


def test_without_a_validation_part_the_test_set_decides():
    aim = Aim(metric="accuracy", target=0.9, reason="target_accuracy")
    epoch = Epoch(1, test_loss=1.0, test_metrics={"accuracy": 0.95})
    assert aim.over([epoch]) == "target_accuracy"
