"""What is cut of a layer, and what tensor refuses before launching."""

from types import SimpleNamespace

import pytest
import torch
from torch import nn

import manyhands as mh
from manyhands.config.options import configure
from manyhands.model.replica import Replica
from manyhands.model.zoo import MODELS
from manyhands.strategies.tensor.slicing import Inputs, Outputs, Slice, Team, sliced


def team(rank, size):
    return Team(SimpleNamespace(rank=rank, size=size), "auto")


def kinds(model, size=2):
    children, _ = sliced(list(enumerate(model)), team(0, size))
    return [
        type(module) for _, module in children if isinstance(module, nn.Linear | Outputs | Inputs)
    ]


def test_layers_are_cut_in_pairs_and_the_odd_one_by_its_inputs():
    assert kinds(MODELS["cnn"]((1, 28, 28), 10)) == [Outputs, Inputs]
    assert kinds(MODELS["mlp"]((784,), 10)) == [Outputs, Inputs, Inputs]
    assert kinds(MODELS["mlp6"]((784,), 10)) == [Outputs, Inputs] * 3


def test_nothing_but_elementwise_functions_lies_within_a_pair():
    for between in (nn.Dropout(), nn.LayerNorm(8), nn.Softmax(1), nn.BatchNorm1d(8)):
        model = nn.Sequential(nn.Linear(9, 8), nn.ReLU(), between, nn.Linear(8, 8))
        assert kinds(model) == [Inputs, Inputs]


def test_what_is_narrower_than_the_team_stays_whole():
    assert kinds(nn.Sequential(nn.Linear(9, 8), nn.Softmax(1), nn.Linear(8, 4)), 9) == [
        Inputs,
        nn.Linear,
    ]


def test_layers_whose_weight_a_hook_makes_stay_whole():
    normed = nn.utils.spectral_norm(nn.Linear(9, 8))
    watched = nn.Linear(8, 8)
    watched.register_forward_hook(lambda *_: None)
    model = nn.Sequential(normed, nn.ReLU(), watched, nn.ReLU(), nn.Linear(8, 4))
    assert kinds(model) == [nn.Linear, nn.Linear, Inputs]


def test_what_a_team_holds_is_summed_alike_whatever_else_a_slice_has():
    """By an algorithm whose sums follow the place in the vector, as a ring's do."""

    class Twins:
        size = 3

        def allreduce(self, vector, algorithm):
            vector += torch.arange(len(vector))

    found = []
    for rank in range(3):
        whole = Replica(MODELS["cnn"]((1, 28, 28), 10), nn.functional.cross_entropy)
        mine = Slice(whole, team(rank, 3), [True] * len(whole.named))
        mine.grad.zero_()
        mine.allreduce(Twins(), "auto")
        held = zip(mine.held, mine._grads, strict=True)
        found.append(torch.cat([g.flatten() for h, g in held if h.axis is None]))
        assert len(mine.grad) - len(found[-1]) == sum(len(view) for view in mine.apart[1])
    assert len({len(v) for v in found}) == 1
    assert torch.equal(found[0], found[1])
    assert torch.equal(found[0], found[2])


@pytest.mark.parametrize("size", [1, 2, 3, 7])
@pytest.mark.parametrize("name", ["cnn", "mlp6"])
def test_the_slices_together_are_the_model(name, size):
    def built():
        torch.manual_seed(0)
        return Replica(MODELS[name]((1, 28, 28), 10), nn.functional.cross_entropy)

    whole = built().params.clone()
    together = torch.zeros_like(whole)
    for rank in range(size):
        before = together.clone()
        part = Slice(built(), team(rank, size), [True] * len(built().named))
        assert part.dim == len(whole)
        part.give(together)
        added = together != before
        assert not (before[added] != 0).any()  # nobody answers for what another one holds
    assert torch.equal(together, whole)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"slices": 0}, "slices is 0; expected 1 or more"),
        ({"slice": 2}, "Did you mean 'slices'"),
        ({"stages": 2}, "option of pipeline"),
        ({"clip_norm": 1.0}, "nobody with the whole gradient"),
        ({"slow": "0:2"}, "wait for each other"),
        ({"kernels": "compile"}, "tensor cannot use"),
        ({"private": True, "epsilon": 3.0}, "cannot be private"),
        ({"balance": "speed"}, "balance is 'speed'"),
        ({"comm": "torch:gloo"}, "does not run over"),
        ({"batch_size": 3, "workers": 4}, "at least one example per worker"),
    ],
)
def test_what_cannot_work_is_refused_before_launch(given, message, tmp_path):
    with pytest.raises(mh.ConfigError) as refused:
        mh.fit(strategy="tensor", output=str(tmp_path / "run"), **given)
    assert message in str(refused.value)
    assert not (tmp_path / "run").exists()


def test_optimizers_that_look_at_whole_layers_are_refused():
    with pytest.raises(mh.ConfigError, match="every number alone"):
        configure({"strategy": "tensor", "optimizer": torch.optim.Adagrad})


def test_one_team_unless_more_are_asked_for():
    assert configure({"strategy": "tensor", "slices": 3}).processes == 3
    assert configure({"strategy": "tensor", "slices": 2, "workers": 2}).processes == 4
