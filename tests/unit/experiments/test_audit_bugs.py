"""Every planted bug is caught by a test of the mechanism, by name; sound code by none.

All workers' samplers, clipping and noise run in this process (`rehearse`), with fixed keys.
"""

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn

from manyhands.config.options import configure
from manyhands.experiments.audit.canary_attack import attack
from manyhands.experiments.audit.simulated_private_run import rehearse
from manyhands.experiments.audit.transcript_checks import Claim, examine
from manyhands.privacy import clipping, keys, layerwise, mechanism_tests
from manyhands.privacy.clipping import PerExample
from manyhands.privacy.gradient_canaries import Canaries
from manyhands.privacy.layer_sums import LayerGradient
from manyhands.privacy.mechanism import Mechanism
from manyhands.privacy.noise import RoundedNormals

pytestmark = pytest.mark.usefixtures("one_thread")

ALPHA, STEPS, RECORDS = 1e-4, 30, 600
VARIANCE, SHAPE = "variance of the noise", "distribution of the noise"
INDEPENDENCE, REPETITION = "independence of the noises", "repetition of the noise"
FREQUENCY, SPREAD = "inclusion frequency", "spread of the inclusions"
NORM, COVERAGE = "norm of a contribution", "coverage of a parameter"
SETTINGS = {
    "sequential": {"strategy": "sequential", "workers": 1, "batch_size": 60},
    "sync": {"strategy": "sync", "workers": 4, "batch_size": 60},
    "distrust": {"strategy": "sync", "workers": 2, "batch_size": 60, "distrust": True},
    "averaging": {"strategy": "averaging", "workers": 2, "batch_size": 30},
    "gossip": {"strategy": "gossip", "workers": 2, "batch_size": 30},
    "server": {"strategy": "server", "workers": 2, "batch_size": 30},
    "masters": {"strategy": "server", "staleness": 0, "workers": 2, "batch_size": 30},
}


def build():
    return nn.Sequential(nn.Linear(12, 16), nn.Tanh(), nn.LayerNorm(16), nn.Linear(16, 4))


class Opaque(nn.Module):
    """A model that only vmap can clip, with a parameter of its own beside its layers."""

    def __init__(self):
        super().__init__()
        self.one, self.two = nn.Linear(12, 16), nn.Linear(16, 4)
        self.scale = nn.Parameter(torch.ones(16))

    def forward(self, x):
        return self.two(torch.tanh(self.one(x)) * self.scale)


def sequences():
    return nn.Sequential(
        nn.Embedding(9, 6), nn.Flatten(), nn.Linear(72, 8), nn.ReLU(), nn.Linear(8, 4)
    )


def images():
    return nn.Sequential(
        nn.Unflatten(1, (1, 3, 4)), nn.Conv2d(1, 4, 2), nn.GroupNorm(2, 4), nn.Flatten(),
        nn.Linear(24, 4),
    )  # fmt: skip


def caught(name, meanwhile=lambda mechanisms: None, build=build, tokens=False, **given):
    """Return the names of the tests that reject a run, and where."""
    config = configure(
        {"private": True, "noise_multiplier": 1.0, "clip": 0.5, "fixed_key": 5, "epochs": 100,
         "max_steps": STEPS, **SETTINGS[name], **given}
    )  # fmt: skip
    random = torch.Generator().manual_seed(0)
    x, y = torch.randn(RECORDS, 12, generator=random), torch.arange(RECORDS) % 4
    x = torch.randint(9, (RECORDS, 12), generator=random) if tokens else x
    transcripts, terms = rehearse(config, build, F.cross_entropy, x, y, meanwhile=meanwhile)
    findings = examine(transcripts, Claim.of(config, terms))
    return {(f.test, f.where) for f in mechanism_tests.rejected(findings, ALPHA)}


def names(found):
    return {test for test, _ in found}


@pytest.mark.parametrize("name", SETTINGS)
def test_sound_code_is_left_in_peace(name):
    assert not caught(name)


@pytest.mark.parametrize(("make", "tokens"), [(Opaque, False), (sequences, True), (images, False)])
def test_sound_code_is_left_in_peace_whatever_the_layers(make, tokens):
    assert not caught("sequential", build=make, tokens=tokens)


WAYS = ("automatic", "per-layer")


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize(
    ("name", "make"), [("sync", build), ("sequential", Opaque), ("masters", images)]
)
def test_sound_code_is_left_in_peace_however_it_clips(name, make, way):
    assert not caught(name, build=make, clipping=way)


def silence(mechanism):
    mechanism._add_noise = lambda vector, deviation: None


@pytest.mark.parametrize(("name", "worker"), [("sync", 2), ("gossip", 1), ("server", 0)])
def test_a_silent_worker_is_caught(name, worker):
    found = caught(name, lambda mechanisms: silence(mechanisms[worker]))
    assert (VARIANCE, f"worker {worker}, all messages") in found
    other = {where for test, where in found if test == VARIANCE and "sum over" not in where}
    assert all(where.startswith(f"worker {worker}") for where in other)


def test_noise_of_rank_0_alone_is_caught():
    found = caught("averaging", lambda mechanisms: [silence(m) for m in mechanisms[1:]])
    assert (VARIANCE, "worker 1, all messages") in found


def test_masters_that_add_no_noise_are_caught():
    found = caught("masters", lambda mechanisms: silence(mechanisms[-1]))
    assert (VARIANCE, "master 2, all messages") in found


@pytest.mark.parametrize("factor", [0.5, 2**-0.5, 1 / 60, 1.1])
def test_noise_of_another_size_than_claimed_is_caught(factor, monkeypatch):
    """Half of it, divided by √P, divided by the batch; or more than the claim, which is no bug of
    privacy but one of accounting."""
    whole = Mechanism._add_noise

    def less(self, vector, deviation):
        drawn = self.noise.draw
        self.noise.draw = lambda count, spread: np.rint(drawn(count, spread) * factor)
        whole(self, vector, deviation)
        self.noise.draw = drawn

    monkeypatch.setattr(Mechanism, "_add_noise", less)
    assert (VARIANCE, "worker 0, all messages") in caught("averaging")


def test_a_smaller_deviation_is_caught():
    def halve(mechanisms):
        for mechanism in mechanisms:
            mechanism.deviation /= 2

    assert VARIANCE in names(caught("sync", halve))


def test_noise_that_is_drawn_again_in_every_step_is_caught(monkeypatch):
    whole = RoundedNormals.draw

    def again(self, count, deviation):
        fresh = RoundedNormals.__new__(RoundedNormals)
        fresh.generator = np.random.Generator(np.random.Philox(key=5))
        return whole(fresh, count, deviation)

    monkeypatch.setattr(RoundedNormals, "draw", again)
    assert INDEPENDENCE in names(caught("sequential"))


def test_noise_of_the_first_step_replayed_once_is_caught():
    def replay(mechanisms):
        noise, kept = mechanisms[0].noise, []
        draw = noise.draw

        def replayed(count, deviation):
            kept.append(draw(count, deviation))
            return kept[0] if len(kept) == 17 else kept[-1]

        noise.draw = replayed

    found = caught("sequential", replay)
    assert found == {(INDEPENDENCE, "worker 0, message 1 and worker 0, message 17")}


def test_one_key_for_the_noise_of_all_workers_is_caught():
    def share(mechanisms):
        for mechanism in mechanisms:
            mechanism.noise = RoundedNormals(b"k" * 32, secure=False)

    assert INDEPENDENCE in names(caught("sync", share))


@pytest.mark.parametrize("name", ["sync", "gossip"])
def test_noise_that_cancels_another_workers_is_caught(name):
    def negate(mechanisms):
        mechanisms[0].noise = RoundedNormals(b"k" * 32, secure=False)
        mechanisms[1].noise = RoundedNormals(b"k" * 32, secure=False)
        draw = mechanisms[1].noise.draw
        mechanisms[1].noise.draw = lambda *given: -draw(*given)

    assert INDEPENDENCE in names(caught(name, negate))


def test_noise_of_another_distribution_is_caught():
    def uniform(mechanisms):
        random = np.random.default_rng(0)
        mechanisms[0].noise.draw = lambda count, deviation: np.rint(
            random.uniform(-1, 1, count) * deviation * 3**0.5
        )

    assert names(caught("sequential", uniform)) == {SHAPE}


def test_noise_that_repeats_along_the_parameters_is_caught():
    def repeat(mechanisms):
        draw = mechanisms[0].noise.draw
        mechanisms[0].noise.draw = lambda count, deviation: np.resize(draw(97, deviation), count)

    assert REPETITION in names(caught("sequential", repeat))


@pytest.mark.parametrize("parameter", ["0.bias", "2.weight", "3.weight"])
def test_noise_left_out_for_one_parameter_is_caught(parameter, monkeypatch):
    whole = Mechanism._add_noise

    def partial(self, vector, deviation):
        start = 0
        for name, values in self.replica.named:
            stop = start + values.numel()
            if name == parameter:
                kept = vector[start:stop].clone()
                whole(self, vector, deviation)
                vector[start:stop] = kept
            start = stop

    monkeypatch.setattr(Mechanism, "_add_noise", partial)
    found = caught("sequential")
    assert (VARIANCE, f"worker 0, {parameter}") in found


@pytest.mark.parametrize("name", ["sync", "averaging"])
def test_noise_that_is_not_on_the_lattice_is_caught(name, monkeypatch):
    """Where messages add up, and where each is for itself: a zero sum would reach other values."""

    def added(self, vector, deviation):
        vector.add_(torch.randn_like(vector), alpha=deviation)

    monkeypatch.setattr(Mechanism, "_add_noise", added)
    torch.manual_seed(0)
    assert "reachability" in names(caught(name))


def test_a_sensitivity_without_the_lattices_part_is_caught():
    def forget(mechanisms):
        lattice = mechanisms[0].lattice
        object.__setattr__(lattice, "sensitivity", 0.5)

    config = configure({"private": True, "noise_multiplier": 1.0, "clip": 0.5, "fixed_key": 5,
                        "epochs": 1, "max_steps": 2, **SETTINGS["sequential"]})  # fmt: skip
    x, y = torch.zeros(RECORDS, 12), torch.zeros(RECORDS, dtype=torch.long)
    (transcript,), terms = rehearse(config, build, F.cross_entropy, x, y, meanwhile=forget)
    transcript.sensitivity = 0.5  # as it would have been recorded
    findings = examine([transcript], Claim.of(config, terms))
    assert "sensitivity" in {f.test for f in mechanism_tests.rejected(findings, ALPHA)}


def sampling(monkeypatch, draw):
    monkeypatch.setattr(keys.PoissonSample, "draw", draw)


def test_a_sampler_that_takes_everyone_is_caught(monkeypatch):
    sampling(monkeypatch, lambda self, count, *step: np.arange(count))
    assert names(caught("sequential")) >= {FREQUENCY, SPREAD}


def test_a_rate_of_twice_the_claim_is_caught(monkeypatch):
    whole = keys.PoissonSample.draw

    def more(self, count, *step):
        return whole(keys.PoissonSample(self.key, 2 * self.rate, secure=False), count, *step)

    sampling(monkeypatch, more)
    assert FREQUENCY in names(caught("averaging"))


def test_shuffled_batches_are_caught(monkeypatch):
    def shuffled(self, count, epoch, step):
        size = round(count * self.rate)
        order = np.random.default_rng(epoch).permutation(count)
        return np.sort(order[step * size : (step + 1) * size])

    sampling(monkeypatch, shuffled)
    found = caught("sequential")
    assert names(found) == {SPREAD}
    assert {where for _, where in found} == {
        "all workers, records in a step", "all workers, steps of a record"
    }  # fmt: skip


def test_one_sample_for_all_steps_is_caught(monkeypatch):
    whole = keys.PoissonSample.draw
    sampling(monkeypatch, lambda self, count, *step: whole(self, count, 1, 1))
    assert (SPREAD, "worker 1, steps of a record") in caught("gossip")


def test_batches_that_use_other_records_than_were_drawn_are_caught(monkeypatch):
    whole = Mechanism.gradient

    def twice(self, x, y, *rest):
        whole(self, torch.cat([x, x[:1]]), torch.cat([y, y[:1]]), *rest)

    monkeypatch.setattr(Mechanism, "gradient", twice)
    assert names(caught("sequential")) == {"records in a sum"}


def test_a_worker_that_works_on_anothers_records_is_caught(monkeypatch):
    monkeypatch.setattr("manyhands.privacy.sampling.PoissonPlan._drawn", lambda self, epoch, step: (
        self.sample.draw(self.examples // 2, epoch, step)))  # fmt: skip
    assert "partition" in names(caught("averaging"))


def test_division_by_the_size_that_was_drawn_is_caught(monkeypatch):
    whole = Mechanism.gradient
    monkeypatch.setattr(
        Mechanism,
        "gradient",
        lambda self, x, y, expected, weight: whole(self, x, y, len(x), weight),
    )
    assert "divisor of a sum" in names(caught("sequential"))


def test_steps_without_noise_for_empty_samples_are_caught(monkeypatch):
    whole = Mechanism.gradient

    def skip(self, x, y, *rest):
        if len(x):
            whole(self, x, y, *rest)

    monkeypatch.setattr(Mechanism, "gradient", skip)
    assert "number of messages" in names(caught("sequential", batch_size=1))


def unclipped_bias(real, layer, a, g, way):
    """A bias that is neither clipped nor counted."""
    part = real(layer, a, g, way)
    if not isinstance(layer, nn.Linear):
        return part

    def add(weights, out):
        part.add(weights, out)
        out[-g.shape[1] :] += (1 - weights) @ g

    return LayerGradient(a.square().sum(1) * g.square().sum(1), add)


def uncounted_layer(real, layer, a, g, way):
    """A layer that is clipped by the others' norm."""
    part = real(layer, a, g, way)
    return part._replace(squares=part.squares * 0) if isinstance(layer, nn.LayerNorm) else part


def unclipped_layer(real, layer, a, g, way):
    """A layer that is counted, and passes whole."""
    part = real(layer, a, g, way)
    if not isinstance(layer, nn.LayerNorm):
        return part
    return part._replace(add=lambda weights, out: part.add(torch.ones_like(weights), out))


def lost_layer(real, layer, a, g, way):
    """A layer whose gradient never arrives: it is counted, and not summed."""
    part = real(layer, a, g, way)
    return part._replace(add=lambda *_: None) if isinstance(layer, nn.LayerNorm) else part


@pytest.mark.parametrize(
    ("bug", "tests"),
    [
        (unclipped_bias, {NORM, COVERAGE}),
        (uncounted_layer, {NORM, COVERAGE}),
        (unclipped_layer, {NORM, COVERAGE}),
        (lost_layer, {COVERAGE}),
    ],
)
def test_a_layer_that_is_clipped_wrongly_is_caught(bug, tests, monkeypatch):
    real = layerwise.layer_gradient
    monkeypatch.setattr(layerwise, "layer_gradient", lambda *given: bug(real, *given))
    assert names(caught("sequential")) >= tests


def test_clipping_left_out_is_caught(monkeypatch):
    for module in (clipping, layerwise):
        monkeypatch.setattr(module, "coefficients", lambda n, *_: (torch.ones_like(n), None))
    assert NORM in names(caught("sequential"))
    assert NORM in names(caught("sequential", build=Opaque))


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("make", [build, Opaque])
def test_another_way_to_clip_than_the_claimed_is_caught(make, way):
    """It could promise the same, but the statement would not be true.

    Gradients are shorter than C: automatic clipping scales them up, flat clipping leaves them.
    """

    def exchange(mechanisms):
        mechanisms[0].clipped._inner.way = "flat"

    assert COVERAGE in names(caught("sequential", exchange, build=make, clipping=way, clip=1e3))


@pytest.mark.parametrize("way", WAYS)
def test_each_bug_is_caught_however_gradients_are_clipped(way, monkeypatch):
    assert VARIANCE in names(caught("sequential", lambda made: silence(made[0]), clipping=way))
    real = clipping.coefficients

    def double(norms, clip, way="flat"):
        return real(norms, 2 * clip, way)

    for module in (clipping, layerwise):
        monkeypatch.setattr(module, "coefficients", double)
    assert NORM in names(caught("sequential", clipping=way))
    assert NORM in names(caught("sequential", build=Opaque, clipping=way))


def test_clipping_of_each_layer_alone_is_caught(monkeypatch):
    def add(self, x, y, clip, out):
        for i in range(len(x)):
            grads = self.gradients(x[i : i + 1], y[i : i + 1], None)
            out += torch.cat([(g * min(1.0, clip / float(g.norm()))).flatten() for g in grads])

    monkeypatch.setattr(PerExample, "add", add)
    assert NORM in names(caught("sequential", build=Opaque))


def test_clipping_of_the_whole_batch_is_caught(monkeypatch):
    def add(self, x, y, clip, out):
        total = torch.cat([g.sum(0).flatten() for g in self.gradients(x, y, None)])
        out += total * min(1.0, clip / float(total.norm()))

    monkeypatch.setattr(PerExample, "add", add)
    assert names(caught("sequential", build=Opaque)) == {"separation of records"}


def test_a_trainable_parameter_outside_the_vector_is_caught():
    def forget(mechanisms):
        recorder = mechanisms[0].observer
        module = mechanisms[0].replica.module
        module.extra = nn.Parameter(torch.zeros(3))
        fresh = type(recorder)(mechanisms[0], recorder.plan, None, 10, 0).transcript
        recorder.transcript.uncovered = fresh.uncovered

    found = caught("sequential", forget)
    assert found == {("coverage of the model", "worker 0, extra")}


def test_a_run_without_a_lattice_is_caught():
    def remove(mechanisms):
        mechanisms[0].observer.transcript.step = 0.0
        mechanisms[0].deviation = 0.0

    assert "noise" in names(caught("sequential", remove))


def guessed(name, meanwhile=lambda mechanisms: None, **given):
    """Return what guessing all canaries refutes: so few can refute a small ε only."""
    config = configure(
        {"private": True, "noise_multiplier": 3.0, "clip": 0.5, "fixed_key": 5, "epochs": 100,
         "max_steps": STEPS, **SETTINGS[name], **given}
    )  # fmt: skip
    random = torch.Generator().manual_seed(0)
    x, y = torch.randn(RECORDS, 12, generator=random), torch.arange(RECORDS) % 4
    transcripts, terms = rehearse(config, build, F.cross_entropy, x, y, meanwhile=meanwhile)
    sizes = [p.numel() for p in build().parameters()]
    canaries = Canaries.plant(sizes, RECORDS, 1000, config.seed)
    assert set(canaries.parameters) == set(range(len(sizes)))  # each weight and bias has one
    return attack(transcripts, Claim.of(config, terms), canaries, ALPHA)


@pytest.mark.parametrize("name", SETTINGS)
def test_canaries_are_guessed_as_the_claim_allows_and_better_without_noise(name):
    sound = guessed(name)
    assert sound.canaries > 300
    assert sound.p > 0.01
    bare = guessed(name, lambda mechanisms: [silence(m) for m in mechanisms])
    assert bare.right > 0.9 * bare.canaries
    assert bare.p < ALPHA
    assert bare.bound > sound.bound
    assert bare.reach >= bare.bound
