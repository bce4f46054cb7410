"""Our optimizers take torch's steps, to the bit, without torch's compiler."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import asdict

import pytest
import torch

import manyhands as mh
from manyhands.config.optimizers import SGD, Adam, AdamW

CHOSEN = (
    SGD(momentum=0.0),
    SGD(lr=0.1, momentum=0.9, weight_decay=0.01),
    SGD(nesterov=True),
    Adam(),
    Adam(weight_decay=0.1),
    AdamW(),
)


def _trained(build, steps=20, needs_grad=True):
    random = torch.Generator().manual_seed(0)
    params = [torch.nn.Parameter(torch.randn(n, generator=random), needs_grad) for n in (1000, 7)]
    optimizer = build([{"params": params[:1]}, {"params": params[1:], "weight_decay": 0.0}])
    for _ in range(steps):
        for p in params:
            p.grad = torch.randn(p.shape, generator=random)
        optimizer.step()
    return params, optimizer


@pytest.mark.parametrize("needs_grad", [True, False])  # a slice of the vector needs none
@pytest.mark.parametrize("chosen", CHOSEN, ids=repr)
def test_the_bits_are_torchs(chosen, needs_grad):
    theirs = {"sgd": torch.optim.SGD, "adam": torch.optim.Adam, "adamw": torch.optim.AdamW}
    mine, built = _trained(chosen.build, needs_grad=needs_grad)
    expected, reference = _trained(lambda p: theirs[chosen.name](p, **asdict(chosen)))
    assert all(torch.equal(a, b) for a, b in zip(mine, expected, strict=True))
    assert isinstance(built, theirs[chosen.name])
    assert built.state_dict().keys() == reference.state_dict().keys()
    # None lets torch ask, at every step, where the parameters are; on a CPU that is False.
    assert repr(built) == repr(reference).replace("foreach: None", "foreach: False")
    for a, b in zip(built.state.values(), reference.state.values(), strict=True):
        assert a.keys() == b.keys()
        assert all(torch.equal(torch.as_tensor(a[n]), torch.as_tensor(b[n])) for n in a)


@pytest.mark.parametrize("missing", [0, 1])
def test_a_parameter_without_gradient_stays(missing):
    ways = [SGD(weight_decay=0.1).build, lambda p: torch.optim.SGD(p, 0.02, 0.9, weight_decay=0.1)]
    ends = []
    for build in ways:
        params, optimizer = _trained(build, steps=3, needs_grad=False)
        before = params[missing].clone()
        params[missing].grad = None
        optimizer.step()
        assert torch.equal(params[missing], before)
        ends.append(params[1 - missing])
    assert torch.equal(*ends)  # stepped once, not by both


@pytest.mark.parametrize("needs_grad", [True, False])
def test_hooks_still_run(needs_grad):
    _, optimizer = _trained(SGD().build, steps=2, needs_grad=needs_grad)
    heard = []
    optimizer.register_step_pre_hook(lambda *_: heard.append("before"))
    optimizer.register_step_post_hook(lambda *_: heard.append("after"))
    optimizer.step()
    assert heard == ["before", "after"]


@pytest.mark.parametrize("needs_grad", [True, False])
def test_steps_that_are_profiled_have_their_name(needs_grad):
    _, optimizer = _trained(SGD().build, steps=2, needs_grad=needs_grad)
    with torch.profiler.profile() as profiled:
        optimizer.step()
    assert "Optimizer.step#SGD.step" in {event.key for event in profiled.key_averages()}


def test_follows_a_scheduler():
    w = torch.nn.Parameter(torch.zeros(1))
    w.grad = torch.ones(1)
    optimizer = SGD(lr=1.0, momentum=0.0).build([w])
    schedule = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.5)
    for _ in range(3):
        optimizer.step()
        schedule.step()
    assert w.item() == -1.75
    assert w.requires_grad


def test_a_worker_never_imports_the_compiler():
    code = """
import sys, torch
import manyhands.training.process.worker_main
from manyhands.config.optimizers import OPTIMIZERS
p = torch.nn.Parameter(torch.ones(3))
for kind in OPTIMIZERS.values():
    optimizer = kind().build([p])
    p.square().sum().backward()
    optimizer.step()
    optimizer.zero_grad()
    optimizer.load_state_dict(optimizer.state_dict())
needless = {"torch._dynamo", "sympy", "matplotlib", "jinja2", "rich", "cyclopts"}
print(*sorted(needless & sys.modules.keys()))
"""
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert ran.stdout.strip() == ""


def test_nesterov_needs_a_momentum():
    with pytest.raises(mh.ConfigError, match="momentum is 0"):
        mh.SGD(momentum=0.0, nesterov=True)
