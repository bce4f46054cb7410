"""Private runs as a user meets them: nothing leaks, the ledger holds, the audit fires on bugs."""

import json
import signal
import subprocess
import sys

import cloudpickle
import pytest
from running import MANYHANDS, PATIENCE, eventually, manyhands

import manyhands as mh
from manyhands.errors import ConfigError, ManyhandsError
from manyhands.experiments.audit.audited_training import CLIPPING
from manyhands.experiments.audit.run import audit, fired
from manyhands.testing import Faults

PRIVATE = ["--private", "--noise-multiplier", "1.5", "--clip", "0.5"]
SMALL = {"model": "mlp", "data": "blobs", "kernels": "default", "epochs": 4, "batch_size": 50}
QUIET = mh.Privacy(noise_multiplier=1.5)


def test_a_private_run_states_its_promise_and_shows_nothing_else(tmp_path):
    done = manyhands(
        "train", "--data", "blobs", "--model", "mlp", "--epochs", 2, "--json", *PRIVATE,
        "--output", "run", cwd=tmp_path,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    record = json.loads((tmp_path / "run" / "run.json").read_text())
    said = record["privacy"]
    assert (said["private"], said["steps"], said["rate"]) == (True, 31, 0.064)
    assert (said["noise_multiplier"], said["clip"], said["delta"]) == (1.5, 0.5, 1e-4)
    assert 0 < said["epsilon_pld"] < said["epsilon_rdp"]
    assert 0.5 < said["sensitivity"] < 0.505  # what rounding adds to the clip, σ multiplies too
    assert 0 < said["lattice_step"] < 0.5 / 1000
    for name in ("relation", "trust", "sampler", "preprocessing"):
        assert said[name]
    for epoch, steps in zip(record["epochs"], (15, 16), strict=True):  # 2000 / 128 = 15 5/8
        assert all(w["loss"] is None and w["accuracy"] is None for w in epoch["workers"])
        assert [w["examples"] for w in epoch["workers"]] == [64 * steps] * 2  # expected, not drawn
    assert all(w["classes"] is None for w in record["partition"]["workers"])
    assert record["batch"] == {"update": 128, "worker": [64.0, 64.0]}
    assert record["data"]["sha256"] is None
    steps = [json.loads(line) for line in (tmp_path / "run" / "steps.jsonl").open()]
    assert {row["loss"] for row in steps} == {None}
    assert len({row["compute"] for row in steps if row["rank"] == 0}) == 1
    assert json.loads(done.stdout)["examples"] == 31 * 128
    assert "training loss" not in done.stdout + done.stderr


def test_a_run_with_a_fixed_key_is_marked(tmp_path):
    result = mh.fit(
        **SMALL, workers=1, strategy="sequential", output=str(tmp_path / "run"), progress=False,
        privacy=mh.Privacy(noise_multiplier=1.5, fixed_key=1),
    )  # fmt: skip
    assert result.record["privacy"]["private"] is False


@pytest.mark.parametrize("strategy", ["hogwild", "server", "gossip"])
def test_every_strategy_trains_privately(tmp_path, strategy):
    result = mh.fit(
        **SMALL, strategy=strategy, privacy=QUIET, output=str(tmp_path / "run"), progress=False
    )
    assert result.accuracy > 0.5
    said = result.record["privacy"]
    assert "a reader of messages need not be trusted" in said["trust"]
    assert said["records"] == "every process of this run can read all training records, on one host"


def test_a_split_model_trains_privately_and_every_stage_keeps_a_ledger(tmp_path):
    given = {**SMALL, "strategy": "pipeline", "privacy": QUIET, "output": str(tmp_path / "run")}
    with Faults().kill(rank=1, step=100), pytest.raises(ManyhandsError):
        mh.fit(**given, checkpoint_every="40steps", progress=False)
    ledgers = [tmp_path / "run" / f"ledger-{rank}.jsonl" for rank in (0, 1)]
    for ledger in ledgers:
        assert json.loads(ledger.read_text().splitlines()[-1])["paid"] >= 96
    whole = ledgers[1].read_bytes()
    ledgers[1].unlink()
    with pytest.raises(ConfigError, match="cannot be trusted: it is missing"):
        mh.fit(resume=str(tmp_path / "run"), progress=False)
    ledgers[1].write_bytes(whole)
    result = mh.fit(resume=str(tmp_path / "run"), progress=False)
    assert result.accuracy > 0.5
    assert result.record["result"]["stopped"] == "budget"
    assert "stages trust one another" in result.record["privacy"]["trust"]
    assert result.record["strategy"]["timeline"] == []


def test_a_run_that_was_killed_pays_again_and_stops_when_the_budget_is_spent(tmp_path):
    given = {**SMALL, "strategy": "averaging", "privacy": QUIET, "output": str(tmp_path / "run")}
    with Faults().kill(rank=1, step=100), pytest.raises(ManyhandsError):
        mh.fit(**given, checkpoint_every="40steps", progress=False)
    ledgers = [tmp_path / "run" / f"ledger-{rank}.jsonl" for rank in (0, 1)]
    paid = [json.loads(ledger.read_text().splitlines()[-1])["paid"] for ledger in ledgers]
    assert paid[1] >= 100
    ledger = ledgers[1]
    whole = ledger.read_bytes()
    ledger.unlink()
    with pytest.raises(ConfigError, match="cannot be trusted: it is missing"):
        mh.fit(resume=str(tmp_path / "run"), progress=False)
    ledger.write_bytes(whole.replace(b'"paid": 16', b'"paid": 10'))
    with pytest.raises(ConfigError, match="line 2 was edited"):
        mh.fit(resume=str(tmp_path / "run"), progress=False)
    ledger.write_bytes(whole)
    with pytest.raises(ConfigError, match="epochs is 9, but the run"):
        mh.fit(resume=str(tmp_path / "run"), epochs=9, progress=False)
    result = mh.fit(resume=str(tmp_path / "run"), progress=False)
    found = result.record["result"]
    assert found["stopped"] == "budget"
    # 160 steps were planned. What was paid after the checkpoint is lost for good: by the one who
    # paid most, for worker 0 may have gone on when worker 1 died.
    (resumed,) = [part["resumed_from"] for part in result.record["story"]]
    assert resumed in (40, 80)
    assert found["steps"] == 160 - (max(paid) - resumed) < 160
    with pytest.raises(ConfigError, match=r"budget of 160 steps is spent|already"):
        mh.fit(resume=str(tmp_path / "run"), progress=False)


def test_a_run_that_was_asked_to_stop_loses_nothing(tmp_path):
    line = [
        *MANYHANDS, "train", "--data", "blobs", "--model", "mlp", "--private",
        "--noise-multiplier", "1.5", "--epochs", "2000", "--checkpoint-every", "1000steps",
        "--output", str(tmp_path / "run"),
    ]  # fmt: skip
    process = subprocess.Popen(line, stderr=subprocess.PIPE, text=True)
    ledger = tmp_path / "run" / "ledger-0.jsonl"
    assert eventually(lambda: ledger.exists() and b"paid" in ledger.read_bytes())
    process.send_signal(signal.SIGTERM)
    assert process.wait(PATIENCE) == 143
    checkpoint = max((tmp_path / "run" / "checkpoints").iterdir())
    last = json.loads(ledger.read_text().splitlines()[-1])
    # What was paid ahead is given back; where the last payment was just used up there is nothing.
    assert last.get("settled", last.get("paid")) == int(checkpoint.name.removeprefix("step-"))


@pytest.fixture
def _bugs_travel():
    """Carry the bugs below to the workers, which cannot import this file."""
    cloudpickle.register_pickle_by_value(sys.modules[__name__])
    yield
    cloudpickle.unregister_pickle_by_value(sys.modules[__name__])


def noise_left_out():
    from manyhands.privacy.mechanism import Mechanism

    Mechanism._add_noise = lambda self, vector, deviation: None


def noise_divided_by_the_workers():
    from manyhands.privacy.mechanism import Mechanism

    whole = Mechanism._add_noise
    Mechanism._add_noise = lambda self, vector, deviation: whole(self, vector, deviation / 2)


def clipping_left_out():
    import torch

    from manyhands.privacy import clipping, layerwise, split_model_clipping

    for module in (clipping, layerwise, split_model_clipping):  # only one of them runs
        module.coefficients = lambda norms, *_: (torch.ones_like(norms), None)


def each_stage_clips_alone():
    from manyhands.privacy.split_model_clipping import StageClipping

    whole = StageClipping.finish

    def finish(self, *args):
        self.total = lambda squares: None
        whole(self, *args)

    StageClipping.finish = finish


def a_silent_worker():
    from manyhands.launch.environment import group_rank
    from manyhands.privacy.mechanism import Mechanism

    if group_rank() == 1:
        Mechanism._add_noise = lambda self, vector, deviation: None


def a_sampler_that_takes_everyone():
    import numpy as np

    from manyhands.privacy import keys

    keys.PoissonSample.draw = lambda self, count, *step: np.arange(count)


BUGS = [None, noise_left_out, noise_divided_by_the_workers, clipping_left_out]
SYNC, AVERAGING, SERVER, GOSSIP = (
    {"strategy": n, "workers": 2} for n in ("sync", "averaging", "server", "gossip")
)
TRUSTED = {**SERVER, "staleness": 0}
STAGES = {"strategy": "pipeline", "workers": 1}
CASES = [(way, "layers", bug) for way in (SYNC, AVERAGING, SERVER) for bug in BUGS]
CASES += [(TRUSTED, "layers", bug) for bug in BUGS[:2]]
CASES += [(SYNC, "vmap", bug) for bug in (None, clipping_left_out)]  # the noise is the same code
CASES += [(STAGES, "stages", bug) for bug in (*BUGS, each_stage_clips_alone)]
CASES += [({**SYNC, "workers": 4}, "layers", bug) for bug in (None, a_silent_worker)]
CASES += [(AVERAGING, "layers", a_silent_worker), (GOSSIP, "layers", a_silent_worker)]
CASES += [(SYNC, "layers", a_sampler_that_takes_everyone)]


def told(part):
    """Return a name for a way or a bug."""
    if isinstance(part, dict):
        return "-".join(str(value) for name, value in part.items() if name != "workers")
    return getattr(part, "__name__", part or "sound")


@pytest.mark.usefixtures("_bugs_travel")
@pytest.mark.parametrize(("way", "clipping", "bug"), CASES, ids=told)
def test_the_audit_fires_on_bugs_and_on_nothing_else(way, clipping, bug):
    found = audit(way, clipping=clipping, before=bug, progress=False)
    assert CLIPPING[clipping] in found.recipe
    assert bool(fired([found])) == (bug is not None)


@pytest.mark.usefixtures("_bugs_travel")
@pytest.mark.parametrize("bug", [None, a_silent_worker, clipping_left_out], ids=told)
def test_the_audit_is_of_the_users_own_run(bug):
    way = {**AVERAGING, "model": "mlp", "data": "blobs", "epochs": 2, "batch_size": 40,
           "epsilon": 5.0, "clip": 0.05, "optimizer": "adam"}  # fmt: skip
    found = audit(way, before=bug, progress=False)
    assert (found.terms.steps, found.terms.rate) == (100, 0.02)  # 40 of 2,000 records
    assert found.attack.canaries > 900
    tests = {each.test for each in fired([found])}
    assert bool(tests) == (bug is not None)
    assert ("variance of the noise" in tests) == (bug is a_silent_worker)


def test_the_command_leaves_sound_code_in_peace(tmp_path):
    sound = manyhands("audit", "--strategy", "sequential", "--workers", 1, "--canaries", 1000,
                      "--noise-multiplier", 3, cwd=tmp_path)  # fmt: skip
    assert sound.returncode == 0, sound.stderr
    assert "nothing speaks against the claim" in sound.stdout
    found = json.loads((tmp_path / "audit" / "audit.json").read_text())
    assert found["broken"] is False
    ways = [one["recipe"] for one in found["audits"]]
    assert ["layer by layer" in ways[0], "by vmap" in ways[1], len(ways)] == [True, True, 2]
    for test in ("variance of the noise", "independence of the noises", "inclusion frequency",
                 "norm of a contribution", "coverage of a parameter", "reachability",
                 "guesses of the canaries"):  # fmt: skip
        assert f"\n  {test} " in sound.stdout
