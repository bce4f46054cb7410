"""Checkpoints of a loop of one's own: its position comes back as it was, and its own only."""

from collections import Counter, OrderedDict

import pytest
import torch
from torch import nn
from torch.optim import lr_scheduler

import manyhands as mh
from manyhands.comm.single_process import SingleProcess
from manyhands.config.options import configure
from manyhands.errors import ConfigError, DataError
from manyhands.training.userloop import checkpoint
from manyhands.training.userloop.loop import UserLoop
from manyhands.worker.checkpoint.folder_layout import FOLDER, steps_in

X = torch.randn(8, 4, generator=torch.Generator().manual_seed(0))


def made():
    torch.manual_seed(0)
    model = nn.Linear(4, 2)
    return model, torch.optim.SGD(model.parameters(), lr=1.0, momentum=0.9)


def walk(hands, model, steps):
    for _ in range(steps):
        hands.step(model(X).square().mean())


def sequential(optimizer):
    warm = lr_scheduler.LinearLR(optimizer, 0.1, total_iters=2)
    fall = lr_scheduler.MultiStepLR(optimizer, [1, 3])
    return lr_scheduler.SequentialLR(optimizer, [warm, fall], [2])


SCHEDULERS = {
    "MultiStepLR": lambda optimizer: lr_scheduler.MultiStepLR(optimizer, [2, 4, 4]),
    "OneCycleLR": lambda optimizer: lr_scheduler.OneCycleLR(optimizer, 1.0, total_steps=8),
    "SequentialLR": sequential,
    "CyclicLR": lambda optimizer: lr_scheduler.CyclicLR(optimizer, 0.1, 1.0, step_size_up=3),
    "LambdaLR": lambda optimizer: lr_scheduler.LambdaLR(optimizer, lambda n: 0.5**n),
}


@pytest.mark.parametrize("name", SCHEDULERS)
@pytest.mark.parametrize("stop", [1, 3])
def test_a_scheduler_goes_on_as_if_never_interrupted(name, stop, tmp_path):
    def run(folder, until):
        model, optimizer = made()
        scheduler = SCHEDULERS[name](optimizer)
        rates = []
        with mh.join(model, optimizer) as hands:
            position = hands.load(folder)
            if position:
                scheduler.load_state_dict(position["scheduler"])
            for epoch in range(position.get("epoch", 0), until):
                group = optimizer.param_groups[0]
                rates.append((group["lr"], group["momentum"]))
                walk(hands, model, 2)
                scheduler.step()
                hands.save(folder, epoch=epoch + 1, scheduler=scheduler.state_dict())
        return rates, model.weight, scheduler.state_dict()

    rates, weight, state = run(tmp_path / "whole", 7)
    assert len(set(rates)) > 2
    before, _, _ = run(tmp_path / "parts", stop)
    after, resumed, again = run(tmp_path / "parts", 7)
    assert before + after == rates
    assert torch.equal(resumed, weight)
    assert again == state
    if name == "MultiStepLR":
        assert type(again["milestones"]) is Counter


@pytest.mark.parametrize(
    "position",
    [
        {"epoch": 3, "best": float("inf"), "name": "é", "done": True, "nothing": None},
        {"by number": {1: "a", 2.5: {"b": (1, [2, (3,)])}}, "texts": {"1": 1}},
        {"=": {"=": "dict", "of": []}, "mixed": {1: 1, "1": 2, None: 3, (1, 2): 4}},
    ],
)
def test_a_position_comes_back_as_it_was(position, tmp_path):
    model, optimizer = made()
    with mh.join(model, optimizer) as hands:
        hands.save(tmp_path, **position)
        found = hands.load(tmp_path)
    assert found == position
    assert repr(found) == repr(position)  # kinds too: 1 is 1.0 is True for ==


@pytest.mark.parametrize(
    ("value", "told"),
    [
        ({"best": [torch.zeros(1)]}, r"state\['best'\]\[0\] is a Tensor.*x\.tolist\(\)"),
        (OrderedDict(a=1), r"state is a OrderedDict.*dict\(x\)"),
        ({frozenset(): 1}, "a key of state is a frozenset"),
        ({1, 2}, "state is a set"),
    ],
)
def test_what_would_not_come_back_is_refused(value, told, tmp_path):
    model, optimizer = made()
    with mh.join(model, optimizer) as hands, pytest.raises(ConfigError, match=told):
        hands.save(tmp_path, state=value)
    assert not (tmp_path / FOLDER).exists()


def test_a_loop_does_not_save_where_another_went_further(tmp_path):
    model, optimizer = made()
    with mh.join(model, optimizer) as hands:
        for _ in range(3):
            walk(hands, model, 2)
            hands.save(tmp_path)
    assert steps_in(tmp_path) == [4, 6]

    model, optimizer = made()
    with mh.join(model, optimizer) as hands:
        walk(hands, model, 1)
        with pytest.raises(ConfigError, match=r"step 6, past this loop's step 1.*hands\.load\("):
            hands.save(tmp_path)
        assert steps_in(tmp_path) == [4, 6]
        hands.save(tmp_path / "another")
        hands.load(tmp_path)
        walk(hands, model, 1)
        hands.save(tmp_path)
    assert steps_in(tmp_path) == [6, 7]


def test_a_loop_that_goes_back_forgets_what_came_after(tmp_path):
    best, last = tmp_path / "best", tmp_path / "last"
    model, optimizer = made()
    with mh.join(model, optimizer) as hands:
        walk(hands, model, 1)
        hands.save(best, epoch=1)
        walk(hands, model, 3)
        hands.save(last, epoch=4)
        assert hands.load(best) == {"epoch": 1}
        walk(hands, model, 1)
        hands.save(last, epoch=2)
        assert steps_in(last) == [2]
        assert hands.load(last) == {"epoch": 2}


def test_to_keep_none_is_refused(tmp_path):
    model, optimizer = made()
    with mh.join(model, optimizer) as hands, pytest.raises(ConfigError, match="keep"):
        hands.save(tmp_path, keep=0)


def test_a_model_that_is_not_the_workers_own_is_neither_saved_nor_loaded(tmp_path):
    model, optimizer = made()
    loop = UserLoop(model, optimizer, configure({"workers": 1}), SingleProcess())
    checkpoint.save(loop, tmp_path, {}, keep=1)
    optimizer.param_groups[0]["lr"] = 0.25
    with loop.replica.holding(torch.zeros_like(loop.params)):
        for act in (
            lambda: checkpoint.load(loop, tmp_path, print),
            lambda: checkpoint.save(loop, tmp_path, {}, keep=1),
        ):
            with pytest.raises(ConfigError, match=r"inside consensus\(\)"):
                act()
    assert optimizer.param_groups[0]["lr"] == 0.25


def test_two_loops_do_not_save_into_one_folder(tmp_path, caplog):
    model, optimizer = made()
    with mh.join(model, optimizer) as hands:
        walk(hands, model, 1)
        hands.save(tmp_path)
        other, own = made()
        with mh.join(other, own) as second:
            assert second.load(tmp_path) == {}
            assert "in use by process" in caplog.text
            walk(second, other, 1)
            with pytest.raises(ConfigError, match=r"in use by process \d+ on"):
                second.save(tmp_path)
        assert steps_in(tmp_path) == [1]
        walk(hands, model, 1)
        hands.save(tmp_path)
    assert not (tmp_path / ".lock").exists()
    with mh.join(*made()) as hands:
        hands.load(tmp_path)
        hands.save(tmp_path)


def test_a_folder_of_checkpoints_is_free_after_a_loop_that_failed(tmp_path):
    def fail():
        with mh.join(*made()) as hands:
            hands.save(tmp_path)
            raise RuntimeError("the loop's own")

    with pytest.raises(RuntimeError, match="the loop's own"):
        fail()
    assert not (tmp_path / ".lock").exists()


def test_other_files_beside_the_checkpoints_of_a_loop_stay(tmp_path):
    (tmp_path / "notes.txt").write_text("years of work")
    (tmp_path / FOLDER / "step-mine").mkdir(parents=True)
    model, optimizer = made()
    with mh.join(model, optimizer) as hands:
        for _ in range(4):
            walk(hands, model, 1)
            hands.save(tmp_path, keep=1)
    assert (tmp_path / "notes.txt").read_text() == "years of work"
    assert sorted(p.name for p in (tmp_path / FOLDER).iterdir()) == ["step-00000004", "step-mine"]


def test_where_all_checkpoints_are_damaged_a_loop_is_told_how(tmp_path):
    model, optimizer = made()
    with mh.join(model, optimizer) as hands:
        hands.save(tmp_path)
        (path,) = tmp_path.glob("checkpoints/step-*/rank-0.json")
        path.write_text("{}")
        with pytest.raises(DataError, match=r"is damaged: .*rank-0\.json is damaged: its checksum"):
            hands.load(tmp_path)
