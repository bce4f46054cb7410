"""A private pipeline clips by the whole length and adds its noise once, wherever it is cut."""

import math
from itertools import pairwise

import numpy as np
import pytest
import torch
from mpi4py import MPI
from test_privacy import LR, STEPS, by_hand, drawn, own, private
from torch import nn
from training import WORLD, distance

import manyhands as mh
from manyhands.data import Stored, store
from manyhands.errors import ConfigError
from manyhands.privacy.layerwise import Layerwise
from manyhands.privacy.sampling import PoissonPlan
from manyhands.privacy.split_model_clipping import StageClipping

SIZE = WORLD.size
WAYS = {  # pipelines × stages
    "one pipeline": {"workers": 1, "stages": SIZE},
    "all forward first": {"workers": 1, "stages": SIZE, "order": "gpipe"},
    "a pipeline each": {"workers": SIZE, "stages": 1},
}
if SIZE % 2 == 0 and SIZE > 2:
    WAYS["two pipelines"] = {"workers": 2, "stages": SIZE // 2}


def deep():
    """Five layers with parameters: enough for five stages."""
    return nn.Sequential(
        nn.Linear(20, 24), nn.Tanh(), nn.Linear(24, 20), nn.LayerNorm(20), nn.Tanh(),
        nn.Linear(20, 16), nn.Tanh(), nn.Linear(16, 4),
    )  # fmt: skip


def images():
    """Five layers again, convolutions first."""
    return nn.Sequential(
        nn.Conv2d(1, 3, 2), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(3, 4, 2), nn.GroupNorm(2, 4),
        nn.Flatten(), nn.Linear(16, 8), nn.Tanh(), nn.Linear(8, 4),
    )  # fmt: skip


def words():
    """Five layers for sequences of word numbers; two of them have a ghost norm."""
    return nn.Sequential(
        nn.Embedding(9, 6), nn.Linear(6, 30), nn.Tanh(), nn.Linear(30, 6), nn.Flatten(),
        nn.Linear(30, 8), nn.Tanh(), nn.Linear(8, 4),
    )  # fmt: skip


def silent():
    """Three layers that nothing passes through where the inputs are zero: only noise is left."""
    return nn.Sequential(
        nn.Linear(8, 8_000, bias=False), nn.Linear(8_000, 14, bias=False),
        nn.Linear(14, 4_000, bias=False), nn.Linear(4_000, 2, bias=False),
        nn.Linear(2, 2, bias=False),
    )  # fmt: skip


def piped(model, data, folder, **given):
    return private(model, data, WORLD, folder, strategy="pipeline", **given)


def alone(model, data, folder, **given):
    (folder / "alone").mkdir()
    return private(model, data, MPI.COMM_SELF, folder / "alone", strategy="sequential", **given)


@pytest.mark.parametrize("name", WAYS)
def test_no_noise_and_no_clipping_are_plain_training_on_the_same_samples(blobs, tmp_path, name):
    given = {"sigma": 0.0, "clip": math.inf, "batch_size": 50, "dtype": "float64"}
    worker = piped(deep, blobs, tmp_path, **given, **WAYS[name])
    expected = by_hand(blobs, drawn(worker), 50, deep)
    assert worker.step == STEPS
    assert distance(worker.config.strategy.consensus(worker), expected) < 1e-10


@pytest.mark.parametrize("name", WAYS)
@pytest.mark.parametrize("clip", [0.1, 2.0])
def test_examples_are_clipped_by_their_whole_length(blobs, tmp_path, name, clip):
    given = {"sigma": 0.0, "clip": clip, "batch_size": 50, "dtype": "float64", "fixed_key": 7}
    worker = piped(deep, blobs, tmp_path, **given, **WAYS[name])
    expected = alone(deep, blobs, tmp_path, **given).params
    assert distance(worker.config.strategy.consensus(worker), expected) < 1e-10


@pytest.mark.parametrize("name", WAYS)
def test_sequences_of_words_are_clipped_by_their_whole_length(tmp_path, name):
    random = np.random.default_rng(0)
    x, y = random.integers(0, 9, (300, 5)), random.integers(0, 4, 300)
    data = store(mh.Data((x, y)), tmp_path / "data")
    given = {"sigma": 0.0, "clip": 0.1, "batch_size": 50, "dtype": "float64", "fixed_key": 7}
    worker = piped(words, data, tmp_path, **given, **WAYS[name])
    expected = alone(words, data, tmp_path, **given).params
    assert distance(worker.config.strategy.consensus(worker), expected) < 1e-10


def test_pieces_chunks_and_bad_examples_change_nothing(tmp_path, monkeypatch):
    random = np.random.default_rng(0)
    x, y = random.normal(size=(300, 1, 7, 7)), random.integers(0, 4, 300)
    x[::7] = 1e308  # finite, but what becomes of it is not
    data = store(mh.Data((x, y)), tmp_path / "data")
    given = {"sigma": 0.0, "batch_size": 40, "dtype": "float64", "fixed_key": 7, "chunk_mb": 1}
    expected = alone(images, data, tmp_path, **given).params
    monkeypatch.setattr(PoissonPlan, "largest_step", lambda self: 9)  # samples come in pieces
    monkeypatch.setattr(Layerwise, "chunk_for", lambda self, x: 2)
    worker = piped(images, data, tmp_path, **given, **WAYS["one pipeline"])
    assert worker.plan.largest_step() < max(map(len, drawn(worker)))
    found = worker.config.strategy.consensus(worker)
    assert bool(torch.isfinite(found).all())
    assert distance(found, expected) < 1e-10


def dropping():
    """Five layers, three of them with dropout behind; every width is another's."""
    return nn.Sequential(
        nn.Linear(20, 64), nn.Tanh(), nn.Dropout(0.5), nn.Linear(64, 48), nn.Tanh(),
        nn.Dropout(0.5), nn.Linear(48, 40), nn.Tanh(), nn.Dropout(0.5), nn.Linear(40, 16),
        nn.Tanh(), nn.Linear(16, 4),
    )  # fmt: skip


def masked(data, folder, monkeypatch, **given):
    """Train with dropout; returns the worker and, by pipeline, its samples and masks by width."""
    masks, training, passing = {}, [], StageClipping.forward

    def forward(self, x):
        y = nn.functional.dropout(x, self.p, self.training)
        if training:  # a model is tried out before
            masks.setdefault(x.shape[1], []).append((y != 0).detach())
        return y

    def through(self, *rest):
        training.append(self)
        y = passing(self, *rest)
        training.clear()
        return y

    monkeypatch.setattr(nn.Dropout, "forward", forward)
    monkeypatch.setattr(StageClipping, "forward", through)
    folder.mkdir()
    fixed = {"sigma": 0.0, "clip": math.inf, "batch_size": 50, "dtype": "float64"}
    if given["stages"] > 1:
        fixed["cut"] = "parameters"  # in every run the same; by time the layers may change places
    worker = piped(dropping, data, folder, **fixed, **given)
    monkeypatch.undo()
    samples, mine = own(worker), {width: torch.cat(m).numpy() for width, m in masks.items()}
    assert all(len(rows) == sum(map(len, samples)) for rows in mine.values())
    number = worker.config.strategy.follows(worker.rank, worker.config.workers)
    found = {}
    for other, theirs, held in WORLD.allgather((number, samples, mine)):
        found.setdefault(other, (theirs, {}))[1].update(held)
    return worker, found


@pytest.mark.parametrize("name", WAYS)
def test_a_gradient_is_that_of_the_masks_that_were_drawn(blobs, tmp_path, name, monkeypatch):
    """Whatever order the passes come in: a mask drawn again would give another gradient."""
    worker, found = masked(blobs, tmp_path / "run", monkeypatch, **WAYS[name])
    stored = Stored.open(blobs, dtype="float64")
    torch.manual_seed(0)
    model, seen = dropping().double(), dict.fromkeys(found, 0)
    for step in range(STEPS):
        model.zero_grad()
        for number, (samples, masks) in found.items():
            h, y = stored.train.batch(np.array(samples[step], dtype=np.int64))
            rows = slice(seen[number], seen[number] + len(h))
            seen[number] = rows.stop
            for layer in model:
                drops = isinstance(layer, nn.Dropout)
                h = 2 * h * torch.from_numpy(masks[h.shape[1]][rows]) if drops else layer(h)
            (nn.functional.cross_entropy(h, y, reduction="sum") / 50).backward()
        with torch.no_grad():
            for p in model.parameters():
                p -= LR * p.grad
    expected = torch.cat([p.detach().flatten() for p in model.parameters()])
    assert distance(worker.config.strategy.consensus(worker), expected) < 1e-10


@pytest.mark.parametrize("name", WAYS)
def test_masks_are_secret_and_every_example_has_its_own(blobs, tmp_path, name, monkeypatch):
    runs = [
        masked(blobs, tmp_path / str(i), monkeypatch, **WAYS[name], **more)[1]
        for i, more in enumerate([{}, {}, {"fixed_key": 7}, {"fixed_key": 7}])
    ]
    for width in (64, 48, 40):
        rows = [np.concatenate([m[width] for _, m in run.values()]) for run in runs]
        for drawn_ in (rows[0], np.concatenate(rows[:2]), rows[2]):  # of all steps and pipelines
            assert len(np.unique(drawn_, axis=0)) == len(drawn_)
        assert np.array_equal(rows[2], rows[3])  # else nobody could test anything
    assert 0.45 < np.mean(rows[0]) < 0.55


def test_every_stage_pays_for_empty_samples(blobs, tmp_path):
    given = {"batch_size": 1, "micro_batches": 1, "workers": 1, "stages": SIZE}
    worker = piped(deep, blobs, tmp_path, **given)
    assert 0 in map(len, drawn(worker))
    assert worker.step == worker.computation.mechanism.ledger.spent == STEPS
    assert len(list(tmp_path.glob("ledger-*.jsonl"))) == 1  # each rank has a folder of its own


@pytest.fixture(scope="module")
def nothing(tmp_path_factory):
    """200 examples of zeros, whose gradients in `silent` are zero as well."""
    folder = tmp_path_factory.mktemp(f"nothing-{WORLD.rank}")
    x, y = np.zeros((200, 8), np.float32), np.arange(200) % 2
    return store(mh.Data((x, y)), folder / "nothing")


@pytest.mark.parametrize("each", [10, 1])
@pytest.mark.parametrize("name", WAYS)
def test_the_noise_of_all_stages_has_the_variance_it_is_accounted_for(
    nothing, tmp_path, name, each
):
    """Where one example is expected, many samples are empty: over 5 % of the noise is theirs."""
    expected = each * WAYS[name]["workers"]
    given = {"batch_size": expected, "micro_batches": 1, "fixed_key": 7, **WAYS[name]}
    worker = piped(silent, nothing, tmp_path, sigma=1.5, clip=0.5, **given)
    samples = [sample for everyones in worker.comm.gather(own(worker)) for sample in everyones]
    assert each > 1 or samples.count([]) > len(samples) / 20
    torch.manual_seed(0)
    start = torch.cat([p.detach().flatten() for p in silent().parameters()])
    walked = (worker.config.strategy.consensus(worker) - start).double() / LR * expected / 0.5
    assert float(walked.var()) / STEPS == pytest.approx(1.5**2, rel=0.02)
    ends = [spans[-1][1] for spans in worker.replica.spans]
    parts = [part for part in np.split(walked.numpy(), ends[:-1]) if len(part) >= 4_000]
    for part in parts:  # of 8,000 numbers, 10 % are six standard deviations
        assert part.var() / STEPS == pytest.approx(1.5**2, rel=0.1)
    for one, other in pairwise(parts):
        count = min(len(one), len(other))
        assert abs(np.corrcoef(one[:count], other[:count])[0, 1]) < 6 / math.sqrt(count)


def test_a_record_has_no_losses_and_no_times_of_single_passes(blobs, tmp_path):
    worker = piped(deep, blobs, tmp_path, batch_size=50, workers=1, stages=SIZE)
    assert set(worker.training.losses) == {None}
    assert worker.facts["timeline"] == []
    assert worker.replica.activations is None
    sent = worker.comm.meter.costs
    assert not {"activations", "gradients"} & set(sent), sent


def test_a_model_that_cannot_be_clipped_layer_by_layer_is_refused_by_its_layer(blobs, tmp_path):
    def bilinear():
        return nn.Sequential(nn.Linear(20, 8), nn.PReLU(), nn.Linear(8, 4))

    with pytest.raises(ConfigError, match="PReLU is no layer that is known"):
        piped(bilinear, blobs, tmp_path, batch_size=50, workers=SIZE, stages=1)
