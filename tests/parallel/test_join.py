"""`join`: a loop of one's own ends with many workers where it ends with one."""

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.nn.utils import parameters_to_vector
from torch.utils.data import (
    DataLoader,
    Dataset,
    TensorDataset,
    WeightedRandomSampler,
    random_split,
)

import manyhands as mh
from manyhands.comm.mpi import MPICommunicator
from manyhands.comm.single_process import SingleProcess
from manyhands.config.options import configure
from manyhands.errors import ConfigError
from manyhands.training.userloop import checkpoint
from manyhands.training.userloop.loop import UserLoop

PLAIN = {"lr": 0.1}
OUTER = {"strategy": "averaging", "outer_optimizer": "sgd", "outer_lr": 1.0, "outer_momentum": 0.0}


def smooth(seed=0):
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 3)).double()


def examples(count):
    made = torch.Generator().manual_seed(1)
    x = torch.randn(count, 6, generator=made, dtype=torch.float64)
    return x, x[:, :3].argmax(1)


def weights(model):
    return parameters_to_vector(model.parameters()).detach()


def spread(comm, vector):
    """Return how far the workers' vectors are apart."""
    everyones = np.array(comm.allgather(vector.numpy()))
    return float(np.abs(everyones - everyones[0]).max())


class Batches:
    """Batches of a loop without a DataLoader, drawn from torch's own generator."""

    def __init__(self, x, y, size):
        self.x, self.y, self.size = x, y, size

    def __iter__(self):
        for indices in torch.randperm(len(self.x)).split(self.size):
            yield {"x": self.x[indices], "y": self.y[indices], "names": ["a"] * len(indices)}


def loader(kind, count=65, batch_size=16):
    x, y = examples(count)
    if kind == "iterable":
        return Batches(x, y, batch_size)
    given = {"batch_size": batch_size}
    if kind == "weighted":
        given["sampler"] = WeightedRandomSampler(torch.linspace(1, 2, count), count)
    elif kind == "generator":
        given |= {"shuffle": True, "generator": torch.Generator().manual_seed(7)}
    elif kind == "processes":
        given |= {"shuffle": True, "num_workers": 1}
    else:
        given["shuffle"] = True
    return DataLoader(TensorDataset(x, y), **given)


def pair(batch):
    return (batch["x"], batch["y"]) if isinstance(batch, dict) else batch


def alone(make, batches, epochs=2):
    """The loop in plain PyTorch."""
    model = smooth()
    optimizer = make(model.parameters())
    for _ in range(epochs):
        for batch in batches:
            x, y = pair(batch)
            optimizer.zero_grad()
            F.cross_entropy(model(x), y).backward()
            optimizer.step()
    return weights(model)


def joined(make, batches, epochs=2, **given):
    model = smooth()
    optimizer = make(model.parameters())
    with mh.join(model, optimizer, **given) as hands:
        shared = hands.share(batches)
        for _ in range(epochs):
            for batch in shared:
                x, y = pair(batch)
                hands.step(F.cross_entropy(model(x), y))
    return weights(model)


@dataclass(frozen=True)
class Mine(mh.Strategy):
    """Sums a copy of the gradient, of one length or the other."""

    short: bool = False

    def step(self, worker, batch):
        whole = worker.gradient(batch)
        gradient = whole[: len(worker.params)].clone() if self.short else whole.clone()
        worker.allreduce(gradient)
        worker.update(gradient)

    def consensus(self, worker):
        return worker.params


@dataclass(frozen=True)
class Apart(mh.Strategy):
    """Workers train alone; their mean is what is saved."""

    def step(self, worker, batch):
        worker.update(worker.gradient(batch.alone()))

    def consensus(self, worker):
        mean = worker.params / worker.comm.size
        worker.comm.allreduce(mean)
        return mean


@pytest.mark.parametrize("short", [False, True])
def test_update_takes_a_gradient_that_is_not_the_worker_s_own_memory(short, comm):
    def make(params):
        return torch.optim.SGD(params, lr=0.1)

    end = joined(make, loader("shuffled"), strategy=Mine(short))
    assert float((end - alone(make, loader("shuffled"))).abs().max()) < 1e-10
    assert spread(comm, end) == 0


def test_a_gradient_of_another_length_is_refused(comm):
    model = smooth()
    loop = UserLoop(
        model, torch.optim.SGD(model.parameters(), lr=0.1),
        configure({"strategy": "sync", "workers": comm.size, "batch_size": comm.size}),
        MPICommunicator(comm),
    )  # fmt: skip
    dim = loop.replica.dim
    with pytest.raises(ConfigError, match=rf"of 3 numbers; expected {dim} as in params"):
        loop.update(torch.zeros(3, dtype=torch.float64))
    loop.leave()


def test_a_strategy_without_an_end_of_its_own_ends_at_its_consensus(comm):
    end = joined(lambda p: torch.optim.SGD(p, lr=0.1), loader("shuffled"), strategy=Apart())
    assert spread(comm, end) == 0


# 65 examples in batches of 16: the last batch has one, so that most workers have nothing to do.
@pytest.mark.parametrize("kind", ["shuffled", "generator", "weighted", "iterable", "processes"])
def test_any_loader_ends_where_the_plain_loop_ends(kind, comm):
    def make(params):
        return torch.optim.AdamW(params, lr=0.01)

    end = joined(make, loader(kind))
    assert float((end - alone(make, loader(kind))).abs().max()) < 1e-10
    assert spread(comm, end) == 0


@pytest.mark.parametrize(
    "given",
    [
        {"strategy": "sync"},
        {"strategy": "sync", "allreduce": "ring"},
        {"strategy": "averaging", "period": 1},
        {**OUTER, "period": 1},
        {"strategy": "gossip", "topology": "complete"},
    ],
)
def test_any_strategy_ends_where_the_plain_loop_ends(given, comm):
    def make(params):
        return torch.optim.SGD(params, lr=0.1)

    end = joined(make, loader("shuffled"), **given)
    assert float((end - alone(make, loader("shuffled"))).abs().max()) < 1e-10
    assert spread(comm, end) == 0


@pytest.mark.parametrize(
    "given",
    [
        {"strategy": "averaging"},
        {"strategy": "averaging", "period": 3, "average_optimizer": "average"},
        {**OUTER, "period": 3, "outer_delay": 2, "outer_fragments": 2, "outer_precision": "int8"},
        {"strategy": "averaging", "exchange_share": 0.5},
        {"strategy": "gossip", "overlap": True},
    ],
)
def test_workers_that_differ_on_the_way_end_with_the_same_bits(given, comm):
    def make(params):
        return torch.optim.Adam(params, lr=0.01)

    assert spread(comm, joined(make, loader("shuffled"), **given)) == 0


def test_clipping_and_accumulating_are_those_of_the_plain_loop():
    model = smooth()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    for i, (x, y) in enumerate(loader("shuffled", count=64), 1):
        (F.cross_entropy(model(x), y) / 2).backward()
        if i % 2 == 0:
            nn.utils.clip_grad_norm_(model.parameters(), 0.01)
            optimizer.step()
            optimizer.zero_grad()
    expected = weights(model)
    model = smooth()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    with mh.join(model, optimizer) as hands:
        for i, (x, y) in enumerate(hands.share(loader("shuffled", count=64)), 1):
            (F.cross_entropy(model(x), y) / 2).backward()
            if i % 2 == 0:
                hands.step(clip_norm=0.01)
    assert float((weights(model) - expected).abs().max()) < 1e-10


class Branches(nn.Module):
    """One layer per sign of the first feature, and one that nothing reaches."""

    def __init__(self):
        super().__init__()
        self.positive, self.negative, self.idle = (nn.Linear(6, 3) for _ in range(3))

    def forward(self, x):
        up = x[:, 0] > 0
        parts = [(self.positive, up), (self.negative, ~up)]
        y = x.new_zeros(len(x), 3)
        for layer, chosen in parts:
            if chosen.any():
                y[chosen] = layer(x[chosen])
        return y


def test_a_layer_that_only_some_or_no_workers_reach_is_stepped_as_in_the_plain_loop():
    x, y = examples(12)
    order = x[:, 0].argsort()  # the first worker sees one sign only, the last the other
    ends = []
    for many in (False, True):
        torch.manual_seed(0)
        model = Branches().double()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, weight_decay=0.1)
        batches = [(x[order], y[order])] * 5
        if many:
            with mh.join(model, optimizer) as hands:
                for inputs, targets in hands.share(batches):
                    hands.step(F.cross_entropy(model(inputs), targets))
        else:
            for inputs, targets in batches:
                optimizer.zero_grad()
                F.cross_entropy(model(inputs), targets).backward()
                optimizer.step()
        ends.append(weights(model))
    assert float((ends[0] - ends[1]).abs().max()) < 1e-10


def test_data_divided_by_the_user_counts_by_its_examples(rank, size):
    x, y = examples(30)
    edges = np.cumsum([0, *range(1, size), 30 - size * (size - 1) // 2])  # 1, 2, … and the rest
    mine = slice(edges[rank], edges[rank + 1])
    one, many = smooth(), smooth()
    optimizer = torch.optim.SGD(one.parameters(), lr=0.1)
    for _ in range(4):
        optimizer.zero_grad()
        F.cross_entropy(one(x), y).backward()
        optimizer.step()
    with mh.join(many, torch.optim.SGD(many.parameters(), lr=0.1)) as hands:
        for _ in range(4):
            hands.step(F.cross_entropy(many(x[mine]), y[mine]), examples=len(x[mine]))
    assert float((weights(one) - weights(many)).abs().max()) < 1e-10


def test_fractions_of_examples_count_as_such(rank, size):
    """Averages of what all have alike stay where they are."""
    model = smooth()
    before = weights(model)
    strategy = mh.Averaging(period=1, period_unit="steps")
    with mh.join(model, torch.optim.SGD(model.parameters(), lr=0.0), strategy=strategy) as hands:
        x, y = examples(6)
        for part in (0.75, 0.25):
            hands.step(F.cross_entropy(model(x), y), examples=part)
    assert float((weights(model) - before).abs().max()) < 1e-12


def test_all_begin_with_what_worker_0_has(rank, comm):
    model = nn.Sequential(smooth(seed=rank), nn.BatchNorm1d(3, dtype=torch.float64))
    model[1].running_mean.fill_(rank + 1.0)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    x, y = examples(20)
    F.cross_entropy(model(x + rank), y).backward()
    optimizer.step()
    at_first = comm.bcast(weights(model).numpy())
    with mh.join(model, optimizer):
        assert np.array_equal(weights(model).numpy(), at_first)
        everything = [t.flatten().double() for t in model.state_dict().values()]
        everything += [s["exp_avg"].flatten() for s in optimizer.state.values()]
        assert spread(comm, torch.cat(everything)) == 0


class Counted(Dataset):
    def __init__(self, count):
        self.x, self.y = examples(count)
        self.asked = 0

    def __len__(self):
        return len(self.x)

    def __getitem__(self, i):
        self.asked += 1
        return self.x[i], self.y[i]


def test_a_worker_loads_its_part_only_and_judges_each_example_once(size):
    data = Counted(65)
    model = smooth()
    with mh.join(model, torch.optim.SGD(model.parameters(), lr=0.1)) as hands:
        seen = 0
        for x, _ in hands.share(DataLoader(data, batch_size=16), evaluation=True):
            assert len(x)
            seen += len(x)
        assert seen == data.asked
        assert hands.sum(seen) == 65
        assert hands.sum(1, hands.rank) == [size, size * (size - 1) / 2]


def test_consensus_is_the_average_and_changes_nobody(rank, size, comm):
    model = smooth()
    with mh.join(model, torch.optim.SGD(model.parameters(), lr=0.1), strategy="averaging") as hands:
        x, y = examples(64)
        mine = slice(rank * 64 // size, (rank + 1) * 64 // size)
        for _ in range(3):
            hands.step(F.cross_entropy(model(x[mine]), y[mine]))
        own = weights(model).clone()
        mean = comm.allreduce(own.numpy()) / size
        with hands.consensus():
            assert float((weights(model) - torch.from_numpy(mean)).abs().max()) < 1e-12
            if size > 1:
                with pytest.raises(ConfigError, match=r"inside consensus\(\)"):
                    hands.step(F.cross_entropy(model(x), y))
            model.zero_grad()
        assert torch.equal(weights(model), own)
        assert size == 1 or spread(comm, own) > 0
    assert float((weights(model) - torch.from_numpy(mean)).abs().max()) < 1e-12


def test_dropout_differs_between_workers_but_the_order_of_the_data_does_not(comm, size):
    model = smooth()
    with mh.join(model, torch.optim.SGD(model.parameters(), lr=0.1)) as hands:
        for _ in range(2):
            firsts = [x[:0] for x, _ in hands.share(loader("shuffled"))]
            assert len(firsts) == 5
            mask = F.dropout(torch.ones(200))
            assert size == 1 or spread(comm, mask) > 0


def test_workers_that_bring_different_things_are_refused_everywhere(rank, size):
    if size == 1:
        return
    model = nn.Linear(3 + rank, 2)
    with (
        pytest.raises(
            ConfigError, match=r"weight has the shape \(2, 3\) on rank 0, and \(2, 4\) on rank 1"
        ),
        mh.join(model, torch.optim.SGD(model.parameters(), lr=0.1)),
    ):
        pass
    model = nn.Linear(3, 2)
    with (
        pytest.raises(ConfigError, match="the learning rates of worker 1"),
        mh.join(model, torch.optim.SGD(model.parameters(), lr=0.1 * (rank + 1))),
    ):
        pass


@pytest.mark.parametrize("drawn", ["data", "split"])
def test_data_that_was_drawn_differently_is_refused_everywhere(drawn, rank, size):
    if size == 1:
        return
    torch.manual_seed(rank)
    x, y = examples(40)
    data = TensorDataset(torch.randn(40, 6), y) if drawn == "data" else TensorDataset(x, y)
    if drawn == "split":
        data, _ = random_split(data, [30, 10])
    model = smooth()
    with mh.join(model, torch.optim.SGD(model.parameters(), lr=0.1)) as hands:
        batches = iter(hands.share(DataLoader(data, 8, shuffle=True)))
        with pytest.raises(ConfigError, match="the loader of worker 1 gives other batches"):
            next(batches)


def epochs_of(folder, model, optimizer, until, strategy, **given):
    """Train up to epoch `until`, from wherever the checkpoints in `folder` are."""
    scheduler = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.7)
    with mh.join(model, optimizer, strategy=strategy, **given) as hands:
        position = hands.load(folder)
        if position:
            scheduler.load_state_dict(position["scheduler"])
        batches = hands.share(loader("shuffled", count=80))
        for epoch in range(position.get("epoch", 0), until):
            for x, y in batches:
                hands.step(F.cross_entropy(model(F.dropout(x, 0.1)), y))
            scheduler.step()
            hands.save(folder, epoch=epoch + 1, scheduler=scheduler.state_dict())
    return weights(model)


@pytest.mark.parametrize(
    "given",
    [
        {"strategy": "sync"},
        {"strategy": "averaging", "period": 4},
        {"strategy": "averaging", "period": 7, "outer_optimizer": "sgd", "outer_delay": 6},
        {"strategy": "gossip"},
    ],
    ids=str,
)
def test_a_loop_that_was_interrupted_ends_with_the_bits_of_one_that_was_not(given, comm, tmp_path):
    """Weights, moments, rates, the order of the data and dropout's masks: all go on."""
    folder = Path(comm.bcast(str(tmp_path)))

    def run(name, until):
        model = nn.Sequential(smooth(), nn.BatchNorm1d(3, dtype=torch.float64))
        optimizer = torch.optim.AdamW(model.parameters(), lr=0.05)
        torch.manual_seed(3)
        return epochs_of(folder / name, model, optimizer, until, **given)

    whole = run("whole", 4)
    run("parts", 2)
    torch.manual_seed(99)  # a new process would be anywhere
    assert torch.equal(run("parts", 4), whole)
    assert torch.equal(run("parts", 4), whole)  # and there is nothing left to do
    assert len(list((folder / "parts" / "checkpoints").iterdir())) == 2


def test_what_a_checkpoint_is_not_of_is_refused_everywhere(comm, size, tmp_path):
    folder = Path(comm.bcast(str(tmp_path)))

    def joined_to(act, model=None, strategy="averaging"):
        model = model or smooth()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        with mh.join(model, optimizer, strategy=strategy) as hands:
            x, y = examples(8)
            hands.step(F.cross_entropy(model(x), y))
            return refused(lambda: act(hands))

    def refused(act):
        try:
            act()
        except ConfigError as error:
            return str(error)
        return ""

    assert joined_to(lambda hands: hands.save(folder, epoch=1)) == ""
    assert "of another strategy" in joined_to(lambda hands: hands.load(folder), strategy="sync")
    other = nn.Sequential(nn.Linear(6, 3), nn.Tanh()).double()
    assert "of another model" in joined_to(lambda hands: hands.load(folder), model=other)
    told = joined_to(lambda hands: hands.save(folder, position=torch.zeros(1)))
    assert "cannot be kept as JSON" in told

    def inside(act):
        def within(hands):
            with hands.consensus():
                act(hands)

        return size == 1 or "inside consensus()" in joined_to(within)

    assert inside(lambda hands: hands.save(folder))
    assert inside(lambda hands: hands.load(folder))


def test_sync_goes_on_with_another_number_of_workers(comm, rank, size, tmp_path):
    folder = Path(comm.bcast(str(tmp_path)))

    def make(params):
        return torch.optim.SGD(params, lr=0.1)

    model = smooth()
    if rank == 0:  # one worker begins
        loop = UserLoop(model, make(model.parameters()), configure({"workers": 1}), SingleProcess())
        x, y = examples(65)
        for _ in range(3):
            F.cross_entropy(model(x), y).backward()
            loop.do(None, None)
        checkpoint.save(loop, folder, {"epoch": 1}, keep=1)
        loop.leave()
    comm.barrier()
    begun = comm.bcast(weights(model).numpy())
    model = smooth(seed=5)
    with mh.join(model, make(model.parameters())) as hands:
        assert hands.load(folder) == {"epoch": 1}
        assert np.array_equal(weights(model).numpy(), begun)
        for x, y in hands.share(loader("shuffled")):
            hands.step(F.cross_entropy(model(x), y))
    assert spread(comm, weights(model)) == 0
