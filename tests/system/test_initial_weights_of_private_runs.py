"""Where the initial weights of a private run come from: what saw the data is never called private.

The attack: train without privacy, then train privately from the result, at a rate that changes
nothing. The model keeps the accuracy, and the records, of the first run.
"""

import json
from copy import deepcopy

import pytest
import torch
from running import manyhands

import manyhands as mh
from manyhands.errors import ConfigError
from manyhands.privacy.accountant import Event, compose

BLOBS = {"model": "mlp", "data": "blobs", "kernels": "default", "epochs": 2, "batch_size": 50}
ALONE = {**BLOBS, "strategy": "sequential", "workers": 1, "progress": False}
NOISE = mh.Privacy(noise_multiplier=1.5)


@pytest.fixture(scope="module", autouse=True)
def _own_key(tmp_path_factory):
    """Keep the key of the fingerprints out of the user's own folder."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CONFIG_HOME", str(tmp_path_factory.mktemp("config")))
        yield


@pytest.fixture(scope="module")
def plain(tmp_path_factory):
    return mh.fit(**ALONE, output=str(tmp_path_factory.mktemp("plain") / "run"))


@pytest.fixture(scope="module")
def private(tmp_path_factory):
    output = str(tmp_path_factory.mktemp("private") / "run")
    return mh.fit(**ALONE, privacy=NOISE, output=output)


def test_weights_of_a_run_without_privacy_are_refused_before_anything_starts(plain, tmp_path):
    done = manyhands(
        "train", "--data", "blobs", "--model", "mlp", "--private", "--epsilon", 0.1, "--lr", 1e-6,
        "--init", plain.output / "model.safetensors", "--output", "run", cwd=tmp_path,
    )  # fmt: skip
    assert done.returncode == 2, done.stderr
    assert "was not private" in done.stderr
    assert "--init-public" in done.stderr
    assert "of a private run on the same data" in done.stderr
    assert not (tmp_path / "run").exists()


def test_the_trained_model_itself_is_refused_as_well(plain, tmp_path):
    with pytest.raises(ConfigError, match="was not private"):
        mh.fit(**{**ALONE, "model": plain.model}, privacy=NOISE, output=str(tmp_path / "r"))
    copy = deepcopy(plain.model)
    with pytest.raises(ConfigError, match="was not private"):
        mh.fit(**{**ALONE, "model": copy}, privacy=NOISE, output=str(tmp_path / "r"))


@pytest.mark.parametrize(
    "strategy", ["sync", "averaging", "gossip", "hogwild", "server", "pipeline"]
)
def test_no_strategy_takes_weights_of_a_run_without_privacy(plain, tmp_path, strategy):
    given = {**BLOBS, "strategy": strategy, "workers": 1 if strategy == "pipeline" else 2}
    file, output = str(plain.output / "model.safetensors"), tmp_path / "run"
    with pytest.raises(ConfigError, match="was not private"):
        mh.fit(**given, privacy=NOISE, init=file, output=str(output), progress=False)
    assert not output.exists()


def test_a_run_without_privacy_does_not_go_on_as_a_private_one(tmp_path):
    output = str(tmp_path / "run")
    mh.fit(**ALONE, output=output, checkpoint_every="10steps", max_steps=20)
    with pytest.raises(ConfigError, match="a run goes on as it was"):
        mh.fit(resume=output, privacy=NOISE, progress=False)
    with pytest.raises(ConfigError, match="a run goes on as it was"):
        mh.fit(resume=output, private=True, epsilon=1.0, progress=False)


def test_declared_weights_are_taken_and_the_statement_says_who_declared_them(plain, tmp_path):
    public = mh.Privacy(noise_multiplier=1.5, init_public=True)
    file = str(plain.output / "model.safetensors")
    result = mh.fit(**ALONE, privacy=public, init=file, output=str(tmp_path / "run"))
    said = result.record["privacy"]["weights"]
    assert said.startswith(f"{file}, declared public by the user: the guarantee assumes")


def test_the_cost_of_a_private_run_on_the_same_data_is_added(private, tmp_path):
    one = Event(80, 0.025, 1.5)  # 2000 records in batches of 50, twice
    file = str(private.output / "model.safetensors")
    second = mh.fit(**ALONE, privacy=NOISE, init=file, limit=2000, output=str(tmp_path / "second"))
    told = second.record["privacy"]
    assert told["epsilon_pld"] == compose([one, one], told["delta"]) > compose([one], told["delta"])
    assert "a private run on the same data, whose 80 steps are part of this ε" in told["weights"]
    third = mh.fit(**{**ALONE, "model": second.model}, privacy=NOISE,
                   output=str(tmp_path / "third"))  # fmt: skip
    assert third.record["privacy"]["epsilon_pld"] == compose([one] * 3, told["delta"])


def test_a_budget_is_for_all_of_it(private, tmp_path):
    file, output = str(private.output / "model.safetensors"), str(tmp_path / "run")
    spent = private.record["privacy"]["epsilon_pld"]
    with pytest.raises(ConfigError, match="the runs that made the initial weights have spent"):
        mh.fit(**ALONE, privacy=mh.Privacy(epsilon=0.9 * spent), init=file, output=output)
    both = mh.fit(**ALONE, privacy=mh.Privacy(epsilon=1.5 * spent), init=file, output=output)
    assert spent < both.record["privacy"]["epsilon_pld"] <= 1.5 * spent


def test_what_is_not_that_run_s_model_or_not_its_data_is_refused(private, plain, tmp_path):
    swapped = tmp_path / "swapped"
    swapped.mkdir()
    for file in private.output.iterdir():
        if file.is_file():
            (swapped / file.name).write_bytes(file.read_bytes())
    weights = swapped / "model.safetensors"
    weights.write_bytes((plain.output / "model.safetensors").read_bytes())
    given = {**ALONE, "privacy": NOISE, "output": str(tmp_path / "run")}
    with pytest.raises(ConfigError, match="not the model that the private run"):
        mh.fit(**given, init=str(weights))
    weights.write_bytes((private.output / "model.safetensors").read_bytes())
    x = torch.randn(2000, *private.record["data"]["shape"])
    other = {**given, "data": mh.Data((x, torch.randint(0, 4, (2000,)))), "model": private.model}
    with pytest.raises(ConfigError, match="does not have the fingerprint of this data"):
        mh.fit(**other)
    for ledger in swapped.glob("ledger-*"):
        ledger.unlink()
    with pytest.raises(ConfigError, match=r"the ledger .* is missing"):
        mh.fit(**given, init=str(weights))


def test_a_changed_model_of_a_private_run_is_refused(private, tmp_path):
    model = private.model
    with torch.no_grad():
        next(model.parameters()).add_(1.0)
    with pytest.raises(ConfigError, match="its weights have changed since"):
        mh.fit(**{**ALONE, "model": model}, privacy=NOISE, output=str(tmp_path / "run"))


def test_a_fixed_key_gives_no_private_weights(tmp_path):
    fixed = mh.Privacy(noise_multiplier=1.5, fixed_key=1)
    first = mh.fit(**ALONE, privacy=fixed, output=str(tmp_path / "first"))
    with pytest.raises(ConfigError, match="is NOT PRIVATE"):
        mh.fit(**ALONE, privacy=NOISE, init=str(first.output / "model.safetensors"),
               output=str(tmp_path / "second"))  # fmt: skip


def test_your_own_model_is_named_and_the_guarantee_is_conditional(private, tmp_path):
    shape = private.record["data"]["shape"]
    own = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(shape[0], 4))
    result = mh.fit(**{**ALONE, "model": own}, privacy=NOISE, output=str(tmp_path / "run"))
    assert result.record["privacy"]["weights"] == (
        "the model as it was passed (Sequential): the guarantee assumes that no training record "
        "influenced them"
    )
    assert private.record["privacy"]["weights"].startswith("drawn from the seed")
    ledger = json.loads((result.output / "ledger-0.jsonl").read_text().splitlines()[0])
    assert ledger["weights"] == result.record["privacy"]["weights"]


def test_a_declaration_about_weights_of_the_seed_would_be_ignored(tmp_path):
    public = mh.Privacy(noise_multiplier=1.5, init_public=True)
    with pytest.raises(ConfigError, match="are drawn from the seed"):
        mh.fit(**ALONE, privacy=public, output=str(tmp_path / "run"))
