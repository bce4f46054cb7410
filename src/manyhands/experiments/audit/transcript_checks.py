"""Examines the transcripts of a private run: every test that its claim has to pass."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import zip_longest

import numpy as np

from manyhands.config.run import RunConfig
from manyhands.experiments.audit.transcript import Transcript
from manyhands.privacy import mechanism_tests as tests
from manyhands.privacy.mechanism_tests import Finding
from manyhands.privacy.steps_rate_noise import Terms
from manyhands.worker.abilities import SplitsModel

_REACHABLE = "0 steps off the lattice: then every sum reaches the same values, zero included"
_MESSAGES = 1500  # that are compared in pairs: of more, as many, evenly over the run


@dataclass(frozen=True, kw_only=True)
class Claim:
    """What a private run claims of its mechanism.

    Attributes:
        terms: T, q, σ, C and δ of each worker.
        exposure: Which messages others see: each worker's, their sum, or what masters send.
        workers: P.
        processes: How many draw samples: P, or as many for each stage of a pipeline.
    """

    terms: Terms
    exposure: str
    workers: int
    processes: int

    @classmethod
    def of(cls, config: RunConfig, terms: Terms) -> Claim:
        """Return the claim of a run with these options."""
        assert config.privacy is not None
        exposure = "each" if config.privacy.distrust else config.strategy.exposure
        splits = isinstance(config.strategy, SplitsModel)
        processes = config.strategy.processes(config.workers) if splits else config.workers
        return cls(terms=terms, exposure=exposure, workers=config.workers, processes=processes)

    def deviation(self, transcript: Transcript) -> float:
        """Return the deviation of a process's noise, in lattice steps; 0 if it adds none."""
        senders = self.workers if self.exposure == "sum" else 1
        if (self.exposure == "masters") != transcript.master:
            return 0.0
        if not transcript.step:
            return math.inf
        whole = self.terms.noise_multiplier * transcript.sensitivity / transcript.step
        return whole / math.sqrt(senders)


def examine(transcripts: Sequence[Transcript], claim: Claim) -> list[Finding]:
    """Return the findings of all tests."""
    working = sum(not t.master for t in transcripts)
    expected = f"{claim.processes} that draw samples: the others are masters"
    holds = working == claim.processes
    findings = [tests.certain("number of workers", "", working, expected, holds)]
    dim = max(t.start + sum(t.sizes.values()) for t in transcripts)
    for transcript in transcripts:
        if claim.exposure == "masters" or not transcript.master:
            findings += _examine_messages(transcript, claim, dim)
        if not transcript.master:
            findings += _examine_clipping(transcript, claim)
    findings += _examine_together(transcripts, claim)
    findings += _examine_samples([t for t in transcripts if not t.master], claim)
    findings += _examine_stages([t for t in transcripts if t.stage], claim)
    return findings


def name(transcript: Transcript) -> str:
    """Return what a process is called in findings."""
    kind = "master" if transcript.master else "stage" if transcript.stage else "worker"
    return f"{kind} {transcript.rank}"


def _examine_messages(transcript: Transcript, claim: Claim, dim: int) -> list[Finding]:
    """Test one process's noise: of each parameter, of each message, of all."""
    who, count = name(transcript), len(transcript.noise)
    holds = count == transcript.steps
    findings = [
        tests.certain(
            "number of messages", who, count, f"{transcript.steps}, one for each step", holds
        )
    ]
    if not count:
        return findings
    scales = transcript.scales
    ratio = max(scales) / min(scales)
    expected = "1: the largest over the smallest, since the drawn size must not decide it"
    same = math.isclose(ratio, 1.0, rel_tol=1e-9)
    findings.append(tests.certain("divisor of a sum", who, ratio, expected, same))
    deviation = claim.deviation(transcript)
    if not deviation:
        return findings
    if not math.isfinite(deviation):
        return [*findings, tests.certain("noise", who, 0.0, "noise on a lattice", holds=False)]
    off, clip = transcript.off, claim.terms.clip
    findings += [
        tests.certain("reachability", who, off, _REACHABLE, off < 1e-6),
        tests.sensitivity(transcript.sensitivity, clip, transcript.step, dim),
    ]
    noise = np.stack(transcript.noise).astype(np.float64)
    owners = _owners(transcript)
    for i, parameter in enumerate(transcript.sizes):
        part = noise[:, owners == i]
        findings.append(tests.noise_variance(part, deviation, f"{who}, {parameter}"))
    for i, row in enumerate(noise):
        findings.append(tests.noise_variance(row, deviation, f"{who}, message {i + 1}"))
    findings.append(tests.noise_variance(noise, deviation, f"{who}, all messages"))
    findings.append(tests.noise_shape(noise, deviation, who))
    if len(transcript.columns) == sum(transcript.sizes.values()):
        findings.append(tests.noise_repetition(noise, who))
    return findings


def _owners(transcript: Transcript) -> np.ndarray:
    """Return the number of the parameter that each kept coordinate belongs to."""
    ends = np.cumsum(list(transcript.sizes.values()))
    return np.searchsorted(ends, transcript.columns, side="right")


def _examine_clipping(transcript: Transcript, claim: Claim) -> list[Finding]:
    """Check what single records contributed, and that no parameter is left out."""
    who, names = name(transcript), list(transcript.sizes)
    missing = transcript.uncovered
    findings = [
        tests.certain(
            "coverage of the model",
            ", ".join((who, *missing)),
            len(missing),
            "0 trainable parameters without privacy",
            not missing,
        )
    ]
    if transcript.stage:
        return findings
    norms = np.array(transcript.norms)
    findings.append(tests.contribution_norms(norms, 1.0, f"{who}, in clipping norms"))
    if len(transcript.errors):
        findings += tests.parameter_coverage(transcript.errors, names, who)
    mixed = transcript.mixed
    findings.append(
        tests.certain(
            "separation of records",
            who,
            mixed,
            "0: a sum is that of its records' contributions",
            mixed < 1e-2,
        )
    )
    drawn = [len(each) for each in transcript.drawn[: len(transcript.noise)] if len(each)]
    wrong = sum(a != b for a, b in zip_longest(drawn, transcript.rows[: len(drawn)]))
    findings.append(
        tests.certain(
            "records in a sum", who, wrong, "0 steps with others than were drawn", not wrong
        )
    )
    return findings


def _examine_together(transcripts: Sequence[Transcript], claim: Claim) -> list[Finding]:
    """Test the noise of all processes together: no two messages may have the same."""
    noisy = [t for t in transcripts if claim.deviation(t) and len(t.noise)]
    if not noisy:
        return []
    width = min(len(t.columns) for t in noisy)
    messages = [(t, i) for t in noisy for i in range(len(t.noise))]
    messages = messages[:: -(-len(messages) // _MESSAGES)]
    rows = np.stack([t.noise[i][:width].astype(np.float64) for t, i in messages])
    names = [f"{name(t)}, message {i + 1}" for t, i in messages]
    findings = [tests.noise_independence(rows, names)]
    whole = [t for t in noisy if not t.stage]
    if claim.exposure == "sum" and len(whole) > 1:
        steps = min(len(t.noise) for t in whole)
        total = sum(np.stack(t.noise[:steps]).astype(np.float64) for t in whole)
        # The sum of P rounded numbers has a variance of P (t² + 1/12).
        scaled = np.asarray(total) / math.sqrt(len(whole))
        alone = claim.deviation(whole[0])
        findings.append(tests.noise_variance(scaled, alone, f"sum over {len(whole)} workers"))
    return findings


def _examine_samples(transcripts: Sequence[Transcript], claim: Claim) -> list[Finding]:
    """Test which records were sampled: how often, and how evenly."""
    findings = []
    shared = all(t.records is None for t in transcripts)
    stages = shared and any(t.stage for t in transcripts)
    for t in transcripts[:1] if shared else transcripts:
        steps = min(len(t.noise), len(t.drawn))
        if shared and not stages:
            steps = min(min(len(one.noise), len(one.drawn)) for one in transcripts)
        if not steps:
            continue
        own = np.arange(t.examples) if t.records is None else t.records
        counts, sizes = np.zeros(t.examples, dtype=np.int64), []
        for step in range(steps):
            members = transcripts if shared and not stages else [t]
            drawn = np.concatenate([one.drawn[step] for one in members])
            np.add.at(counts, drawn, 1)
            sizes.append(len(drawn))
        if stages:
            counts, sizes = _over_pipelines(transcripts, steps)
        who = "all workers" if shared else name(t)
        rate, n = claim.terms.rate, len(own)
        findings += [
            tests.inclusion(int(sum(sizes)), n * steps, rate, who),
            tests.inclusion_spread(np.array(sizes), n, rate, f"{who}, records in a step"),
            tests.inclusion_spread(counts[own], steps, rate, f"{who}, steps of a record"),
        ]
        strangers = int(counts.sum() - counts[own].sum())
        findings.append(
            tests.certain(
                "partition", who, strangers, "0 draws of another worker's records", not strangers
            )
        )
    return findings


def _over_pipelines(transcripts: Sequence[Transcript], steps: int) -> tuple[np.ndarray, list[int]]:
    """Return how often each record was drawn, and how many in a step, counting no stage twice."""
    counts, sizes = np.zeros(transcripts[0].examples, dtype=np.int64), []
    for step in range(steps):
        drawn = np.unique(np.concatenate([t.drawn[step] for t in transcripts if len(t.drawn)]))
        counts[drawn] += 1
        sizes.append(len(drawn))
    return counts, sizes


def _examine_stages(stages: Sequence[Transcript], claim: Claim) -> list[Finding]:
    """Check the norm of contributions whose parts lie in several stages."""
    if not stages:
        return []
    # Stages of one pipeline have recorded the same records: those with the same numbers of rows.
    pipelines: dict[tuple[bytes, ...], list[Transcript]] = {}
    for t in stages:
        pipelines.setdefault(tuple(each.tobytes() for each in t.drawn[:50]), []).append(t)
    findings = []
    for team in pipelines.values():
        steps = min(len(t.squares) for t in team)
        totals = [sum(t.squares[i] for t in team) for i in range(steps)]
        norms = np.sqrt(np.concatenate(totals)) if totals else np.zeros(0)
        who = f"stages {', '.join(str(t.rank) for t in team)}"
        findings.append(tests.contribution_norms(norms, claim.terms.clip, who))
    return findings
