"""Judges what the trials of a strategy left: what holds, what fails, and where it is defined."""

from __future__ import annotations

import math
import os
from typing import Any

import numpy as np

from manyhands.config.strategy_class_rules import describe_class
from manyhands.config.strategy_spec import StrategySpec
from manyhands.config.user_file import source_location
from manyhands.errors import DivergedError
from manyhands.experiments.check.finding import Finding
from manyhands.experiments.check.strategy.supervision import Evidence, Failure, Killed
from manyhands.experiments.check.strategy.traffic import compare_cost, list_traffic
from manyhands.experiments.check.strategy.trial_runs import Subject, needs_every_worker
from manyhands.strategies.strategy import Strategy
from manyhands.worker.abilities import Checkpointable, SplitsModel

# The aspects, in the order of the page.
ASPECTS = {
    "definition": "its definition is accepted",
    "completes": "completes: no deadlock, no exception",
    "learns": "learns: the loss is finite, and clearly smaller at the end",
    "bits": "the same seed gives the same bits",
    "consensus": "consensus is the same on all workers, and changes nothing",
    "data": "every worker's data reaches the result",
    "identical": "all workers hold the same parameters after every step",
    "one": "one worker ends where sequential ends",
    "several": "several workers end where sequential ends",
    "resumes": "a resumed run ends with the bits of one that was not interrupted",
    "killed": "if a worker is killed, the run ends, names it, and leaves no process behind",
    "sends": "sends what its cost says",
    "own": "leaves data, options and the optimizer's settings as they are",
}
_BASES = (StrategySpec, Strategy, Checkpointable)  # no place in them is the user's
_ENOUGH = 0.8  # of the loss at the start, at the most, is left at the end
_ROUNDING = 1e-9  # largest difference of parameters, relative to the largest of them
_DIFFER = "differ from rank 0's"  # how a run says that its replicas are not identical


class Judge:
    """Judges the evidence, aspect by aspect.

    Attributes:
        found: A finding for each aspect.
        required: The aspects that fail if they do not hold.
    """

    def __init__(self, subject: Subject, evidence: Evidence, *, expect_equal: bool) -> None:
        self.subject, self.evidence = subject, evidence
        self.strategy, self.kind = subject.strategy, subject.kind
        self.facts = facts = self.strategy.supports
        self.found = {aspect: Finding(aspect) for aspect in ASPECTS}
        self.found["definition"].status = "pass"
        exact = facts.together and facts.deterministic
        equal = facts.equals_one or expect_equal
        several = subject.several > 1
        claims = {
            "bits": exact,
            "consensus": facts.together,
            "data": needs_every_worker(subject),
            "identical": facts.identical and several,
            "one": equal and 1 in subject.sizes,
            "several": equal and several,
            "resumes": facts.resume,
            "sends": several and self.strategy.cost(subject.several) is not None,
            "own": not facts.shares_memory,
        }
        self.required = [aspect for aspect in ASPECTS if claims.get(aspect, True)]
        self.splits = issubclass(self.kind, SplitsModel)

    def judge(self) -> dict[str, Finding]:
        """Return a finding for each aspect."""
        self._judge_identity()
        self._judge_learning()
        failure = self.evidence.failure
        if failure:
            self._judge_failure(failure)
        if failure is None or failure.trial.resumes:
            self._pass("completes", cases=len(self.evidence.trials))
        self._judge_bits()
        self._judge_consensus()
        self._judge_data()
        self._judge_equality()
        self._judge_resuming()
        self._judge_killed()
        self._judge_traffic()
        self._judge_changes()
        return self.found

    def _pass(self, aspect: str, detail: str = "", cases: int = 1) -> None:
        """Note what holds; what did not before stays."""
        finding = self.found[aspect]
        finding.cases += cases
        if finding.status in ("not checked", "pass"):
            finding.status = "pass"
            finding.details += [detail] if detail else []

    def _fail(self, aspect: str, detail: str, method: str = "") -> None:
        """Note what does not hold, which is a failure where it is required."""
        finding, place = self.found[aspect], self._place(method)
        if finding.status == "pass":
            finding.details.clear()
        finding.fail(f"{detail} ({place})" if place and aspect in self.required else detail)
        finding.cases += 1
        finding.status = "fail" if aspect in self.required else "note"

    def _note(self, aspect: str, detail: str) -> None:
        """Note why there is nothing to judge."""
        self.found[aspect].status = "note"
        self.found[aspect].details.append(detail)

    def _place(self, method: str) -> str:
        """Return where a method of the class is defined, or else the class."""
        owners = (kind for kind in self.kind.__mro__ if method in vars(kind))
        owner = next(owners, self.kind)
        return source_location(self.kind if owner in _BASES else owner, at=method)

    def _judge_failure(self, failure: Failure) -> None:
        text = f"{failure.trial.text}: {_shorten(str(failure.error))}"
        aspect = "resumes" if failure.trial.resumes else "completes"
        if isinstance(failure.error, DivergedError) and aspect == "completes":
            self._fail("learns", text.partition("; the strategy is ")[0], "step")
        elif _DIFFER not in str(failure.error) or self.found["identical"].status != "fail":
            own = self.found[aspect]
            own.fail(text if self._names_line(text) else f"{text} ({self._place('step')})")
            own.ranks, own.cases = failure.ranks, 1

    def _names_line(self, text: str) -> bool:
        return ", line " in text or ".py:" in text

    def _judge_learning(self) -> None:
        for name, outcome in self.evidence.outcomes.items():
            if name not in ("one", "several") and not name.startswith("P"):
                continue
            first = [row["loss"] for row in outcome.steps if row["step"] == 1]
            start = float(np.mean([loss for loss in first if loss is not None] or [math.nan]))
            end = outcome.record["result"]["loss"]
            workers = _workers(outcome.record["config"]["workers"])
            text = f"{workers}: the loss went from {start:.3g} to {end:.3g}"
            if math.isfinite(end) and not end > _ENOUGH * start:
                self._pass("learns", text if name != "one" else "")
            else:
                self._fail("learns", text, "step")

    def _judge_identity(self) -> None:
        """Compare the workers' parameters after every step."""
        if self.splits or not self.facts.together:
            parts = "each process trains a part of the model"
            self._note("identical", parts if self.splits else "its workers do not step together")
            return
        for trial in self.evidence.trials:
            rows = self._steps(trial.name)[: trial.workers]
            if len(rows) < 2:
                continue
            for step in sorted(set.intersection(*map(set, rows))):
                other = [r for r, row in enumerate(rows) if row[step] != rows[0][step]]
                if other:
                    ranks = f"rank {other[0]} differs from rank 0 after step {step}"
                    claim = "; it claims identical=True" if self.facts.identical else ""
                    self._fail("identical", f"{trial.text}: {ranks}{claim}", "supports")
                    return
        if any(len(self._steps(t.name)) > 1 for t in self.evidence.trials):
            self._pass("identical")

    def _steps(self, name: str) -> list[dict[int, str]]:
        """Return each process's digests of its parameters, by step."""
        probes = self.evidence.probes.get(name, [])
        return [
            {row["step"]: row["params"] for row in rows if row["kind"] == "step"} for rows in probes
        ]

    def _differs(self, one: str, other: str) -> str:
        """Return where two trials differ; "" if they have the same bits."""
        a, b = self.evidence.outcomes[one], self.evidence.outcomes[other]
        for step, rank in sorted(
            (step, rank)
            for rank, (x, y) in enumerate(zip(self._steps(one), self._steps(other), strict=False))
            for step in x.keys() & y.keys()
            if x[step] != y[step]
        ):
            return f"from step {step} on, on rank {rank}"
        if np.array_equal(a.params, b.params):
            return ""
        return f"by {np.abs(a.params - b.params).max():.2g} in what consensus returns at the end"

    def _base(self) -> str:
        return "several" if self.subject.several > 1 else "one"

    def _judge_bits(self) -> None:
        base = self._base()
        if not {base, "again"} <= self.evidence.outcomes.keys():
            return
        if apart := self._differs(base, "again"):
            hint = "; seed a generator of your own with worker.config.seed"
            self._fail("bits", f"two runs differ {apart}{hint}", "step")
        else:
            self._pass("bits")

    def _judge_consensus(self) -> None:
        if not self.facts.together:
            self._note("consensus", "its workers do not step together: worker 0 alone calls it")
            return
        for trial in self.evidence.trials:
            probes = self.evidence.probes.get(trial.name, [])
            calls = [[row for row in rows if row["kind"] == "consensus"] for rows in probes]
            for rank, rows in enumerate(calls):
                for row in rows:
                    if row["before"] != row["after"]:
                        what = f"consensus changed worker.params of rank {rank} after step"
                        self._fail("consensus", f"{what} {row['step']}", "consensus")
                        return
            rounds: list[Any] = [] if self.splits else list(zip(*calls, strict=False))
            for together in rounds:
                if len({row["result"] for row in together}) > 1:
                    what = "consensus returned different bits on the workers"
                    detail = f"{trial.text}: {what} after step {together[0]['step']}"
                    self._fail("consensus", detail, "consensus")
                    return
        base, bits = self._base(), self.found["bits"].status == "pass"
        if bits and {base, "often"} <= self.evidence.outcomes.keys():
            if apart := self._differs(base, "often"):
                what = f"a run that is evaluated every 3 steps differs {apart}"
                self._fail("consensus", f"{what}: consensus changes something", "consensus")
            else:
                self._pass("consensus")

    def _judge_data(self) -> None:
        """Compare runs, in each of which one worker has other examples, with one without."""
        if "data" not in self.required:
            alone = self.subject.several == 1
            self._note("data", "there is one worker" if alone else "its bits depend on timing")
            return
        if self.found["bits"].status != "pass":
            return
        for trial in self.evidence.trials:
            if trial.changed is None or trial.name not in self.evidence.outcomes:
                continue
            if self._differs(self._base(), trial.name):
                self._pass("data")
            else:
                what = "the result is the same, bit for bit"
                self._fail("data", f"{trial.text}: {what}", "step")

    def _judge_equality(self) -> None:
        for name, apart in self.differences().items():
            aspect = "one" if name == 1 else "several"
            scale = float(np.abs(self.evidence.outcomes["reference"].params).max())
            if apart <= _ROUNDING * scale:
                if self.found[aspect].status == "not checked":
                    self._pass(aspect)
            else:
                text = f"does not with {_workers(name)}: largest difference {apart:.2g}"
                self._fail(aspect, text, "step")

    def differences(self) -> dict[int, float]:
        """Return the largest difference of a parameter from sequential's, by workers."""
        outcomes = self.evidence.outcomes
        return {
            trial.workers: float(
                np.abs(outcomes[trial.name].params - outcomes["reference"].params).max()
            )
            for trial in self.evidence.trials
            if trial.name in outcomes
            and (trial.name in ("one", "several") or trial.name.startswith("P"))
        }

    def _judge_resuming(self) -> None:
        if not self.facts.resume:
            self._note("resumes", "it does not resume: its supports has no resume")
            return
        base, exact = self._base(), "bits" in self.required
        if not {base, "resumed"} <= self.evidence.outcomes.keys():
            return
        if not exact:
            self._note("resumes", "it resumes; its bits depend on timing")
        elif self.found["bits"].status != "pass":
            return
        elif apart := self._differs(base, "resumed"):
            lost = self._lost_state()
            what = f"; {lost} is not what it was at the checkpoint" if lost else ""
            self._fail("resumes", f"a resumed run differs {apart}{what}", "state")
        else:
            self._pass("resumes")

    def _lost_state(self) -> str:
        """Return what of worker.state a resumed run does not have as it was."""
        halves, resumed = (self.evidence.probes.get(name, []) for name in ("half", "resumed"))
        for before, after in zip(halves, resumed, strict=False):
            begun = next((row["state"] for row in after if row["kind"] == "begin"), None)
            ended = [row["state"] for row in before if row["kind"] == "step"]
            if begun is not None and ended:
                lost = [name for name, digest in ended[-1].items() if begun.get(name) != digest]
                return " and ".join(lost[:3])
        return ""

    def _judge_killed(self) -> None:
        killed, outlived = self.evidence.killed, self.evidence.outlived
        if killed is None:
            return
        who = f"rank {killed.rank} of {_workers(killed.workers)} killed"
        if killed.error is None:
            self._fail("killed", f"{who}: the run went on as if nothing had happened")
        elif f"rank {killed.rank}" not in str(killed.error):
            self._fail("killed", f"{who}, but the error does not say so: {killed.error}")
        else:
            end = _shorten(str(killed.error).split("; last seen")[0])
            self._pass("killed", f"{who}: {end}, after {killed.seconds:.0f} s")
        if killed.left:
            self._fail("killed", f"{who}: {', '.join(killed.left[:3])} left behind")
        if isinstance(outlived, Killed):
            who = f"rank {outlived.rank} of {_workers(outlived.workers)} killed"
            if outlived.error or not outlived.lost:
                why = f": {_shorten(str(outlived.error))}" if outlived.error else ""
                self._fail("killed", f"{who}: supports.outlives, but the others do not go on{why}")
            else:
                self._pass("killed", f"{who} with --on-failure continue: the others go on")
        elif outlived:
            self.found["killed"].details.append("--on-failure continue: not tried without Open MPI")

    def _judge_traffic(self) -> None:
        rows = list_traffic(self.subject, self.evidence)
        if not rows:
            return
        if "sends" not in self.required:
            self._note("sends", "it gives no cost")
            return
        for row in rows:
            if wrong := compare_cost(row):
                self._fail("sends", f"{_workers(row['workers'])}: {wrong}", "cost")
        if self.found["sends"].status == "not checked":
            self._pass("sends", cases=len(rows))

    def _judge_changes(self) -> None:
        ended = False
        for trial in self.evidence.trials:
            for rank, rows in enumerate(self.evidence.probes.get(trial.name, [])):
                for row in rows:
                    ended |= row["kind"] == "end"
                    if row["kind"] == "end" and row["changed"]:
                        what = f"{trial.text}: rank {rank} changed {', '.join(row['changed'][:3])}"
                        self._fail("own", what, "step")
                        return
                    if row["kind"] == "step" and row["moved"] and not self.splits:
                        what = "worker.params is another tensor after step"
                        self._fail(
                            "own", f"{what} {row['step']}; change it in place, by copy_", "step"
                        )
                        return
        if ended:
            self._pass("own")
        elif self.facts.shares_memory:
            self._note("own", "runs whose workers share memory are not observed")


def refuse(kind: Any, message: str) -> dict[str, Finding]:
    """Return the findings for a class that is no strategy."""
    found = {aspect: Finding(aspect) for aspect in ASPECTS}
    place = f" ({describe_class(kind)})" if ".py" not in message else ""
    found["definition"].fail(f"{_shorten(message)}{place}")
    return found


def _workers(count: int) -> str:
    return "one worker" if count == 1 else f"{count} workers"


def _shorten(text: str) -> str:
    """Return the first line of an error, with paths relative to the working folder."""
    return text.split("\n")[0].replace(f"{os.getcwd()}/", "")
