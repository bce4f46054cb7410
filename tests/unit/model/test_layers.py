"""A vector as long as the parameters, seen parameter by parameter."""

import torch

from manyhands.model.layers import view_parameters


def test_views_have_the_names_and_the_shapes_and_write_through():
    model = torch.nn.Sequential(torch.nn.Linear(3, 2), torch.nn.ReLU(), torch.nn.Linear(2, 1))
    vector = torch.arange(14.0)  # 11 parameters, and what a loop of your own appends
    views = view_parameters(vector, model.named_parameters())
    assert {name: view.shape for name, view in views.items()} == {
        name: p.shape for name, p in model.named_parameters()
    }
    assert views["2.weight"].tolist() == [[8.0, 9.0]]
    views["0.bias"].zero_()
    assert vector.tolist() == [0, 1, 2, 3, 4, 5, 0, 0, 8, 9, 10, 11, 12, 13]
