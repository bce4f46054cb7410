"""The optimizers are torch's own, bit for bit, and do not bring the compiler along."""

import subprocess
import sys

import pytest
import torch

import manyhands as mh

KINDS = {
    "sgd": (mh.SGD(lr=0.1, momentum=0.9, nesterov=True, weight_decay=0.01), torch.optim.SGD),
    "adam": (mh.Adam(lr=0.01, weight_decay=0.1), torch.optim.Adam),
    "adamw": (mh.AdamW(lr=0.01), torch.optim.AdamW),
}


@pytest.mark.parametrize("name", KINDS)
def test_steps_as_torch_does(name: str) -> None:
    ours, kind = KINDS[name]
    torch.manual_seed(0)
    start, gradients = torch.randn(257), torch.randn(5, 257)
    ends = []
    for build in (ours.build, lambda params: kind(params, **vars(ours))):
        w = torch.nn.Parameter(start.clone())
        optimizer = build([w])
        for gradient in gradients:
            w.grad = gradient.clone()
            optimizer.step()
        assert w.requires_grad
        ends.append(w.detach())
    assert torch.equal(*ends)
    assert not torch.equal(ends[0], start)


def test_follows_a_scheduler() -> None:
    w = torch.nn.Parameter(torch.zeros(1))
    w.grad = torch.ones(1)
    optimizer = mh.SGD(lr=1.0, momentum=0.0).build([w])
    schedule = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.5)
    for _ in range(3):
        optimizer.step()
        schedule.step()
    assert w.item() == -1.75


def test_leaves_the_compiler_out() -> None:
    """Importing torch._dynamo would take as long again as importing torch."""
    program = """
import sys
import torch
import manyhands as mh

w = torch.nn.Parameter(torch.zeros(3))
w.grad = torch.ones(3)
for kind in (mh.SGD, mh.Adam, mh.AdamW):
    optimizer = kind().build([w])
    optimizer.step()
    optimizer.load_state_dict(optimizer.state_dict())
sys.exit("torch._dynamo" in sys.modules)
"""
    subprocess.run([sys.executable, "-c", program], check=True)
