"""The privacy statement of a run: one text for the terminal, the record, the report and the docs.

`statement` returns its fields, which the record holds; `describe` puts them into words, the same
wherever they are shown.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from manyhands.privacy import accountant
from manyhands.privacy.several_records import RECORDS, epsilon_for
from manyhands.privacy.trusted_parties import describe_trust
from manyhands.privacy.weights_provenance import Provenance

if TYPE_CHECKING:
    from manyhands.config.run import RunConfig
    from manyhands.privacy.steps_rate_noise import Terms

# q, T and σ follow from the number of records, so neighbouring sets must have the same number:
# "zero-out", REPLACE_SPECIAL in dp-accounting. ε is that of adding or removing a record.
RELATION = (
    "one record blanked in its place, so that it contributes nothing; the number of records and "
    "their order count as public"
)
UNIT = "one training record"
SAMPLER = {
    True: "Poisson: each step has one secret sample of all records",
    False: "Poisson: for each step every worker draws a secret sample of its own records",
}
NOISE = {
    True: "rounded normal numbers, drawn exactly from the operating system's generator; the values "
    "that a message can take do not depend on the sum",
    False: "rounded normal numbers from a generator that is not cryptographic, with a secret key "
    "from the operating system; the values that a message can take do not depend on the sum",
}
CLIPPING = {
    "flat": "flat: each example's gradient, over all layers together, is shortened to C",
    "automatic": "automatic: each example's gradient g is multiplied by C/(‖g‖ + 0.01): a long one "
    "gets a length just below C, one that is short beside 0.01 a much smaller length",
    "per-layer": "per layer: each of L layers of an example's gradient is shortened to C/√L, so "
    "that the whole is no longer than C",
}
# A kernel may round one record's numbers otherwise when another record is computed with it.
ARITHMETIC = (
    "S covers the rounding of sums, and of layers for ordinary records; records that are made so "
    "that the sign of a layer's result hangs on its last bit can move a sum by more"
)
# What records of earlier versions do not say.
EARLIER = {"noise": "floating-point numbers of an earlier version, not safe against rounding"}
NOT_PRIVATE = (
    "samples and noise came from a fixed key, and anyone who knows it can draw them again; the "
    "lines below say what the same run would guarantee with secret keys"
)
# The fields in reading order, each with its label.
LABELS = {
    "epsilon_pld": "ε, by privacy loss distributions",
    "delta": "δ",
    "unit": "unit",
    "several": "several records of one person",
    "relation": "neighbouring data sets",
    "trust": "who is trusted",
    "records": "who holds the records",
    "settings": "who sets the noise",
    "timing": "what timing reveals",
    "weights": "initial weights",
    "preprocessing": "preprocessing",
    "sampler": "sampler",
    "steps": "steps, T",
    "rate": "sampling rate, q",
    "noise_multiplier": "noise multiplier, σ",
    "clip": "clipping norm, C",
    "clipping": "clipping",
    "arithmetic": "rounding inside the model",
    "epsilon_rdp": "ε, by Rényi divergences (looser; a check)",
    "noise": "noise",
}


def statement(
    config: RunConfig,
    terms: Terms,
    *,
    learned: Sequence[str] | None = None,
    provenance: Provenance | None = None,
    hosts: int | None = None,
) -> dict[str, Any]:
    """Return the run's privacy guarantee for its record: what holds, and by which accountant.

    Args:
        config: The run's options.
        terms: What a step costs, and how many there are.
        learned: What a preparation learned from the records, where that is known.
        provenance: What the run starts from; None of a run that is only planned.
        hosts: The number of hosts; None where it is not known.
    """
    assert config.privacy is not None
    privacy = config.privacy
    # Where workers have disjoint records, one record touches the steps of one worker only, and all
    # workers have the same terms: what each costs is what all cost.
    own = accountant.Event(terms.steps, terms.rate, terms.noise_multiplier)
    origin = provenance or Provenance()
    events = (*origin.before, own)
    said = "nothing was stated, and nothing was checked"
    if learned is not None and not learned:
        said = "with declared values only; nothing was learned from the records"
    elif privacy.preprocessing == "public":
        said = "; ".join(["stated to be public", *(learned or ())])
    return {
        "private": privacy.fixed_key is None,
        "unit": UNIT,
        "relation": RELATION,
        **describe_trust(config, hosts),
        "sampler": SAMPLER[config.partition_kind == "balanced"],
        **terms.as_dict(),
        "clipping": CLIPPING[privacy.clipping],
        "arithmetic": ARITHMETIC,
        "epsilon_pld": accountant.compose(events, terms.delta, "pld"),
        "epsilon_rdp": accountant.compose(events, terms.delta, "rdp"),
        "several": {str(k): epsilon_for(events, terms.delta, k) for k in RECORDS},
        "preprocessing": said,
        **origin.as_dict(),
        "noise": NOISE[privacy.secure_noise],
        "secure_noise": privacy.secure_noise,
    }


def describe(stated: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Yield the lines of a statement, each with its label; fields that are missing are left out."""
    if stated.get("private") is not True:
        yield "NOT PRIVATE", NOT_PRIVATE
    for field, label in LABELS.items():
        if text := _put_into_words(field, stated.get(field, EARLIER.get(field))):
            yield label, text


def _put_into_words(field: str, value: Any) -> str:
    """Return the text of one field; empty where there is none."""
    if isinstance(value, str):
        return value
    if isinstance(value, Mapping):
        each = [
            f"{accountant.write_bound(epsilon, significant=True)} for {records}"
            for records, epsilon in value.items()
        ]
        return f"ε = {', '.join(each)} records, at the same δ"
    if isinstance(value, bool) or not isinstance(value, int | float):
        return "not bounded" if field.startswith("epsilon") else ""
    if field.startswith("epsilon"):
        return accountant.write_bound(value)
    return f"{value:,.0f}" if field == "steps" else f"{value:.4g}"
