"""BatchNorm layers are found, and use the statistics of all workers' examples."""

import pytest
import torch
from torch import nn

from manyhands import randomness
from manyhands.batchnorm import batch_norms, kind
from manyhands.errors import ConfigError
from manyhands.privacy.clipping import refuse


class Derived(nn.BatchNorm2d):
    pass


def test_batchnorm_and_what_derives_from_it_is_found_and_nothing_else():
    model = nn.Sequential(
        nn.BatchNorm1d(3), nn.InstanceNorm2d(3), nn.Sequential(Derived(3), nn.BatchNorm3d(3)),
        nn.GroupNorm(1, 3), nn.LayerNorm(3), nn.SyncBatchNorm(3), nn.InstanceNorm1d(3),
    )  # fmt: skip
    found = [(name, kind(layer)) for name, layer in batch_norms(model)]
    assert found == [
        ("0", "BatchNorm1d"), ("2.0", "Derived"), ("2.1", "BatchNorm3d"), ("5", "SyncBatchNorm")
    ]  # fmt: skip


@pytest.mark.parametrize("compiled", ["script", "trace"])
def test_a_warning_and_a_refusal_name_batchnorm_in_torchscript(compiled):
    model = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4))
    compile_ = {"script": torch.jit.script, "trace": lambda m: torch.jit.trace(m, torch.ones(2, 4))}
    scripted = nn.Sequential(compile_[compiled](model), nn.ReLU())
    named = "statistics of a batch in layer '0.1' (BatchNorm1d)"
    assert list(randomness._batch_statistics(scripted)) == [named]
    with pytest.raises(ConfigError, match=r"layer '0\.1' is BatchNorm1d.*GroupNorm"):
        refuse(scripted)
