"""A model as a vector: views, ties, frozen and unused parameters, equality with plain PyTorch."""

import copy

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.checkpoint import checkpoint

from manyhands.config import run
from manyhands.config.optimizers import SGD, Adam, AdamW
from manyhands.config.options import configure
from manyhands.errors import ConfigError
from manyhands.model import replica as replicas
from manyhands.model.replica import Replica
from manyhands.model.zoo import MODELS, cnn
from manyhands.training.process.model import build_optimizer, decay_filter


@pytest.fixture(autouse=True)
def _seed():
    torch.manual_seed(0)


def batches(count=5, features=6, classes=3):
    return [(torch.randn(8, features), torch.randint(classes, (8,))) for _ in range(count)]


def mlp():
    return nn.Sequential(nn.Linear(6, 5), nn.Tanh(), nn.Linear(5, 3))


class Tied(nn.Module):
    """Two layers that share one weight, one frozen layer, one that no loss reaches."""

    def __init__(self):
        super().__init__()
        self.first = nn.Linear(6, 6)
        self.second = nn.Linear(6, 6)
        self.second.weight = self.first.weight
        self.frozen = nn.Linear(6, 6).requires_grad_(False)
        self.unused = nn.Linear(6, 6)
        self.last = nn.Linear(6, 3)

    def forward(self, x):
        return self.last(torch.tanh(self.second(self.frozen(self.first(x)))))


def test_parameters_and_gradients_are_views():
    replica = Replica(mlp(), F.cross_entropy)
    replica.gradient(*batches(1)[0])
    assert replica.grad.abs().sum() > 0
    replica.params.zero_()
    assert all((p == 0).all() for p in replica.module.parameters())
    flat = torch.cat([p.grad.flatten() for p in replica.module.parameters()])
    assert torch.equal(flat, replica.grad)


def test_layers_hold_weight_and_bias_together_and_cover_the_vector():
    replica = Replica(cnn(), F.nll_loss)
    assert [layer.name for layer in replica.layers] == ["conv1", "conv2", "fc1", "fc2"]
    assert replica.layers[0].start == 0
    assert replica.layers[-1].stop == replica.dim == 9840
    for before, after in zip(replica.layers, replica.layers[1:], strict=False):
        assert before.stop == after.start


@pytest.mark.parametrize("make", [mlp, Tied])
@pytest.mark.parametrize(
    "optimizer",
    [
        SGD(lr=0.1, momentum=0.0),
        SGD(lr=0.1, momentum=0.9, nesterov=True, weight_decay=0.1),
        Adam(lr=0.01),
        AdamW(lr=0.01, weight_decay=0.5),
    ],
)
def test_training_the_vector_is_training_the_module(make, optimizer):
    module = make()
    plain = copy.deepcopy(module)
    data = batches()
    replica = Replica(module, F.cross_entropy)
    flat = build_optimizer(configure({"optimizer": optimizer}), replica, data[0])
    theirs = optimizer.build([p for p in plain.parameters() if p.requires_grad])
    for x, y in data:
        replica.gradient(x, y)
        flat.step()
        theirs.zero_grad()
        F.cross_entropy(plain(x), y).backward()
        theirs.step()
    for (name, ours), reference in zip(module.named_parameters(), plain.parameters(), strict=True):
        assert torch.allclose(ours, reference, rtol=0, atol=1e-6), name


@pytest.mark.parametrize(
    "optimizer",
    [SGD(lr=0.1), SGD(lr=0.1, nesterov=True, weight_decay=0.1), Adam(), AdamW(weight_decay=0.1)],
    ids=repr,
)
def test_an_update_block_by_block_has_the_bits_of_one_of_the_whole(monkeypatch, optimizer):
    ends = []
    for block in (1 << 40, 1000, 37):
        monkeypatch.setattr(replicas, "_BLOCK", block)
        torch.manual_seed(0)
        replica = Replica(cnn(), F.nll_loss)
        x, y = torch.randn(4, 1, 28, 28), torch.randint(10, (4,))
        flat = build_optimizer(configure({"optimizer": optimizer}), replica, (x, y))
        parts = [p for group in flat.param_groups for p in group["params"]]
        assert sum(map(torch.numel, parts)) == replica.dim
        for _ in range(3):
            replica.grad.copy_(torch.randn(replica.dim))
            flat.step()
        ends.append((len(parts), replica.params))
    assert [count for count, _ in ends] == [1, 10, 266]
    assert torch.equal(ends[0][1], ends[1][1])
    assert torch.equal(ends[0][1], ends[2][1])


def test_tied_parameters_stay_tied_and_frozen_ones_stay_outside():
    replica = Replica(Tied(), F.cross_entropy)
    assert replica.module.first.weight is replica.module.second.weight
    names = [name for name, _ in replica.named]
    assert "second.weight" not in names
    assert not any(name.startswith("frozen") for name in names)


def test_an_empty_batch_gives_a_zero_gradient():
    replica = Replica(mlp(), F.cross_entropy)
    replica.gradient(*batches(1)[0])
    loss = replica.gradient(torch.empty(0, 6), torch.empty(0, dtype=torch.long))
    assert loss == (0.0, 0, 0)
    assert not replica.grad.any()


class Odd(nn.Module):
    """Gradients of every kind: sparse, laid out channels last, from inside a checkpoint, none."""

    def __init__(self):
        super().__init__()
        self.words = nn.Embedding(10, 12, sparse=True)
        self.conv = nn.Conv2d(3, 4, 2)
        self.twice = nn.Linear(4, 4)
        self.last = nn.Linear(4, 3)
        self.unused = nn.Linear(2, 2)

    def forward(self, x):
        image = self.words(x).view(-1, 3, 2, 2).contiguous(memory_format=torch.channels_last)
        z = self.conv(image).flatten(1)
        for _ in range(2):
            z = checkpoint(nn.Sequential(self.twice, nn.Tanh()), z, use_reentrant=True)
        return self.last(z)


@pytest.mark.parametrize("large", [0, 1 << 40], ids=["as large", "as small"])
@pytest.mark.parametrize("weight", [1.0, 43 / 128])
def test_the_gradient_is_what_backward_leaves_times_the_weight(monkeypatch, large, weight):
    monkeypatch.setattr(replicas, "_LARGE", large)
    module = Odd()
    plain = copy.deepcopy(module)
    x, y = torch.randint(10, (8,)), torch.randint(3, (8,))
    replica = Replica(module, F.cross_entropy)
    replica.grad.fill_(7)  # what an earlier step left must not shine through
    loss = replica.gradient(x, y, weight)
    expected = F.cross_entropy(plain(x), y)
    expected.backward()
    assert loss.mean == expected.item()
    for (name, ours), theirs in zip(module.named_parameters(), plain.parameters(), strict=True):
        found = torch.zeros_like(theirs) if theirs.grad is None else theirs.grad.to_dense() * weight
        assert torch.equal(ours.grad, found), name
        assert ours.grad.untyped_storage().data_ptr() == replica.grad.untyped_storage().data_ptr()


@pytest.mark.parametrize("watched", [False, True])
def test_who_watches_sees_each_gradient_in_the_vector_at_once(watched):
    replica = Replica(mlp(), F.cross_entropy)
    replica.watched = watched
    seen = []
    for _, p in replica.named:
        p.register_post_accumulate_grad_hook(lambda p: seen.append(replica.grad.clone()))
    replica.gradient(*batches(1)[0], 0.5)
    assert bool(seen[0].any()) == watched
    assert torch.equal(seen[-1] * 0.5, replica.grad) == watched


@pytest.mark.parametrize("large", [0, 1 << 40], ids=["as large", "as small"])
@pytest.mark.parametrize("examples", [1, 8])
def test_a_weighted_batch_in_pieces_is_weighted_once(monkeypatch, large, examples):
    monkeypatch.setattr(replicas, "_LARGE", large)
    replica = Replica(mlp(), F.cross_entropy)
    x, y = (part[:examples] for part in batches(1)[0])
    replica.pieces = 3
    replica.gradient(x, y)
    expected = replica.grad * 0.3
    replica.gradient(x, y, 0.3)
    assert torch.equal(replica.grad, expected)


@pytest.mark.parametrize("pieces", [2, 3, 20])
def test_a_batch_in_pieces_has_the_same_gradient(pieces):
    replica = Replica(mlp().double(), F.cross_entropy)
    x, y = batches(1)[0]
    whole = replica.gradient(x.double(), y)
    expected = replica.grad.clone()
    replica.pieces = pieces
    parted = replica.gradient(x.double(), y)
    assert torch.allclose(replica.grad, expected, rtol=0, atol=1e-14)
    assert parted.mean == pytest.approx(whole.mean, abs=1e-14)
    assert parted[1:] == whole[1:]


def test_what_autocast_computes_in_bfloat16_ends_in_float32():
    replica = Replica(mlp(), F.cross_entropy)
    x, y = batches(1)[0]
    seen = []
    replica.module[0].register_forward_hook(lambda *args: seen.append(args[2].dtype))
    plain = replica.gradient(x, y)
    expected = replica.grad.clone()
    replica.autocast = True
    rounded = replica.gradient(x, y)
    assert seen == [torch.float32, torch.bfloat16]
    assert replica.grad.dtype == torch.float32
    assert 0 < float((replica.grad - expected).abs().max()) < 0.01
    assert rounded.mean == pytest.approx(plain.mean, abs=0.01)


@pytest.mark.parametrize("optimizer", [SGD(lr=0.1, weight_decay=0.5), AdamW(weight_decay=0.5)])
def test_weight_decay_by_name_is_that_of_parameter_groups(optimizer):
    module = mlp()
    plain = copy.deepcopy(module)
    data = batches()
    replica = Replica(module, F.cross_entropy)
    decays = decay_filter("*.bias,2.*", replica)
    flat = build_optimizer(configure({"optimizer": optimizer}), replica, data[0], decays)
    named = dict(plain.named_parameters())
    groups = [
        {"params": [named["0.weight"]]},
        {"params": [named[n] for n in named if n != "0.weight"], "weight_decay": 0.0},
    ]
    theirs = optimizer.build(groups)
    for x, y in data:
        replica.gradient(x, y)
        flat.step()
        theirs.zero_grad()
        F.cross_entropy(plain(x), y).backward()
        theirs.step()
    for (name, ours), reference in zip(module.named_parameters(), plain.parameters(), strict=True):
        assert torch.allclose(ours, reference, rtol=0, atol=1e-6), name


def test_a_name_that_no_parameter_has_is_refused():
    with pytest.raises(ConfigError, match=r"no_decay has '\*norm\*', which is no parameter's name"):
        decay_filter("*.bias,*norm*", Replica(mlp(), F.cross_entropy))


def test_any_other_optimizer_gets_the_named_parameters():
    replica = Replica(mlp(), F.cross_entropy)
    given = configure({"optimizer": lambda params: torch.optim.Adagrad(params, lr=0.1)})
    made = build_optimizer(given, replica, batches(1)[0])
    assert [p.shape for p in made.param_groups[0]["params"]] == [p.shape for _, p in replica.named]


def test_what_is_tried_undisturbed_leaves_no_trace():
    replica = Replica(
        nn.Sequential(nn.Linear(6, 5), nn.BatchNorm1d(5), nn.Dropout(), nn.Linear(5, 3)),
        F.cross_entropy,
    )
    before = copy.deepcopy(replica.module.state_dict())
    random = torch.get_rng_state()
    with replica.undisturbed():
        replica.gradient(*batches(1)[0])
        replica.params.add_(1)
    after = replica.module.state_dict()
    assert all(torch.equal(before[name], after[name]) for name in before)
    assert torch.equal(random, torch.get_rng_state())


def test_nothing_stays_of_a_pass_whose_bytes_were_counted():
    """What stayed would bind the parameters to its stream, and no CUDA graph could be captured."""
    made = Replica(nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2)), F.cross_entropy)

    def accumulator():  # made anew when no graph has one
        weight = made.named[0][1]
        return weight.expand_as(weight).grad_fn.next_functions[0][0]

    def compute(x):
        out = made.module(x)
        accumulator().metadata["of the pass"] = True
        return out

    assert made.kept(compute, torch.randn(3, 4))[0] > 0
    assert "of the pass" not in accumulator().metadata


def test_a_backward_pass_that_fails_leaves_gradients_where_they_belong():
    replica = Replica(mlp(), F.cross_entropy)
    x, y = batches(1)[0]

    def fails(grad):
        raise RuntimeError("no such kernel")

    handle = replica.named[1][1].register_hook(fails)
    with pytest.raises(RuntimeError, match="no such kernel"), replica.undisturbed():
        replica.gradient(x, y)
    handle.remove()
    F.cross_entropy(replica.module(x), y).backward()  # adds, as a stage of a pipeline does
    assert torch.equal(torch.cat([p.grad.flatten() for _, p in replica.named]), replica.grad)
    assert replica.grad.any()


def test_holding_other_parameters_gives_ones_own_back():
    replica = Replica(mlp(), F.cross_entropy)
    own = replica.params.clone()
    with replica.holding(torch.zeros_like(own)):
        assert not replica.params.any()
    assert torch.equal(replica.params, own)


def test_evaluation_is_in_eval_mode_and_training_goes_on_in_train_mode():
    replica = Replica(nn.Sequential(nn.Dropout(0.5), nn.Linear(6, 3)), F.cross_entropy)
    data = batches(1)
    assert replica.evaluate(iter(data)) == replica.evaluate(iter(data))
    assert replica.module.training


def test_a_model_without_trainable_parameters_is_refused():
    with pytest.raises(ConfigError, match="no trainable parameters"):
        Replica(nn.ReLU(), F.cross_entropy)


def test_parameters_of_two_types_are_refused():
    model = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2).double())
    with pytest.raises(ConfigError, match=r"float32.*float64"):
        Replica(model, F.cross_entropy)


def test_the_command_line_knows_the_models_without_importing_them():
    assert set(run.MODELS) == set(MODELS)


@pytest.mark.parametrize("name", sorted(MODELS))
def test_every_model_takes_mnist(name):
    output = MODELS[name]((1, 28, 28), 10)(torch.randn(2, 1, 28, 28))
    assert output.shape == (2, 10)


def test_an_optimizer_that_picks_what_needs_a_gradient_finds_a_stand_in():
    """One who drives stages has no parameters of its own, but an optimizer."""
    replica = Replica(nn.Linear(3, 2), nn.functional.cross_entropy)
    replica.named = []

    def picking(params):
        return torch.optim.Adagrad([p for p in params if p.requires_grad])

    batch = (torch.zeros(1, 3), torch.zeros(1, dtype=torch.int64))
    built = build_optimizer(configure({"optimizer": picking}), replica, batch)
    assert [p.numel() for p in built.param_groups[0]["params"]] == [0]


def test_soft_labels_are_right_where_their_largest_is():
    replica = Replica(nn.Linear(3, 4), F.cross_entropy)
    x, y = torch.randn(4, 3), torch.tensor([0, 1, 2, 3])
    hard = replica.gradient(x, y).correct
    assert replica.gradient(x, F.one_hot(y, 4).float()).correct == hard


def test_a_gradient_written_at_once_is_the_one_that_is_added_up():
    class Part(nn.Module):
        def __init__(self):
            super().__init__()
            self.used, self.unused = nn.Linear(5, 3), nn.Linear(2, 2)

        def forward(self, x):
            return self.used(x)

    torch.manual_seed(0)
    replica = Replica(Part(), nn.functional.cross_entropy)
    x, y = torch.randn(7, 5), torch.from_numpy(np.arange(7) % 3)
    loss = replica.gradient(x, y)
    added = replica.grad.clone()
    replica.grad.fill_(9.0)
    mean, right = replica.write_gradient(x, y)
    assert torch.equal(replica.grad, added)
    assert (float(mean), int(right)) == (loss.mean, loss.correct)
