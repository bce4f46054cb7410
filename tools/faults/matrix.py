"""Injects faults into real runs and says what became of them: `make faults`.

Every strategy × the phases of a run × {SIGKILL, SIGSTOP}, its rank 0, its masters, the launcher,
signals, a full disk: the others must end, with a message that names the rank, and leave no process
and nothing in shared memory. The run is then resumed from its last checkpoint, or restarts itself:
where the strategy is deterministic, to the very bits of a run never disturbed; elsewhere with every
update counted once. Where it can go on without the dead (`--on-failure continue`) it must end by
itself, where replicas are identical with the weights of a run never disturbed. Other faults have
tests of their own, which run as well (`rows.py`).

What was found is kept case by case: a matrix that was interrupted goes on where it was.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import re
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import page
import rows
from cases import Case, cases, masters, planned, struck, when
from memory import Mapped
from processes import processes
from safetensors.numpy import load_file

from manyhands.launch.machine import cores
from manyhands.strategies import STRATEGIES
from manyhands.testing import VARIABLE, Fault

LIMIT = 120  # seconds after which the case itself counts as hung
CLOSE = 1e-9  # how far a run that has outlived a worker may end from one that did not have to


@dataclass
class Outcome:
    """What became of one case."""

    case: Case
    code: int | None = None
    seconds: float = 0.0
    hung: bool = False
    named: bool = False
    orphans: int = 0
    residue: int = 0
    resumed: str = "–"
    lost_steps: int | None = None
    said: str = ""
    when: str = ""

    @property
    def promised(self) -> bool:
        """Whether it ended as promised."""
        wanted = {"SIGINT": 130, "SIGTERM": 143, "kill-launcher": -signal.SIGKILL, "refused": 2}
        ended = self.code == wanted.get(self.case.action, int(self.case.ends))
        left = self.orphans or self.residue
        return ended and self.named and not left and not self.resumed.startswith("wrong")


def run(
    line: list[str],
    temporary: Path,
    faults: str = "",
    strike: Callable[[subprocess.Popen[str]], None] | None = None,
) -> tuple[int | None, str]:
    """Run a command to its end; None for the exit code if it did not end in time."""
    environment = {**os.environ, "TMPDIR": str(temporary)} | ({VARIABLE: faults} if faults else {})
    process = subprocess.Popen(
        line, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True
    )
    striker = threading.Thread(target=strike or (lambda _: None), args=(process,))
    striker.start()
    try:
        _, said = process.communicate(timeout=LIMIT)
        return process.returncode, said
    except subprocess.TimeoutExpired:
        process.kill()
        return None, process.communicate()[1]
    finally:
        striker.join()


def checkpoints(output: Path) -> list[int]:
    """Return the steps of the checkpoints that are there."""
    return sorted(int(p.name.removeprefix("step-")) for p in output.glob("checkpoints/step-*"))


def eventually(condition: Callable[[], bool], seconds: float) -> bool:
    deadline = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.05)
    return True


def alive(folder: Path) -> list[int]:
    """Return the processes whose command line names a job of this case."""
    mark = str(folder).encode()
    found = processes(lambda line: mark in line and b"manyhands" in line)
    return [pid for pid in found if pid != os.getpid()]


def strike(case: Case, expected: np.ndarray | None, *, go_on: bool = True) -> Outcome:
    """Do one case, and look at what is left; `expected` are the weights of a run left alone."""
    outcome = Outcome(case, when=page.about()["when"])
    with tempfile.TemporaryDirectory(prefix="faults-") as place:
        folder, output = Path(place), Path(place) / "run"
        begin = time.monotonic()
        with Mapped(folder) as memory:
            if case.outside:
                hit = _outside(case, output)
                outcome.code, said = run(struck(case, output), folder, strike=hit)
            elif case.refused:
                outcome.code, said = run(struck(case, output), folder)
            else:
                fault = Fault(case.action, case.rank, when(case), case.phase)
                faults = json.dumps({"struck": place, "faults": [asdict(fault)]})
                outcome.code, said = run(struck(case, output), folder, faults)
        outcome.seconds = round(time.monotonic() - begin, 1)
        outcome.hung = outcome.code is None
        outcome.named = names(case, said)
        eventually(lambda: not alive(folder), 10)
        outcome.orphans, outcome.residue = len(alive(folder)), len(memory.left(5))
        if case.phase and not any(folder.glob(f"{case.action}-{case.rank}-*")):
            outcome.resumed = "wrong: the fault never struck"
        elif case.refused:
            outcome.resumed = "wrong: something was written" if output.exists() else "–"
        elif not case.ends:
            outcome.resumed = _ended(case, outcome.code, output, expected)
        elif go_on:
            _go_on(outcome, output, folder, expected, said)
        outcome.said = "" if outcome.promised else said[-2000:]
    return outcome


def _outside(case: Case, output: Path) -> Callable[[subprocess.Popen[str]], None]:
    """Return what strikes a launcher as soon as its run has written a checkpoint."""
    number = signal.SIGKILL if case.action == "kill-launcher" else signal.Signals[case.action]

    def hit(process: subprocess.Popen[str]) -> None:
        eventually(lambda: bool(checkpoints(output)) or process.poll() is not None, LIMIT)
        process.send_signal(number)

    return hit


def names(case: Case, said: str) -> bool:
    """Say whether the message tells what it must: the rank, the disk, how to go on."""
    if case.action == "kill-launcher":
        return True  # nobody is left to tell
    if case.outside:
        return "--resume" in said
    if case.refused:
        return "on_failure is 'continue', but" in said and "; use " in said
    if case.action == "fail_write":
        return "File too large" in said
    return f"rank {case.rank} died" in said or f"missing: rank {case.rank} " in said


def _ended(case: Case, code: int | None, output: Path, expected: np.ndarray | None) -> str:
    """Say how a run ended that restarted itself, or went on without the dead."""
    if code != 0:
        return f"wrong: exit {code}"
    record = json.loads((output / "run.json").read_text())
    story = record["story"]
    if case.then == "restart":
        restarted = any("restarted_from" in event for event in story)
        return _compared(output, expected) if restarted else f"wrong: {story}"
    facts, seen = STRATEGIES[case.strategy]().supports, record["result"]["examples"]
    whole = seen == record["config"]["epochs"] * record["data"]["train"]
    heirs = [heir["by"] for event in story for heir in event.get("taken_over", [])]
    lost = [event["lost"] for event in story if "lost" in event]
    again = [event["restarted_from"] for event in story if "restarted_from" in event]
    early = case.phase in ("start", "load")
    alone = lost == ([] if early else [[case.rank]]) and len(again) == case.grows
    if not alone or not whole or bool(heirs) != case.inherits:
        return f"wrong: {seen} examples, {story}"
    if not facts.identical or expected is None:
        return "went on" if facts.together else "nothing lost"
    apart = float(np.abs(weights(output) - expected).max())
    return "same end" if apart < CLOSE else f"wrong: {apart} apart"


def _compared(output: Path, expected: np.ndarray | None) -> str:
    if expected is None:
        return complete(output)
    return "same bits" if np.array_equal(weights(output), expected) else "wrong: other bits"


def _go_on(
    outcome: Outcome, output: Path, folder: Path, expected: np.ndarray | None, said: str
) -> None:
    """Go on with the run, where a checkpoint had been written, and look at its end."""
    case, steps = outcome.case, checkpoints(output)
    if not steps:
        outcome.resumed = "no checkpoint yet"
        return
    pattern = rf"rank {case.rank} (?:at step (\d+)|\(\w+ \w+, step (\d+)\))"
    told = [int(a or b) for a, b in re.findall(pattern, said)]
    if told and case.rank not in masters(case.strategy):
        outcome.lost_steps = max(0, max(told) - steps[-1])
    line = [sys.executable, "-m", "manyhands", "train", "--resume", str(output)]
    code, end = run([*line, "--timeout", "60"], folder)
    wrong = f"wrong: exit {code}: {end[-300:]}"
    outcome.resumed = wrong if code != 0 else _compared(output, expected)


def weights(output: Path) -> np.ndarray:
    """Return the weights that a run ended with, as one vector."""
    found = load_file(output / "model.safetensors")
    return np.concatenate([found[name].ravel() for name in sorted(found)])


def complete(output: Path) -> str:
    """Say whether a run that does not repeat itself has counted every update, once."""
    record = json.loads((output / "run.json").read_text())
    examples = record["config"]["epochs"] * record["data"]["train"]
    updates = sum(record["strategy"]["staleness"]["histogram"].values())
    steps = sum(w["steps"] for w in record["workers"] if w["role"] == "worker")
    right = record["result"]["examples"] == examples and updates == steps
    return "nothing lost" if right else f"wrong: {record['result']['examples']}, {updates}, {steps}"


def undisturbed(strategy: str, kind: str) -> np.ndarray | None:
    """Return the weights of a run left alone; None where runs do not repeat themselves."""
    if kind == "none" or not STRATEGIES[strategy]().supports.deterministic:
        return None
    with tempfile.TemporaryDirectory(prefix="faults-") as place:
        output = Path(place) / "run"
        code, said = run(planned(strategy, kind, output), Path(place))
        if code != 0:
            raise SystemExit(f"{strategy} fails undisturbed: {said}")
        return weights(output)


def known(path: Path) -> dict[str, Outcome]:
    """Return the outcomes that an interrupted matrix had found."""
    lines = path.read_text().splitlines() if path.exists() else []
    return _outcomes([json.loads(line) for line in lines])


def _outcomes(found: list[dict[str, Any]], when: str = "") -> dict[str, Outcome]:
    outcomes = {}
    for told in found:
        told = {"when": when, **told, "case": Case(**told["case"])}
        told.pop("promised", None)
        outcomes[str(told["case"])] = Outcome(**told)
    return outcomes


def before(path: Path, again: str) -> tuple[dict[str, Any], dict[str, Outcome]]:
    """Return an earlier record, and its outcomes but for those that are struck again."""
    record = json.loads(path.read_text())
    found = _outcomes(record.pop("outcomes"), record["when"])
    return record, {name: o for name, o in found.items() if not re.search(again, name)}


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--strategies", default=",".join(STRATEGIES))
    parser.add_argument(
        "--then", default="stop,restart,continue,grow", help="what runs are told to do"
    )
    parser.add_argument(
        "--again",
        help="strike only the cases that match this, and those that --out lacks; the rest of --out "
        "stays ('rows' runs the tests of other faults again)",
    )
    parser.add_argument(
        "--minutes", type=float, default=math.inf, help="begin no case later than that; go on anon"
    )
    parser.add_argument(
        "--so-far", action="store_true", help="write what is known if cases are left, and say so"
    )
    parser.add_argument("--first", default="", help="strike the cases that match this first")
    parser.add_argument("--jobs", type=int, default=cores() + 1, help="cases at once")
    parser.add_argument("--out", type=Path, required=True, help="write the outcomes as JSON")
    parser.add_argument("--page", type=Path, help="write the table as a page")
    return parser.parse_args()


def _strike_all(due: list[Case], partial: Path, *, jobs: int, end: float) -> dict[str, Outcome]:
    """Strike the cases, several at once; keep each outcome in `partial` as soon as it is known.

    Args:
        due: The cases, in this order.
        partial: The file of outcomes, a line each.
        jobs: How many at once.
        end: The monotonic time after which no case begins.
    """
    done: dict[str, Outcome] = {}
    lock, turns = threading.Lock(), {(c.strategy, c.kind): threading.Lock() for c in due}
    ends: dict[tuple[str, str], np.ndarray | None] = {}

    def expected(case: Case) -> np.ndarray | None:
        kind = case.strategy, case.kind
        with turns[kind]:  # found out once, when the first case of its kind needs it
            if kind not in ends:
                ends[kind] = undisturbed(*kind)
        return ends[kind]

    def do(case: Case) -> None:
        if time.monotonic() > end:
            return
        # What a stopped worker leaves is what a killed one leaves; once is enough to see it.
        again = case.action != "stop" or case.phase == "checkpoint"
        outcome = strike(case, expected(case), go_on=again)
        with lock, partial.open("a") as file:
            file.write(json.dumps(asdict(outcome)) + "\n")
            done[str(case)] = outcome
        mark = "as promised" if outcome.promised else "NOT AS PROMISED"
        print(f"{case}: {mark}; {outcome.resumed}; {outcome.seconds} s {outcome.said}", flush=True)

    with ThreadPoolExecutor(jobs) as pool:
        list(pool.map(do, due))
    return done


def main() -> int:
    options = _options()
    chosen = [case for case in cases() if case.strategy in options.strategies.split(",")]
    chosen = [case for case in chosen if case.then in options.then.split(",")]
    partial = options.out.with_suffix(".partial.jsonl")
    record, done = page.about(), known(partial)
    if options.again:
        record, kept = before(options.out, options.again)
        done = {**kept, **done}
    begin = time.monotonic()
    due = [case for case in chosen if str(case) not in done]
    due.sort(key=lambda case: not re.search(options.first, str(case)))
    done |= _strike_all(due, partial, jobs=options.jobs, end=begin + 60 * options.minutes)
    left = [str(case) for case in chosen if str(case) not in done]
    if left and not options.so_far:
        print(f"{len(left)} cases are left; the same command goes on with them")
        return 1
    outcomes = [done[str(case)] for case in chosen if str(case) in done]
    anew = not options.again or re.search(options.again, "rows")
    tested = rows.check() if anew else record["rows"]
    text = page.summary(outcomes, tested)
    found = {"seconds": round(time.monotonic() - begin), **record, "left": left, "rows": tested}
    found["outcomes"] = [{**asdict(o), "promised": o.promised} for o in outcomes]
    options.out.write_text(json.dumps(found, indent=1) + "\n")
    if options.page:
        options.page.write_text(page.written(outcomes, tested, found))
    partial.unlink(missing_ok=True)
    print(text)
    kept = all(o.promised for o in outcomes) and all(page.holds(row) for row in tested)
    return int(not kept or bool(left))


if __name__ == "__main__":
    raise SystemExit(main())
