"""`join` alone: one worker with the bits of the plain loop, and what it refuses."""

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

import manyhands as mh
from manyhands.comm.single_process import SingleProcess
from manyhands.config.options import configure
from manyhands.errors import ConfigError
from manyhands.strategies import STRATEGIES
from manyhands.training.userloop import sharded_loader
from manyhands.training.userloop.loop import UserLoop

JOINABLE = sorted(name for name, kind in STRATEGIES.items() if kind().supports.join)
X = torch.randn(50, 4, generator=torch.Generator().manual_seed(0))
Y = (X[:, 0] > 0).long()


def network():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 16), nn.BatchNorm1d(16), nn.Dropout(), nn.Linear(16, 2))


def batches():
    return DataLoader(TensorDataset(X, Y), batch_size=7, shuffle=True, drop_last=True)


def sgd(model, **given):
    return torch.optim.SGD(model.parameters(), **{"lr": 0.1, "momentum": 0.9, **given})


@pytest.mark.parametrize("strategy", JOINABLE)
def test_one_worker_has_the_bits_of_the_plain_loop(strategy):
    plain, joined = network(), network()
    optimizer = sgd(plain, weight_decay=0.01)
    torch.manual_seed(1)
    for _ in range(2):
        for x, y in batches():
            optimizer.zero_grad()
            F.cross_entropy(plain(x), y).backward()
            optimizer.step()
    torch.manual_seed(1)
    optimizer = sgd(joined, weight_decay=0.01)
    with mh.join(joined, optimizer, strategy=strategy) as hands:
        assert (hands.rank, hands.size) == (0, 1)
        for _ in range(2):
            for x, y in hands.share(batches()):
                hands.step(F.cross_entropy(joined(x), y))
        with hands.consensus():
            assert hands.sum(3, torch.tensor(0.5, requires_grad=True)) == [3, 0.5]
    for (name, one), other in zip(
        plain.state_dict().items(), joined.state_dict().values(), strict=True
    ):
        assert torch.equal(one, other), name
    storages = {p.untyped_storage().data_ptr() for p in joined.parameters()}
    assert len(storages) == len(list(joined.parameters()))  # each has memory of its own again


def test_what_fits_a_loop_of_ones_own():
    assert JOINABLE == ["averaging", "gossip", "sequential", "sync"]


@pytest.mark.parametrize("strategy", sorted(set(STRATEGIES) - set(JOINABLE)))
def test_other_strategies_point_to_fit(strategy):
    model = network()
    with (
        pytest.raises(ConfigError, match=rf"{strategy}.*manyhands\.fit"),
        mh.join(model, sgd(model), strategy=strategy),
    ):
        pass


@pytest.mark.parametrize("given", [{"private": True}, {"privacy": mh.Privacy(epsilon=3)}])
def test_a_loop_of_your_own_is_never_private(given):
    model = network()
    told = r"a loop of your own cannot be private.*use manyhands\.fit.*privacy=manyhands\.Privacy"
    with pytest.raises(ConfigError, match=told), mh.join(model, sgd(model), **given):
        pass


@pytest.mark.parametrize(
    ("given", "reason"),
    [
        ({"epochs": 3}, "your own loop"),
        ({"topology": "ring"}, "an option of gossip, not of sync"),
        (
            {"strategy": "averaging", "period": 1, "period_unit": "epochs"},
            "period_unit is 'epochs'",
        ),
        ({"strategy": "gossip", "asynchronous": True}, r"asynchronous=True.*manyhands\.fit"),
        ({"strategy": "synch"}, "Did you mean 'sync'"),
        ({"allreduced": "ring"}, "unknown option 'allreduced'"),
    ],
)
def test_options_that_do_not_fit(given, reason):
    model = network()
    with pytest.raises(ConfigError, match=reason), mh.join(model, sgd(model), **given):
        pass


@pytest.mark.parametrize(
    ("model", "optimizer", "reason"),
    [
        (network, sgd, "model is a function"),
        (network(), sgd, "optimizer is a function"),
        (network(), torch.optim.LBFGS(network().parameters()), "closure"),
        (network(), sgd(network()), "parameters that the model does not"),
        (network().half(), sgd(network()), "expected float32 or float64"),
    ],
)
def test_models_and_optimizers_that_do_not_fit(model, optimizer, reason):
    with pytest.raises(ConfigError, match=reason), mh.join(model, optimizer):
        pass


def test_a_model_that_is_moved_on_the_way_is_refused():
    model = network()
    with mh.join(model, sgd(model)) as hands:
        home = model[0].weight.data
        model[0].weight.data = home.clone()
        loss = model(X).sum()
        with pytest.raises(ConfigError, match=r"0\.weight is not where it was"):
            hands.step(loss)
        model[0].weight.data = home


def test_a_step_without_a_gradient_is_refused():
    model = network()
    with (
        pytest.raises(ConfigError, match="no parameter has a gradient"),
        mh.join(model, sgd(model)) as hands,
    ):
        hands.step()


def test_sparse_gradients_are_refused():
    model = nn.Embedding(5, 3, sparse=True)
    with (
        pytest.raises(ConfigError, match="weight has a sparse gradient"),
        mh.join(model, torch.optim.SGD(model.parameters(), lr=0.1)) as hands,
    ):
        hands.step(model(torch.tensor([1, 2])).sum())


def test_batches_of_different_sizes_are_not_gathered_for_one_step():
    """A worker's part of 7 counts otherwise than its part of 3: no one weight fits both."""
    model = network()
    loop = UserLoop(model, sgd(model), configure({"strategy": "sync", "workers": 4}), Third())
    for worth in (sharded_loader.BatchWeight(2 / 7, 7, 2), sharded_loader.BatchWeight(1 / 3, 3, 1)):
        loop.tell(worth)
        model(X).sum().backward()
    with pytest.raises(ConfigError, match=r"2 batches of different sizes .*drop_last=True"):
        loop.do(None, None)


def test_a_loader_that_divides_the_data_itself_is_refused():
    data = TensorDataset(X, Y)
    sampler = DistributedSampler(data, num_replicas=2, rank=0)
    with pytest.raises(ConfigError, match="DistributedSampler"):
        sharded_loader.ShardedLoader(
            DataLoader(data, sampler=sampler),
            SingleProcess(),
            evaluation=False,
            tell=lambda worth: None,
        )


class Third(SingleProcess):
    """Worker 2 of 4, whose fellows do the same."""

    def __init__(self):
        super().__init__()
        self.rank, self.size = 2, 4

    def gather(self, value):
        return [value] * 4


def test_everything_in_a_batch_that_has_one_entry_per_example_is_cut():
    batch = {
        "x": torch.arange(8),
        "pair": (np.arange(8.0), [torch.arange(16).view(8, 2)]),
        "names": list("abcdefgh"),
        "scale": torch.tensor(3.0),
        "of all": torch.arange(5),
        "epoch": 4,
    }
    told = []
    (part,) = sharded_loader.ShardedLoader([batch], Third(), evaluation=False, tell=told.append)
    assert part["x"].tolist() == [4, 5]
    assert part["pair"][0].tolist() == [4.0, 5.0]
    assert part["pair"][1][0].tolist() == [[8, 9], [10, 11]]
    assert part["names"] == ["e", "f"]
    assert (part["scale"], part["epoch"], len(part["of all"])) == (3.0, 4, 5)
    assert told == [(0.25, 8, 2)]


def test_a_batch_without_tensors_is_refused():
    with pytest.raises(ConfigError, match="a str without tensors"):
        list(
            sharded_loader.ShardedLoader(
                ["text"], Third(), evaluation=False, tell=lambda worth: None
            )
        )


def test_loaders_that_differ_between_workers_are_refused():
    group = Third()
    group.gather = lambda value: [value, [None, None, "another"], value, value]
    with pytest.raises(ConfigError, match="the loader of worker 1 gives other batches"):
        list(sharded_loader.ShardedLoader([X], group, evaluation=False, tell=lambda worth: None))
