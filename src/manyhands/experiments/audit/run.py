"""Audits private training through real processes.

Each process records its transcript: what it drew, clipped and sent. Tests of the mechanism judge
the transcripts, and an attack guesses which canaries were in. Guessing is one test among the
others; all together fire on sound code once in 1/ALPHA audits.
"""

from __future__ import annotations

import secrets
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields
from functools import partial
from pathlib import Path
from typing import Any

from manyhands.experiments.audit import audited_training
from manyhands.experiments.audit.canary_attack import Attack, attack
from manyhands.experiments.audit.models import Clipping
from manyhands.experiments.audit.transcript import install, read_all
from manyhands.experiments.audit.transcript_checks import Claim, examine
from manyhands.launch.machine import write_json
from manyhands.privacy.accountant import write_bound
from manyhands.privacy.mechanism import Mechanism
from manyhands.privacy.mechanism_tests import Finding, rejected
from manyhands.privacy.steps_rate_noise import Terms
from manyhands.training.result import Result
from manyhands.training.start_fit import fit
from manyhands.value_checks import whole

ALPHA = 1e-4  # sound code fires one time in ten thousand, over all tests of an audit
CANARIES = 1000
PRINTED = 10  # tests that fired; audit.json has all
MOST = 100_000  # canaries


@dataclass(frozen=True, kw_only=True)
class Audit:
    """What one audited run showed.

    Attributes:
        recipe: What was trained, and what clipped its gradients.
        claimed: The ε that the run states.
        terms: T, q, σ, C and δ that it states.
        attack: What guessing the canaries refutes.
        findings: The outcome of each test, that of the guesses included.
    """

    recipe: str
    claimed: float
    terms: Terms
    attack: Attack
    findings: tuple[Finding, ...]

    def as_dict(self) -> dict[str, Any]:
        """Return it as `audit.json` has it."""
        return {
            "recipe": self.recipe,
            "claimed": self.claimed,
            "terms": self.terms.as_dict(),
            "attack": self.attack.as_dict(),
            "tests": [each.as_dict() for each in self.findings],
        }


def fired(audits: Sequence[Audit]) -> list[Finding]:
    """Return the tests that speak against the claim, at ALPHA for all of all runs together."""
    return rejected([finding for each in audits for finding in each.findings], ALPHA)


def audit_all(given: Mapping[str, Any], *, canaries: int | None = None) -> list[Audit]:
    """Audit the run that the options describe; or the audit's own models, clipped in every way."""
    if audited_training.is_given(given):
        return [audit(given, canaries=canaries)]
    ways = audited_training.list_clippings(given)
    return [audit(given, canaries=canaries, clipping=each) for each in ways]


def audit(
    given: Mapping[str, Any],
    *,
    canaries: int | None = None,
    clipping: Clipping | None = None,
    before: Callable[[], None] | None = None,
    progress: bool | None = None,
) -> Audit:
    """Train as the options say, and test what every process did.

    Args:
        given: Options of a private run. With any of its recipe, such as the model or the batch
            size, that run is audited; else one with a model and records of the audit's own.
        canaries: How many records are canaries, each in by a fair coin.
        clipping: Of the audit's own models, the one that is clipped so; by default the first.
        before: Runs in every process before the model is built: for tests, to plant bugs.
        progress: Show a progress bar; by default on a terminal.
    """
    canaries = CANARIES if canaries is None else canaries
    own = not audited_training.is_given(given)
    whole(100, audited_training.RECORDS if own else MOST).check("canaries", canaries)
    chosen = {name: value for name, value in given.items() if value is not None}
    audited_training.refuse_others(chosen)
    with tempfile.TemporaryDirectory() as folder:
        seen = Path(folder) / "transcripts"
        seen.mkdir()
        coins = secrets.randbits(32)  # the bound needs them to be fair, whatever --seed
        record = partial(_record, str(seen), canaries, coins, before)
        if own:
            recipe = audited_training.of_audit(chosen, clipping, record)
        else:
            recipe = audited_training.of_user(chosen, record, Path(folder) / "data")
        try:
            result = fit(**recipe.options, output=str(Path(folder) / "run"), progress=progress)
        finally:
            Mechanism.watch = None  # where this process has built the model, too
        return _judge(result, seen, recipe.name)


def _record(folder: str, canaries: int, seed: int, before: Callable[[], None] | None) -> None:
    if before:
        before()
    install(folder, canaries, seed)


def _judge(result: Result, seen: Path, recipe: str) -> Audit:
    stated = result.record["privacy"]
    terms = Terms(**{f.name: stated[f.name] for f in fields(Terms)})
    claim = Claim.of(result.run.config, terms)
    transcripts = read_all(seen)
    epsilon = float(stated["epsilon_pld"])
    guesses = attack(transcripts, claim, transcripts[0].canaries, ALPHA)
    return Audit(
        recipe=recipe,
        claimed=epsilon,
        terms=terms,
        attack=guesses,
        findings=(*examine(transcripts, claim), guesses.finding(epsilon)),
    )


def write_report(audits: Sequence[Audit], output: Path) -> str:
    """Write the record into a folder; return what was found, in words."""
    output.mkdir(parents=True, exist_ok=True)
    found = fired(audits)
    write_json(
        output / "audit.json",
        {
            "broken": bool(found),
            "alpha": ALPHA,
            "fired": [each.as_dict() for each in found],
            "audits": [each.as_dict() for each in audits],
        },
    )
    lines = [line for each in audits for line in _describe(each)]
    count = sum(len(each.findings) for each in audits)
    lines += [f"tests, at an error of {ALPHA:g} over all {count:,} together:", *_table(audits)]
    verdict = "the claim is refuted" if found else "nothing speaks against the claim"
    lines.append(f"{verdict}: {len(found)} of {count:,} tests fired (exit code {int(bool(found))})")
    lines += [
        f"  {each.test} ({each.where}): {each.value:.6g}; expected {each.expected}; "
        f"p = {each.p:.2g}"
        for each in found[:PRINTED]
    ]
    lines.append(f"record, which is not private: {output / 'audit.json'}")
    return "\n".join(lines)


def _table(audits: Sequence[Audit]) -> list[str]:
    """Return a line for each kind of test: how many were made, and what they found."""
    fires = {id(each) for each in fired(audits)}
    kinds: dict[str, list[Finding]] = {}
    for audit in audits:
        for finding in audit.findings:
            kinds.setdefault(finding.test, []).append(finding)
    lines = []
    for test, findings in kinds.items():
        firing = sum(id(each) in fires for each in findings)
        said = f"{firing} fired" if firing else "none fired"
        least = min(each.p for each in findings)
        lines.append(f"  {test:<26}{len(findings):>7,}  {said}; least p-value {least:.2g}")
    return lines


def _describe(each: Audit) -> list[str]:
    guesses, terms = each.attack, each.terms
    claimed = write_bound(each.claimed, 3)
    refuted, most = (write_bound(each, 3, up=False) for each in (guesses.bound, guesses.reach))
    few = ""
    if guesses.reach <= each.claimed:
        few = "; too few canaries to refute the claim by guesses alone"
    return [
        each.recipe,
        f"  claim: epsilon {claimed} at delta {terms.delta:g}, {terms.steps:,} steps at "
        f"rate {terms.rate:.4g}, noise multiplier {terms.noise_multiplier:.4g}",
        f"  canaries: {guesses.right:,} of {guesses.canaries:,} guesses right, which refutes any "
        f"epsilon below {refuted}; all right would refute {most}{few}",
    ]
