"""How a model is cut, in which order a stage works, and what pipeline refuses before launching."""

import pytest
import torch
from torch import nn

import manyhands as mh
from manyhands.config.options import configure
from manyhands.model.replica import Replica
from manyhands.model.zoo import MODELS
from manyhands.strategies.model_blocks import blocks
from manyhands.strategies.model_part import draws
from manyhands.strategies.pipeline.schedule import (
    Turn,
    chunks,
    ideal_bubble,
    in_flight,
    largest_chunk,
    schedule,
)
from manyhands.strategies.pipeline.stage import Stage
from manyhands.strategies.pipeline.stage_cuts import cut


def told(turns):
    return "".join(f"{turn.pass_[0].upper()}{turn.micro_batch}" for turn in turns)


def test_gpipe_does_all_forward_passes_first():
    turns = schedule("gpipe", stage=0, stages=3, micro_batches=3)
    assert told(turns) == "F0F1F2B0B1B2"


@pytest.mark.parametrize(
    ("stage", "expected"),
    [(0, "F0F1F2B0F3B1B2B3"), (1, "F0F1B0F2B1F3B2B3"), (2, "F0B0F1B1F2B2F3B3")],
)
def test_1f1b_goes_back_as_soon_as_it_can(stage, expected):
    assert told(schedule("1f1b", stage=stage, stages=3, micro_batches=4)) == expected


@pytest.mark.parametrize("kind", ["gpipe", "1f1b"])
@pytest.mark.parametrize("micro_batches", [0, 1, 2, 7])
def test_every_pass_once_and_never_back_before_forth(kind, micro_batches):
    for stage in range(4):
        turns = schedule(kind, stage=stage, stages=4, micro_batches=micro_batches)
        assert len(set(turns)) == len(turns) == 2 * micro_batches
        for i in range(micro_batches):
            assert turns.index(Turn("forward", i)) < turns.index(Turn("backward", i))
        bound = micro_batches if kind == "gpipe" else min(micro_batches, 4 - stage)
        assert in_flight(turns) == bound


@pytest.mark.parametrize("kind", ["gpipe", "1f1b"])
@pytest.mark.parametrize("stages", [1, 2, 3, 5])
def test_no_schedule_can_deadlock_and_the_bubble_is_that_of_theory(kind, stages):
    """Simulate: each pass takes one unit and starts when its stage and its input are ready."""
    m = 6
    plans = [list(schedule(kind, stage=s, stages=stages, micro_batches=m)) for s in range(stages)]
    done, clocks = {}, [0] * stages
    while any(plans):
        ready = []
        for s, plan in enumerate(plans):
            if not plan:
                continue
            pass_, i = plan[0]
            needs = (s - 1, pass_, i) if pass_ == "forward" else (s + 1, pass_, i)
            outside = needs[0] in (-1, stages)
            if outside or needs in done:
                ready.append((s, max(clocks[s], 0 if outside else done[needs])))
        assert ready, "nobody can go on"
        for s, begin in ready:
            clocks[s] = begin + 1
            done[(s, *plans[s].pop(0))] = clocks[s]
    assert max(clocks) == 2 * (m + stages - 1)
    assert 1 - 2 * m / max(clocks) == pytest.approx(ideal_bubble(stages, m))


def test_chunks_are_near_equal_and_none_has_one_example_alone():
    assert chunks(10, 4) == (2, 3, 2, 3)
    assert chunks(7, 4) == (2, 2, 3)
    assert chunks(3, 4) == (3,)
    assert chunks(2, 4) == (2,)
    assert chunks(1, 4) == (1,)
    assert chunks(0, 4) == ()


@pytest.mark.parametrize("micro_batches", [1, 2, 3, 4, 7])
@pytest.mark.parametrize("examples", [1, 2, 3, 4, 7, 8, 50])
def test_there_is_room_for_the_micro_batches_of_any_batch_and_of_its_pieces(
    examples, micro_batches
):
    rows = largest_chunk(examples, micro_batches)
    most = max(examples, rows * micro_batches)  # a larger batch goes through in pieces of so many
    assert all(max(chunks(n, micro_batches)) <= rows for n in range(1, most + 1))
    assert rows <= max(-(-examples // micro_batches), 3)


@pytest.mark.parametrize("examples", [1, 4, 30, 32, 33])
def test_kernels_are_chosen_for_the_largest_micro_batch(examples):
    at_once = mh.Pipeline(micro_batches=4).at_once(examples)
    assert at_once == max(chunks(examples, 4))


def replica(name="cnn"):
    torch.manual_seed(0)
    return Replica(MODELS[name]((1, 28, 28), 10), nn.functional.cross_entropy)


def images(count=4):
    return torch.randn(count, 1, 28, 28), torch.randint(10, (count,))


def names(parts):
    return [[block.name for block in part] for part in parts]


def cut_at(where, stages, name="cnn"):
    return names(cut(replica(name), stages, where, images(), lambda mine: mine))


def test_what_has_no_parameters_goes_with_the_layer_before():
    found = blocks(replica().module)
    assert [block.name for block in found] == ["conv1", "conv2", "fc1", "fc2"]
    assert [len(block.modules) for block in found] == [3, 6, 2, 2]


def test_stages_made_on_the_spot_are_called_as_their_first_layer():
    """By that name a run that goes on finds its cut again."""

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.body = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4))
            self.head = nn.Linear(4, 2)

        def stages(self):
            return [self.body[:1], nn.Sequential(nn.ReLU(), self.body[1]), nn.Sequential(self.head)]

    model = Net()
    assert [block.name for block in blocks(model)] == ["body.0", "body.1", "head"]
    layers = ("body.0", "body.1", "head")
    mh.Pipeline(stages=3, cut="body.1,head").check_model(layers=layers)


def test_two_stages_are_convolutions_and_fully_connected():
    assert cut_at(None, 2) == [["conv1", "conv2"], ["fc1", "fc2"]]
    assert cut_at(None, 2, "tanh-cnn") == [["conv1", "conv2"], ["fc1", "fc2"]]


def test_a_cut_balances_parameters_or_follows_the_user():
    assert cut_at("parameters", 2) == [["conv1", "conv2"], ["fc1", "fc2"]]
    assert cut_at("conv2,fc2", 3) == [["conv1"], ["conv2", "fc1"], ["fc2"]]
    assert cut_at("parameters", 3, "mlp") == [["fc1"], ["fc2"], ["fc3"]]


def test_a_cut_by_time_is_rank_0s_alone():
    told = [1.0, 1.0, 1.0, 9.0]
    parts = cut(replica(), 2, "time", images(), lambda mine: told)
    assert names(parts) == [["conv1", "conv2", "fc1"], ["fc2"]]
    measured = []
    cut(replica(), 2, "time", images(), lambda mine: measured.extend(mine) or mine)
    assert len(measured) == 4
    assert all(0 < seconds < 10 for seconds in measured)


def test_measuring_changes_nothing():
    whole, batch = replica(), images()
    before, random = whole.params.clone(), torch.get_rng_state()
    cut(whole, 2, "time", batch, lambda mine: mine)
    assert torch.equal(whole.params, before)
    assert not whole.grad.any()
    assert torch.equal(torch.get_rng_state(), random)


class Paired(nn.Linear):
    """Gives two things, and takes two; the second of such layers gives one again."""

    def forward(self, x):
        return (super().forward(x), None) if torch.is_tensor(x) else super().forward(x[0])


def test_no_cut_where_more_than_one_tensor_would_cross():
    model = nn.Sequential(nn.Flatten(), Paired(784, 9), Paired(9, 9), nn.Tanh(), nn.Linear(9, 10))
    whole = Replica(model, nn.functional.cross_entropy)
    assert names(cut(whole, 2, "time", images(), lambda mine: mine)) == [["1"], ["4"]]
    with pytest.raises(mh.ConfigError, match="use 2 stages at most"):
        cut(whole, 3, "time", images(), lambda mine: mine)


class Own(nn.Module):
    """A model of one's own that says how it is to be cut, its layers registered in any order."""

    def __init__(self):
        super().__init__()
        self.head = nn.Linear(8, 10)
        self.body = nn.Linear(784, 8)

    def stages(self):
        return [nn.Flatten(), self.body, self.head]

    def forward(self, x):
        return self.head(self.body(x.flatten(1)))


def test_a_model_may_say_how_it_is_cut():
    whole = Replica(Own(), nn.functional.cross_entropy)
    expected, x = whole.params.clone(), images()[0]
    output = whole.module(x).detach()
    parts = cut(whole, 2, "parameters", images(), lambda mine: mine)
    assert names(parts) == [["body"], ["head"]]
    stage = Stage(whole, parts, 0, [True] * 4)
    assert torch.equal(stage.params, expected[90:])
    assert stage.spans == [[(90, 90 + 6272), (6362, 6370)], [(0, 80), (80, 90)]]
    assert whole.module.head.weight.numel() == 0
    with stage.holding(expected):
        assert torch.equal(whole.module(x), output)
    assert whole.module.head.weight.numel() == 0
    assert torch.equal(stage.params, expected[90:])


def test_a_stage_computes_its_part_and_draws_by_its_key():
    whole, (x, _) = replica(), images()
    parts = cut(whole, 2, "fc1", images(), lambda mine: mine)
    stage = Stage(whole, parts, 0, [True] * 8)
    assert stage.random == {6}  # the dropout
    one, again, other = (stage.compute(x, 0, 0, 0, i) for i in (0, 0, 1))
    assert torch.equal(one, again)
    assert not torch.equal(one, other)


@pytest.mark.parametrize(
    ("module", "random"),
    [(nn.Linear(2, 2), False), (nn.Sequential(nn.ReLU(), nn.Dropout()), True), (Own(), True),
     (nn.RReLU(), True), (nn.LSTM(2, 2, dropout=0.5, num_layers=2), True), (nn.Tanh(), False)],
)  # fmt: skip
def test_modules_that_may_draw_are_known(module, random):
    assert draws(module) is random


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"stages": 0}, "stages is 0; expected 1 or more"),
        ({"micro_batches": 0}, "micro_batches is 0"),
        ({"stage": 2}, "Did you mean 'stages'"),
        ({"order": "1f2b"}, "expected one of gpipe, 1f1b"),
        ({"transport": "tcp"}, "expected one of mpi, rpc"),
        ({"batch_size": 7, "workers": 2}, "2 × 4 micro-batches"),
        ({"cut": "fc1", "stages": 3}, "expected 2 names"),
        ({"transport": "rpc", "micro_batches": 2}, "could not be repeated"),
        ({"transport": "rpc", "order": "gpipe"}, "would be ignored"),
        ({"transport": "rpc", "workers": 2}, "one worker drives"),
        ({"transport": "rpc", "checkpoint_every": "10steps"}, "cannot resume from a checkpoint"),
        ({"kernels": "compile"}, "pipeline cannot use"),
        ({"clip_norm": 1.0}, "no process that knows the length"),
        ({"private": True, "epsilon": 3.0, "transport": "rpc"}, "cannot be private as it is asked"),
        ({"private": True, "epsilon": 3.0, "distrust": True}, "whose stages trust one another"),
        ({"private": True, "epsilon": 3.0, "partition": "by-id"}, "pipeline run needs balanced"),
        ({"slow": "0:2"}, "pipeline would ignore"),
        ({"balance": "speed"}, "balance is 'speed'"),
        ({"masters": 2}, "option of server"),
        ({"stages": 5}, "use 4 stages at most"),
        ({"cut": "fc3"}, "cut names 'fc3'"),
    ],
)
def test_what_cannot_work_is_refused_before_launch(given, message, tmp_path):
    with pytest.raises(mh.ConfigError) as refused:
        mh.fit(strategy="pipeline", output=str(tmp_path / "run"), **given)
    assert message in str(refused.value)
    assert not (tmp_path / "run").exists()


def test_one_pipeline_unless_more_are_asked_for():
    assert configure({"strategy": "pipeline", "stages": 3}).processes == 3
    assert configure({"strategy": "pipeline", "stages": 2, "workers": 2}).processes == 4
    assert configure({"strategy": "pipeline", "stages": 2, "transport": "rpc"}).processes == 3
    assert configure({"strategy": "sequential"}).workers == 1
