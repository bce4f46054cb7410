"""How often does the audit fire on sound code? Rehearses runs with fresh keys, and writes a record.

`python studies/audit_sound_runs.py`: 200 rehearsals over seven strategies, judged as
`experiments.audit.run` judges a run, at its error. Exits with 1 if any test fires.
"""

from __future__ import annotations

import argparse
from collections import Counter
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import torch
from torch.nn.functional import cross_entropy

import manyhands.strategies  # noqa: F401  (registers them)
from manyhands.config.options import configure
from manyhands.experiments.audit import models
from manyhands.experiments.audit.audited_training import STEPS
from manyhands.experiments.audit.canary_attack import attack
from manyhands.experiments.audit.run import ALPHA
from manyhands.experiments.audit.simulated_private_run import rehearse
from manyhands.experiments.audit.transcript_checks import Claim, examine
from manyhands.launch.machine import write_json
from manyhands.privacy.accountant import Event, epsilon
from manyhands.privacy.mechanism_tests import Finding, rejected

OUT = Path(__file__).parents[1] / "docs" / "records" / "audit-sound-runs.json"
RECORDS, CANARIES = 600, 300
SETTINGS: dict[str, dict[str, Any]] = {
    "sequential": {"strategy": "sequential", "workers": 1, "batch_size": 60},
    "sync": {"strategy": "sync", "workers": 4, "batch_size": 60},
    "sync, distrust": {"strategy": "sync", "workers": 2, "batch_size": 60, "distrust": True},
    "averaging": {"strategy": "averaging", "workers": 2, "batch_size": 30},
    "gossip": {"strategy": "gossip", "workers": 2, "batch_size": 30},
    "server": {"strategy": "server", "workers": 2, "batch_size": 30},
    "server, synchronous": {
        "strategy": "server", "workers": 2, "batch_size": 30, "staleness": 0,
    },
}  # fmt: skip


def judge(given: dict[str, Any], seed: int) -> list[Finding]:
    """Return the findings of one rehearsal."""
    config = configure(
        {"private": True, "noise_multiplier": 2.0, "seed": seed, "epochs": STEPS,
         "max_steps": STEPS, **given}
    )  # fmt: skip
    x, y = (torch.from_numpy(part) for part in models.make_records(RECORDS, seed))
    transcripts, terms = rehearse(config, models.layers, cross_entropy, x, y, canaries=CANARIES)
    claim = Claim.of(config, terms)
    guesses = attack(transcripts, claim, transcripts[0].canaries, ALPHA)
    stated = epsilon(Event(terms.steps, terms.rate, terms.noise_multiplier), terms.delta)
    return [*examine(transcripts, claim), guesses.finding(stated)]


def rehearse_one(seed: int) -> tuple[int, str, list[Finding]]:
    """Return a seed, the setting that it stands for, and the findings of one rehearsal."""
    name = list(SETTINGS)[seed % len(SETTINGS)]
    return seed, name, judge(SETTINGS[name], seed)


def main() -> None:
    """Rehearse, print and write."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=200)
    parser.add_argument("--processes", type=int, default=1)
    parser.add_argument("--out", type=Path, default=OUT)
    chosen = parser.parse_args()
    torch.set_num_threads(1)
    runs: Counter[str] = Counter()
    tests: Counter[str] = Counter()
    fired: list[dict[str, Any]] = []
    smallest = 1.0
    pool = get_context("fork").Pool(chosen.processes)
    for seed, name, findings in pool.imap_unordered(rehearse_one, range(chosen.runs)):
        runs[name] += 1
        tests[name] += len(findings)
        smallest = min(smallest, min(each.p for each in findings) * len(findings))
        if found := rejected(findings, ALPHA):
            fired.append({"run": name, "seed": seed, "tests": [each.as_dict() for each in found]})
        record = {
            "alpha": ALPHA,
            "runs": dict(runs),
            "tests": dict(tests),
            "fired": fired,
            "smallest_corrected_p": smallest,
            "records": RECORDS,
            "canaries": CANARIES,
            "steps": STEPS,
        }  # after each run, so that a study that is stopped has its record
        write_json(chosen.out, record)
    print(f"{len(fired)} of {sum(runs.values())} sound runs fired; record: {chosen.out}")
    raise SystemExit(bool(fired))


if __name__ == "__main__":
    main()
