"""A pipeline computes what the unsplit model computes, wherever it is cut and however it flows."""

import pytest
import torch
from mpi4py import MPI
from safetensors.torch import load_file
from torch import nn
from training import distance, record, same_everywhere, train

import manyhands as mh
from manyhands.data import Plan, Stored, store
from manyhands.model.dropout import Masks, public_key
from manyhands.model.zoo import cnn
from manyhands.strategies.pipeline.schedule import chunks

WORLD = MPI.COMM_WORLD
SIZE = WORLD.size
STEPS = 6


def deep():
    """Five layers with parameters: enough for five stages; dropout between them."""
    return nn.Sequential(
        nn.Linear(20, 24), nn.Tanh(), nn.Dropout(0.3), nn.Linear(24, 20), nn.Tanh(),
        nn.Dropout(0.4), nn.Linear(20, 16), nn.Tanh(), nn.Linear(16, 12), nn.Tanh(),
        nn.Dropout(0.2), nn.Linear(12, 4),
    )  # fmt: skip


def certain():
    """The same without dropout."""
    return nn.Sequential(*(layer for layer in deep() if not isinstance(layer, nn.Dropout)))


class Unused(nn.Module):
    """A layer with a parameter that no loss reaches: weight decay must pass it by."""

    def __init__(self):
        super().__init__()
        self.used, self.unused = nn.Linear(24, 16), nn.Linear(3, 3)

    def forward(self, x):
        return self.used(x).tanh()


def partly_frozen():
    frozen = nn.Linear(24, 24)
    frozen.requires_grad_(False)
    return nn.Sequential(
        nn.Linear(20, 24), nn.Tanh(), frozen, nn.Tanh(), Unused(), nn.Linear(16, 4)
    )


def tied():
    one = nn.Linear(20, 20)
    return nn.Sequential(one, nn.Tanh(), nn.Linear(20, 20), one, nn.Linear(20, 4))


class Crossed(nn.Module):
    """Data takes more than one way through it."""

    def __init__(self):
        super().__init__()
        self.one, self.two = nn.Linear(20, 4), nn.Linear(20, 4)

    def forward(self, x):
        return self.one(x) + self.two(x)


def normed():
    return nn.Sequential(
        nn.Linear(20, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Linear(16, 8), nn.BatchNorm1d(8),
        nn.Linear(8, 4),
    )  # fmt: skip


class Scale(nn.Module):
    """What it multiplies by is another module's buffer."""

    def __init__(self, factor):
        super().__init__()
        self.factor = [factor]

    def forward(self, x):
        return x * self.factor[0]


class Floor(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("least", torch.full((16,), -torch.inf))

    def forward(self, x):
        return torch.maximum(x, self.least)


class Buffered(nn.Module):
    """A buffer that no stage holds, and one of infinities."""

    def __init__(self):
        super().__init__()
        self.register_buffer("factor", torch.full((20,), 0.5))
        self.one, self.norm, self.floor = nn.Linear(20, 16), nn.BatchNorm1d(16), Floor()
        self.two = nn.Linear(16, 4)

    def stages(self):
        return [Scale(self.factor), self.one, self.norm, self.floor, self.two]

    def forward(self, x):
        for stage in self.stages():
            x = stage(x)
        return x


def piped(model, data, place, comm=WORLD, **given):
    """Train a pipeline over all of `comm`; returns the whole model's parameters."""
    place.mkdir(exist_ok=True)
    options = {"strategy": "pipeline", "stages": comm.size, "cut": "parameters", "workers": 1,
               "batch_size": 50, "max_steps": STEPS, "lr": 0.1, "momentum": 0.9}  # fmt: skip
    worker = train(model, data, comm, place, **{**options, **given})
    return worker, worker.config.strategy.consensus(worker)


def unsplit(data, micro_batches):
    """Train `deep` over the same micro-batches with nothing of ours but plan and masks."""
    stored = Stored.open(data, dtype="float32")
    plan = Plan("balanced", examples=len(stored.train), batch_size=50, rank=0, size=1, seed=0)
    torch.manual_seed(0)
    model = deep()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    masks = Masks(public_key(0), torch.device("cpu"))
    for step, share in zip(range(STEPS), plan.epoch(1), strict=False):
        x, y = stored.train.batch(share.indices)
        masks.begin(step, share.indices)
        optimizer.zero_grad()
        sizes = chunks(len(x), micro_batches)
        for i, (h, target) in enumerate(zip(x.split(sizes), y.split(sizes), strict=True)):
            first = sum(sizes[:i])
            with masks.forward(slice(first, first + len(h))):
                h = model(h)
            loss = nn.functional.cross_entropy(h, target)
            (loss * (len(target) / len(x))).backward()
        optimizer.step()
    return torch.cat([p.detach().reshape(-1) for p in model.parameters()])


@pytest.mark.parametrize("order", ["gpipe", "1f1b"])
@pytest.mark.parametrize("micro_batches", [1, 3, 8])
def test_stages_equal_the_unsplit_model_bit_for_bit(blobs, tmp_path, order, micro_batches):
    options = {"micro_batches": micro_batches, "order": order}
    _, split = piped(deep, blobs, tmp_path / "split", **options)
    assert torch.equal(split, unsplit(blobs, micro_batches))


@pytest.mark.parametrize("model", [certain, deep])
def test_one_micro_batch_equals_sequential(blobs, tmp_path, model):
    _, split = piped(model, blobs, tmp_path / "split", micro_batches=1)
    alone = _sequential(model, blobs, tmp_path / "alone")
    assert torch.equal(split, alone.params)


def test_micro_batches_equal_sequential_up_to_rounding(blobs, tmp_path):
    """Also where the last batch has fewer examples than there are micro-batches."""
    given = {"dtype": "float64", "batch_size": 666, "max_steps": 8}  # 2000 = 3 * 666 + 2
    _, split = piped(certain, blobs, tmp_path / "split", micro_batches=7, **given)
    alone = _sequential(certain, blobs, tmp_path / "alone", **given)
    assert distance(split, alone.params) < 1e-12


@pytest.mark.parametrize(("batch_size", "limit"), [(4, 20), (7, 20), (8, 19)])
def test_batches_of_few_examples_equal_sequential(blobs, tmp_path, batch_size, limit):
    """A batch of three is one micro-batch, larger than any of a batch of eight."""
    given = {"dtype": "float64", "batch_size": batch_size, "limit": limit, "epochs": 2}
    _, split = piped(certain, blobs, tmp_path / "split", micro_batches=4, **given)
    alone = _sequential(certain, blobs, tmp_path / "alone", **given)
    assert distance(split, alone.params) < 1e-12


@pytest.mark.parametrize("optimizer", ["sgd", "adamw"])
def test_several_pipelines_equal_sequential(blobs, tmp_path, optimizer):
    """Every stage has one twin in each pipeline, and the twins stay equal."""
    given = {"dtype": "float64", "optimizer": optimizer, "weight_decay": 0.1, "batch_size": 51}
    given |= {"momentum": None} if optimizer == "adamw" else {}
    stages = 2 if SIZE % 2 == 0 else 1
    worker, split = piped(certain, blobs, tmp_path / "split", stages=stages,
                          workers=SIZE // stages, micro_batches=3, **given)  # fmt: skip
    alone = _sequential(certain, blobs, tmp_path / "alone", **given)
    assert distance(split, alone.params) < 1e-12
    stage = worker.rank // worker.config.workers
    twins = [v for s, v in worker.comm.gather([stage, worker.params.tolist()]) if s == stage]
    assert all(twin == twins[0] for twin in twins)


@pytest.mark.parametrize("model", [deep, cnn])
def test_with_dropout_any_cut_equals_sequential(blobs, tmp_path, model):
    """Whatever the pipelines, the stages and the micro-batches; the bundled CNN as it is."""
    pipelines = 2 if SIZE % 2 == 0 else 1
    data = blobs if model is deep else store("mnist", tmp_path / "mnist")
    given = {"dtype": "float64", "batch_size": 64}
    alone = _sequential(model, data, tmp_path / "alone", **given)
    if model is cnn and SIZE // pipelines > 4:
        pytest.skip("the CNN has four layers to cut")
    _, split = piped(model, data, tmp_path / "split", workers=pipelines,
                     stages=SIZE // pipelines, micro_batches=3, **given)  # fmt: skip
    assert distance(split, alone.params) < 1e-12


def test_a_process_holds_its_own_stage_and_nothing_else(blobs, tmp_path):
    worker, whole = piped(deep, blobs, tmp_path / "split")
    held = sum(p.numel() for p in worker.replica.judged.parameters())
    states = worker.optimizer.state.values()
    assert held == worker.params.numel() == sum(s["momentum_buffer"].numel() for s in states)
    assert sum(worker.comm.gather(held)) == len(whole) == worker.replica.dim
    assert same_everywhere(worker, whole)


def test_the_saved_model_has_every_stage_and_its_statistics(blobs, folder):
    """BatchNorm's statistics and counters come from the process that has them."""
    stages = min(SIZE, 3) if SIZE < 4 else 2 - SIZE % 2
    given = {"strategy": "pipeline", "micro_batches": 2, "epochs": 2, "batch_size": 50}
    given["validation"] = 0.1
    found = record(normed, blobs, folder, stages=stages, workers=SIZE // stages,
                   **given)  # fmt: skip
    saved = load_file(f"{folder}/model.safetensors")
    model = normed()
    model.load_state_dict(load_file(f"{folder}/best.safetensors"))
    model.load_state_dict(saved)
    stored = Stored.open(blobs, dtype="float32")
    x, y = next(iter(stored.test.slices(0, len(stored.test), len(stored.test))))
    right = (model.eval()(x).argmax(1) == y).double().mean()
    assert found["result"]["accuracy"] == pytest.approx(float(right))
    batches = found["result"]["steps"] * 2
    assert int(saved["1.num_batches_tracked"]) == int(saved["4.num_batches_tracked"]) == batches
    assert bool((saved["4.running_mean"] != 0).all())


@pytest.mark.parametrize("strategy", ["pipeline", "tensor", "sync"])
def test_buffers_stay_what_they_are(blobs, folder, strategy):
    """Also where a short last batch of two has to do for BatchNorm: 2000 = 6 · 333 + 2."""
    parts = 1 if SIZE % 2 or strategy == "sync" else 2
    given = {"pipeline": {"stages": parts, "micro_batches": 4}, "tensor": {"slices": parts}}
    record(Buffered, blobs, folder, strategy=strategy, workers=SIZE // parts, epochs=1,
           batch_size=333 if SIZE // parts == 1 else 50, **given.get(strategy, {}))  # fmt: skip
    saved = load_file(f"{folder}/model.safetensors")
    assert saved["factor"].tolist() == [0.5] * 20
    assert saved["floor.least"].tolist() == [-torch.inf] * 16
    assert bool((saved["norm.running_mean"] != 0).all())


def test_the_record_tells_what_each_stage_did(blobs, folder):
    found = record(deep, blobs, folder, strategy="pipeline", stages=SIZE, workers=1, epochs=1,
                   batch_size=50, micro_batches=5, order="1f1b")  # fmt: skip
    facts = found["strategy"]
    assert [row["stage"] for row in facts["stages"]] == list(range(SIZE))
    assert sum(row["parameters"] for row in facts["stages"]) == found["model"]["parameters"]
    assert [row["in_flight"] for row in facts["stages"]] == [min(SIZE - s, 5) for s in range(SIZE)]
    assert facts["ideal_bubble"] == pytest.approx((SIZE - 1) / (5 + SIZE - 1), abs=1e-6)
    passes = [(e["stage"], e["what"], e["micro_batch"]) for e in facts["timeline"]]
    for stage in range(SIZE):
        for what in ("forward", "backward"):
            assert [p[2] for p in passes if p[:2] == (stage, what)] == list(range(5))
    assert [w["role"] for w in found["workers"]] == ["worker"] + ["stage"] * (SIZE - 1)
    assert found["result"]["examples"] == 2000
    sent = [w["operations"].get("activations", {"messages": 0}) for w in found["workers"]]
    assert [cost["messages"] for cost in sent] == [40 * 5] * (SIZE - 1) + [0]


def test_frozen_and_unused_parameters_are_trained_rightly(blobs, tmp_path):
    given = {"dtype": "float64", "weight_decay": 0.1}
    comm = WORLD.Split(WORLD.rank // 3)  # the model has no more than three layers to train
    _, split = piped(partly_frozen, blobs, tmp_path / "split", comm, **given)
    comm.Free()
    alone = _sequential(partly_frozen, blobs, tmp_path / "alone", **given)
    assert distance(split, alone.params) < 1e-12


@pytest.mark.parametrize(("model", "why"), [(tied, "share a weight"), (Crossed, "a method stages")])
def test_models_that_cannot_be_cut_are_refused_by_all(blobs, tmp_path, model, why):
    with pytest.raises(mh.ConfigError, match=why):
        piped(model, blobs, tmp_path / "split", stages=2)


def _sequential(model, data, place, **given):
    place.mkdir()
    options = {"strategy": "sequential", "batch_size": 50, "max_steps": STEPS, "lr": 0.1,
               "momentum": 0.9, "workers": 1}  # fmt: skip
    return train(model, data, MPI.COMM_SELF, place, **{**options, **given})


@pytest.mark.skipif(SIZE < 2, reason="a driver and at least one part")
def test_by_rpc_the_same_bits(blobs, tmp_path):
    given = {"stages": SIZE - 1, "transport": "rpc"}
    worker, split = piped(deep, blobs, tmp_path / "split", **given)
    assert torch.equal(split, unsplit(blobs, 1))
    assert (worker.params.numel() == 0) == (worker.rank == 0)


@pytest.mark.skipif(SIZE < 2, reason="a driver and at least one part")
def test_the_record_of_a_run_by_rpc(blobs, folder):
    found = record(normed, blobs, folder, strategy="pipeline", stages=SIZE - 1, workers=1,
                   transport="rpc", epochs=1, batch_size=50)  # fmt: skip
    rows = found["strategy"]["stages"]
    assert [row["stage"] for row in rows] == [None, *range(SIZE - 1)]
    assert all(row["compute"] > 0 and row["bytes"]["activations"] > 0 for row in rows[1:])
    assert found["result"]["examples"] == 2000
    whats = {e["what"] for e in found["strategy"]["timeline"] if e["stage"] == 0}
    assert whats == {"forward", "backward", "update"}
