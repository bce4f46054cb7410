"""Injects faults into real runs and says what became of them: `python tests/faults/matrix.py`.

Every strategy × the phases of a run × {SIGKILL, SIGSTOP}: the others must end, with a message that
names the rank, and leave no process and nothing in shared memory. Where the strategy can go on from
a checkpoint, the run is resumed, and must end with the very bits of a run never disturbed.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import subprocess
import sys
import tempfile
import time
from dataclasses import asdict, dataclass
from pathlib import Path

from manyhands.strategies import STRATEGIES
from manyhands.testing import Faults

PHASES = ("start", "load", "gradient", "exchange", "update", "checkpoint", "evaluate", "record")
STEP = {
    "gradient": 45,
    "exchange": 45,
    "update": 45,
    "checkpoint": 40,
    "evaluate": 40,
    "record": 80,
}
TIMEOUT = 8  # seconds without a word until a stopped worker counts as hanging
COUNTED = ("promised", "hung", "orphans", "residue")
LIMIT = 90  # seconds after which the case itself counts as hung
OPTIONS = {
    "sequential": ["--workers", "1"],
    "server": ["--workers", "2", "--masters", "1"],
}


@dataclass
class Outcome:
    """What became of one case."""

    strategy: str
    phase: str
    action: str
    code: int | None = None
    seconds: float = 0.0
    hung: bool = False
    named: bool = False
    orphans: int = 0
    residue: int = 0
    resumed: str = "–"
    lost_steps: int | None = None

    @property
    def promised(self) -> bool:
        """Whether it ended as promised."""
        ended = not self.hung and self.code not in (0, None)
        return (
            ended
            and self.named
            and not self.orphans
            and not self.residue
            and self.resumed != "wrong"
        )


def shared() -> set[str]:
    """Return what is in shared memory and in nobody's use: runs beside this one do not count."""
    used = set()
    for path in Path("/proc").glob("[0-9]*/maps"):
        try:
            used |= {
                line.rpartition("/")[2]
                for line in path.read_text().splitlines()
                if "/dev/shm/" in line
            }
        except OSError:
            continue
    return {path.name for path in Path("/dev/shm").iterdir()} - used


def orphans(folder: Path) -> list[int]:
    """Return the processes whose command line names a job of this case."""
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            line = path.read_bytes()
        except OSError:
            continue
        if (
            str(folder).encode() in line
            and b"manyhands" in line
            and path.parent.name != str(os.getpid())
        ):
            found.append(int(path.parent.name))
    return found


def train(strategy: str, output: Path, *more: str) -> list[str]:
    """Return the command of one small run: 2 epochs of 40 steps."""
    line = [
        sys.executable,
        "-m",
        "manyhands",
        "train",
        "--strategy",
        strategy,
        "--output",
        str(output),
    ]
    line += ["--data", "blobs", "--model", "mlp", "--epochs", "2", "--kernels", "default"]
    line += [
        "--batch-size",
        "50",
        "--timeout",
        str(TIMEOUT),
        *OPTIONS.get(strategy, ["--workers", "2"]),
    ]
    if STRATEGIES[strategy].supports.resume:
        line += ["--checkpoint-every", "20steps"]
    return [*line, *more]


def run(line: list[str], temporary: Path) -> tuple[int | None, str]:
    """Run a command to its end; None for the exit code if it did not end in time."""
    environment = {**os.environ, "TMPDIR": str(temporary)}
    process = subprocess.Popen(
        line, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True
    )
    try:
        _, said = process.communicate(timeout=LIMIT)
    except subprocess.TimeoutExpired:
        process.kill()
        _, said = process.communicate()
        return None, said
    return process.returncode, said


def weights(output: Path) -> str:
    return hashlib.sha256((output / "model.safetensors").read_bytes()).hexdigest()


def when(strategy: str, phase: str) -> int:
    """Return the step at which worker 1 passes the phase; whole batches halve the steps."""
    if strategy == "averaging" and phase == "exchange":
        return 80  # the only average is at the end
    step = STEP.get(phase, 0)
    return step // 2 + 5 * (step == 45) if STRATEGIES[strategy].supports.whole_batches else step


def case(strategy: str, phase: str, action: str, expected: str | None) -> Outcome:
    """Strike one worker of one run, and look at what is left."""
    outcome = Outcome(strategy, phase, action)
    rank = 0 if strategy == "sequential" else 1
    faults = Faults()
    getattr(faults, action)(rank=rank, step=when(strategy, phase), phase=phase)
    with tempfile.TemporaryDirectory(prefix="faults-") as place:
        folder, output = Path(place), Path(place) / "run"
        before, begin = shared(), time.monotonic()
        with faults:
            outcome.code, said = run(train(strategy, output), folder)
        outcome.seconds = round(time.monotonic() - begin, 1)
        outcome.hung = outcome.code is None
        outcome.named = f"rank {rank} died" in said or f"missing: rank {rank} " in said
        time.sleep(0.5)
        outcome.orphans = len(orphans(folder))
        outcome.residue = len(shared() - before)
        if STRATEGIES[strategy].supports.resume and expected:
            _resume(outcome, strategy, output, folder, expected)
    return outcome


def _resume(outcome: Outcome, strategy: str, output: Path, folder: Path, expected: str) -> None:
    """Go on with the run, where a checkpoint had been written, and compare the end."""
    steps = sorted(int(p.name.removeprefix("step-")) for p in output.glob("checkpoints/step-*"))
    if not steps:
        outcome.resumed = "no checkpoint yet"
        return
    outcome.lost_steps = max(0, when(strategy, outcome.phase) - steps[-1])
    line = [sys.executable, "-m", "manyhands", "train", "--resume", str(output)]
    code, _ = run(line, folder)
    outcome.resumed = "same bits" if code == 0 and weights(output) == expected else "wrong"


def phases(strategy: str) -> list[str]:
    """Return the phases that a worker of this strategy passes."""
    absent = set()
    if not STRATEGIES[strategy].supports.resume:
        absent |= {"checkpoint"}
    if strategy in ("sequential", "hogwild"):
        absent |= {"exchange"}  # nothing is sent
    if not STRATEGIES[strategy].supports.together:
        absent |= {"evaluate"}  # worker 1 is not asked to judge during training
    if strategy == "server":
        absent |= {"update"}  # the masters' work
    return [phase for phase in PHASES if phase not in absent]


def undisturbed(strategy: str) -> str:
    with tempfile.TemporaryDirectory(prefix="faults-") as place:
        output = Path(place) / "run"
        code, said = run(train(strategy, output), Path(place))
        if code != 0:
            raise SystemExit(f"{strategy} fails undisturbed: {said}")
        return weights(output)


def page(outcomes: list[Outcome]) -> str:
    """Return the table by strategy, and what it means."""
    names = ("faults", "as promised", "hung", "orphans", "left in shared memory")
    lines = ["| strategy | " + " | ".join(names) + " | resumed, same bits |", "|" + "---|" * 7]
    for strategy in dict.fromkeys(o.strategy for o in outcomes):
        mine = [o for o in outcomes if o.strategy == strategy]
        resumed = [o for o in mine if o.resumed in ("same bits", "wrong")]
        same = sum(o.resumed == "same bits" for o in resumed)
        counts = [len(mine), *(sum(getattr(o, n) for o in mine) for n in COUNTED)]
        told = f"{same} of {len(resumed)}" if resumed else "–"
        lines.append(f"| {strategy} | {' | '.join(map(str, counts))} | {told} |")
    lost = max((o.lost_steps or 0 for o in outcomes), default=0)
    text = (Path(__file__).parent / "page.md").read_text()
    return text.format(table="\n".join(lines), lost=lost)


def _write(outcomes: list[Outcome], out: Path | None, to: Path | None) -> None:
    """Write what is known so far: a matrix that is cut short is still worth something."""
    if out:
        out.write_text(json.dumps([asdict(o) for o in outcomes]) + "\n")
    if to:
        to.write_text(page(outcomes))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--strategies", default=",".join(STRATEGIES))
    parser.add_argument("--actions", default="kill,stop")
    parser.add_argument("--out", type=Path, help="write the outcomes as JSON")
    parser.add_argument("--page", type=Path, help="write the table as a page")
    options = parser.parse_args()
    outcomes = []
    for strategy in options.strategies.split(","):
        expected = undisturbed(strategy) if STRATEGIES[strategy].supports.resume else None
        for phase in phases(strategy):
            for action in options.actions.split(","):
                outcome = case(strategy, phase, action, expected)
                outcomes.append(outcome)
                mark = "as promised" if outcome.promised else "NOT AS PROMISED"
                print(f"{strategy:10} {phase:10} {action:5} {mark}: {asdict(outcome)}", flush=True)
                _write(outcomes, options.out, options.page)
    kept = sum(o.promised for o in outcomes)
    hung, left = sum(o.hung for o in outcomes), sum(o.orphans for o in outcomes)
    residue = sum(o.residue for o in outcomes)
    print(
        f"{len(outcomes)} faults, {kept} ended as promised, {hung} hung, {left} orphans", end=", "
    )
    print(f"{residue} left in shared memory")
    return int(kept < len(outcomes))


if __name__ == "__main__":
    raise SystemExit(main())
