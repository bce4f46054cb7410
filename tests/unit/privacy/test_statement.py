"""The statement of every strategy and launcher says what the code does, and nothing more."""

from typing import Any

import pytest

from manyhands.config.options import configure
from manyhands.privacy.statement import LABELS, describe, statement
from manyhands.privacy.steps_rate_noise import Terms
from manyhands.strategies import STRATEGIES

TERMS = Terms(steps=10, rate=0.01, noise_multiplier=2.0, clip=1.0, delta=1e-5)
PRIVATE = sorted(name for name, kind in STRATEGIES.items() if kind().supports.private)
TWO = "each of the 2 hosts"


def stated(seen: int | None = None, **given: Any) -> dict[str, Any]:
    config = configure({"private": True, "noise_multiplier": 2.0, **given})
    return statement(config, TERMS, hosts=seen)


@pytest.mark.parametrize("strategy", PRIVATE)
@pytest.mark.parametrize("distrust", [False, True])
def test_every_strategy_states_everything(strategy: str, distrust: bool) -> None:
    given: dict[str, Any] = {"strategy": strategy}
    given |= {} if strategy == "sequential" else {"workers": 2}
    given |= {"distrust": distrust} if strategy != "pipeline" else {}
    said = stated(**given)
    labels = [label for label, _ in describe(said)]
    assert labels == list(LABELS.values())
    text = "\n".join(f"{label}: {words}" for label, words in describe(said))
    assert "nobody" not in text
    assert "all training records" in said["records"]


@pytest.mark.parametrize(
    ("given", "said", "unsaid"),
    [
        ({"strategy": "sequential"}, "sends no messages", "trust one another"),
        ({"strategy": "sync", "workers": 1}, "sends no messages", "trust one another"),
        ({"strategy": "sync"}, "less than the full noise; rank 0 sends every process the key", "ε"),
        ({"strategy": "sync", "partition": "by-id"}, "less than the full noise", "key"),
        ({"strategy": "sync", "distrust": True}, "a reader of messages need not", "key"),
        ({"strategy": "server"}, "a reader of messages need not be trusted", "key"),
        ({"strategy": "server", "staleness": 0}, "reach the masters without noise", "need not"),
        ({"strategy": "server", "staleness": 0, "distrust": True}, "need not", "without noise"),
        ({"strategy": "averaging"}, "a reader of messages need not be trusted", "key"),
        ({"strategy": "gossip"}, "a reader of messages need not be trusted", "key"),
        ({"strategy": "hogwild"}, "a reader of messages need not be trusted", "key"),
        ({"strategy": "pipeline", "workers": 1}, "activations and their gradients carry no", "ε"),
    ],
)
def test_who_may_read_messages(given: dict[str, Any], said: str, unsaid: str) -> None:
    assert said in stated(**given)["trust"]
    assert unsaid not in stated(**given)["trust"]


@pytest.mark.parametrize(
    ("hosts", "given", "said"),
    [
        (1, {"strategy": "sequential"}, "the process that trains holds all training records"),
        (1, {"strategy": "averaging"}, "can read all training records, on one host"),
        (None, {"strategy": "hogwild"}, "can read all training records, on one host"),
        (2, {"strategy": "averaging"}, f"{TWO} reads all training records"),
        (2, {"strategy": "averaging", "hosts": "a,b"}, f"{TWO} holds all training records"),
        (2, {"strategy": "sync", "hosts": "a,b"}, "over MPI, not encrypted by manyhands"),
        (None, {"strategy": "sync"}, "every host of the run holds all training records"),
    ],
)
def test_who_holds_the_records_by_launcher(
    hosts: int | None, given: dict[str, Any], said: str
) -> None:
    assert said in stated(hosts, **given)["records"]


def test_who_sets_the_noise_and_what_timing_reveals() -> None:
    one, two = stated(strategy="sequential"), stated(strategy="averaging")
    assert two["settings"].startswith("rank 0 computes σ, C and T and sends them")
    assert one["settings"].startswith("the process that trains computes")
    assert "when a process sends a message" in two["timing"]
    assert "message" not in one["timing"]
    assert "ε does not cover" in one["timing"]


def test_what_an_earlier_version_drew_is_not_called_safe() -> None:
    said = stated(strategy="sync")
    old = {key: value for key, value in said.items() if key != "noise"}
    assert "not safe against rounding" in dict(describe({**old, "secure_noise": True}))["noise"]
    assert (
        "values that a message can take do not depend on the sum" in dict(describe(said))["noise"]
    )


@pytest.mark.parametrize(
    "given", [{"strategy": "sync"}, {"strategy": "sync", "limit": 9}, {"strategy": "averaging"}]
)
def test_neighbouring_sets_have_the_same_number_of_records(given: dict[str, Any]) -> None:
    """q, T and σ follow from n: "added or removed; n public" would contradict itself."""
    said = stated(**given)["relation"]
    assert said.startswith("one record blanked in its place")
    assert "added or removed" not in said


def test_blanking_a_record_costs_what_adding_or_removing_it_costs() -> None:
    from dp_accounting import NeighboringRelation
    from dp_accounting.pld.privacy_loss_distribution import from_gaussian_mechanism

    from manyhands.privacy.accountant import Event, epsilon

    for relation in (NeighboringRelation.REPLACE_SPECIAL, NeighboringRelation.ADD_OR_REMOVE_ONE):
        step = from_gaussian_mechanism(
            1.069, sampling_prob=512 / 60_000, neighboring_relation=relation
        )
        whole = step.self_compose(4687).get_epsilon_for_delta(1e-5)
        assert round(whole, 5) == 2.99543
        assert epsilon(Event(4687, 512 / 60_000, 1.069), 1e-5) == pytest.approx(whole, rel=1e-7)
