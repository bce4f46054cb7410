"""What data that is read when it is due cannot be combined with, refused before workers start."""

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import manyhands as mh
from manyhands.errors import ConfigError

DATASET = TensorDataset(torch.randn(40, 6), torch.arange(40) % 2)


def loader(**options):
    return DataLoader(DATASET, **{"batch_size": 10, "shuffle": True, **options})


@pytest.mark.parametrize(
    ("data", "options", "message"),
    [
        (loader(), {"batch_size": 20}, "batch_size is 20, but the DataLoader has batch_size=10"),
        (loader(), {"private": True, "epsilon": 3.0}, "private is .*time of reading"),
        (loader(), {"strategy": "pipeline"}, "strategy is 'pipeline', but .*read each batch"),
        (loader(), {"strategy": "tensor"}, "strategy is 'tensor', but .*read each batch"),
        (loader(), {"partition": "stratified"}, "partition is 'stratified', but .*its labels"),
        (loader(), {"limit": 20}, "limit is 20, but .*Subset"),
        (loader(num_workers=1), {"strategy": "hogwild"}, "num_workers=1, and workers that share"),
        (loader(num_workers=1), {"balance": "speed"}, "balance is 'speed', but its 1 processes"),
        (loader(shuffle=False), {"validation": 0.1}, "the loader's SequentialSampler decides"),
        (loader(shuffle=False), {"partition": "random-sampling"}, "SequentialSampler decides"),
        (loader(drop_last=True), {"shares": (0.6, 0.4)}, "the loader drops its last batch, so"),
        (loader(), {"stream": 100}, "stream is given"),
        (loader(), {"model": "mlp"}, r"number of classes is not known .*classes=10"),
    ],
)
def test_the_option_is_named(data, options, message, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("manyhands.launch.launcher.launch", None)  # nobody starts
    with pytest.raises(ConfigError, match=message):
        mh.fit(options.pop("model", lambda: nn.Linear(6, 2)), data, **{"workers": 2, **options})
    assert list(tmp_path.iterdir()) == []
