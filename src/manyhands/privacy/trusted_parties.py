"""Whom the people in a training set trust while a private run lasts, by strategy and launcher.

ε is about what the run publishes, and about the messages of some strategies. Raw records, the
settings and the clock are other matters; each has its own line in the statement.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from manyhands.config.run import RunConfig

MESSAGES = {
    "alone": "the process that trains is trusted, and sends no messages; ε holds for what the run "
    "publishes",
    "sum": "the workers trust one another and anyone who reads their messages: partial sums carry "
    "less than the full noise",
    "stages": "the stages trust one another and anyone who reads their messages: activations and "
    "their gradients carry no noise",
    "masters": "the workers trust the masters and anyone who reads the messages to them: clipped "
    "sums reach the masters without noise",
    "each": "a reader of messages need not be trusted: from the first step on, each message of a "
    "worker carries the full noise, and all of them together reveal no more than ε",
}
SAMPLE_KEY = "; rank 0 sends every process the key of the sample"
RECORDS = {
    "alone": "the process that trains holds all training records",
    "host": "every process of this run can read all training records, on one host",
    "sent": "each of the {hosts} holds all training records, and every process there can read "
    "them; hosts that do not see the launcher's files receive them over MPI, not encrypted by "
    "manyhands",
    "read": "each of the {hosts} reads all training records, and every process there can read them",
    "any": "every host of the run holds all training records, and every process there can read "
    "them; --hosts sends them over MPI, not encrypted by manyhands, to hosts that do not see the "
    "launcher's files",
}
SETTINGS = {
    True: "the process that trains computes σ, C and T",
    False: "rank 0 computes σ, C and T and sends them; the other processes use what they receive",
}
TIMING = {
    "alone": "how long the process computes depends on the secret samples; ε does not cover an "
    "observer of its running time, or the times in the record",
    "together": "when a process sends a message, and how long it computes, depend on the secret "
    "samples; ε does not cover an observer of either, or the times in the record",
    "apart": "when a process sends a message, and how long it computes, depend on the secret "
    "samples; ε does not cover an observer of either, the times in the record, or the order in "
    "which updates reach the model",
}


def describe_trust(config: RunConfig, hosts: int | None) -> dict[str, str]:
    """Return the lines of the statement on messages, records, settings and timing.

    `hosts` is the number of hosts of the run; None where it is not known.
    """
    assert config.privacy is not None
    kind: str = "each" if config.privacy.distrust else config.strategy.exposure
    if config.strategy.supports.beside == "stage":
        kind = "stages"
    alone = config.processes == 1
    apart = config.strategy.exposure == "each" and not config.strategy.supports.deterministic
    messages = MESSAGES["alone" if alone else kind]
    if config.partition_kind == "balanced" and not alone:
        messages += SAMPLE_KEY
    return {
        "trust": messages,
        "records": _describe_holders(config, hosts),
        "settings": SETTINGS[alone],
        "timing": TIMING["alone" if alone else "apart" if apart else "together"],
    }


def _describe_holders(config: RunConfig, hosts: int | None) -> str:
    if config.processes == 1:
        return RECORDS["alone"]
    if hosts == 1 or config.strategy.supports.shares_memory:
        return RECORDS["host"]
    if hosts is None:
        return RECORDS["any"]
    return RECORDS["sent" if config.places else "read"].format(hosts=f"{hosts} hosts")
