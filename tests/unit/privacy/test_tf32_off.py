"""Private runs compute in whole float32, and leave the process's own settings as they were."""

import pytest
import torch

from manyhands.privacy.tf32_off import full_float32
from manyhands.training import start_fit

SMALL = {
    "model": "logistic",
    "data": "blobs",
    "workers": 1,
    "epochs": 1,
    "progress": False,
    "here": True,
}


def state():
    cuda, cudnn = torch.backends.cuda.matmul, torch.backends.cudnn
    return cuda.allow_tf32, cudnn.allow_tf32, torch.get_float32_matmul_precision()


class Watched:
    """Notes with which settings a run computes."""

    def __init__(self):
        self.seen = []

    def on_epoch(self, epoch):
        self.seen.append(state())


@pytest.fixture(params=[False, True], ids=["highest", "high"])
def before(request):
    """Set what the process had before: PyTorch's defaults, or TF32 wherever it can be."""
    was = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("high" if request.param else "highest")
    yield state()
    torch.set_float32_matmul_precision(was)


@pytest.mark.parametrize("private", [False, True])
def test_tf32_is_off_in_private_runs_only_and_restored(private, before, tmp_path):
    watched = Watched()
    given = {"noise_multiplier": 1.0, "private": True} if private else {}
    start_fit.fit(**SMALL, **given, callbacks=[watched], output=str(tmp_path / "run"))
    assert watched.seen == [(False, False, "highest") if private else before]
    assert state() == before


def test_what_failed_restores_it_as_well(before):
    with pytest.raises(KeyError), full_float32():
        raise KeyError
    assert state() == before


@pytest.mark.skipif(not hasattr(torch.backends.cudnn, "conv"), reason="since PyTorch 2.9")
def test_precisions_that_were_chosen_one_by_one_are_restored():
    products = torch.backends.cuda.matmul
    was, products.fp32_precision = products.fp32_precision, "tf32"
    try:
        with full_float32():
            assert products.fp32_precision == torch.backends.cudnn.conv.fp32_precision == "ieee"
        assert products.fp32_precision == torch.backends.cudnn.conv.fp32_precision == "tf32"
    finally:
        products.fp32_precision = was
