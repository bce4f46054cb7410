"""What `make faults` found, as a page."""

from __future__ import annotations

import datetime
import json
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any

from manyhands._version import __version__
from manyhands.launch.machine import cores, cpu_name

if TYPE_CHECKING:
    from matrix import Outcome

TEMPLATE = Path(__file__).parent / "page.md"
RECORDS = Path(__file__).parents[2] / "docs/records"
GROUPS = {
    "kill": "SIGKILL of a worker",
    "stop": "SIGSTOP of a worker",
    "rank 0": "SIGKILL of rank 0",
    "master": "a master killed or stopped",
    "fail_write": "the disk is full",
    "kill-launcher": "SIGKILL of the launcher",
    "signal": "SIGINT, SIGTERM",
    "refused": "`--on-failure continue` where that is not possible: refused before anything starts",
    "restart": "killed or stopped, with `--on-failure restart`",
    "continue": "killed or stopped, with `--on-failure continue`",
    "grow": "killed, with `--on-failure continue --min-workers`",
}
RIGHT = ("same bits", "nothing lost", "same end", "went on")


def about() -> dict[str, Any]:
    """Return where and when this was found."""
    now = datetime.datetime.now(datetime.timezone.utc)
    return {
        "manyhands": __version__,
        "when": now.date().isoformat(),
        "cores": cores(),
        "cpu": cpu_name(),
        "command": "make faults",
    }


def group(outcome: Outcome) -> str:
    """Return the kind of fault that this was."""
    from cases import masters, processes

    case = outcome.case
    if case.then != "stop":
        return case.action if case.refused else case.then
    if case.action.startswith("SIG"):
        return "signal"
    if case.action in ("fail_write", "kill-launcher"):
        return case.action
    if case.rank in masters(case.strategy):
        return "master"
    return "rank 0" if case.rank == 0 and processes(case.strategy) > 1 else case.action


def counts(outcomes: list[Outcome]) -> list[str]:
    """Return one line's cells: tried, promised, hung, orphans, residue, resumed, lost."""
    resumed = [o for o in outcomes if o.resumed in RIGHT]
    tried = [o for o in outcomes if o.resumed not in ("–", "no checkpoint yet")]
    lost = [o.lost_steps for o in outcomes if o.lost_steps is not None]
    numbers = [len(outcomes), sum(o.promised for o in outcomes), sum(o.hung for o in outcomes)]
    numbers += [sum(o.orphans for o in outcomes), sum(o.residue for o in outcomes)]
    back = f"{len(resumed)} of {len(tried)}" if tried else "–"
    return [*map(str, numbers), back, str(max(lost)) if lost else "–"]


def table(first: str, lines: dict[str, list[Outcome]]) -> str:
    """Return a table with a line for each entry."""
    heads = [first, "faults", "as promised", "hung", "orphans", "left in shared memory"]
    heads += ["continued correctly", "most steps lost"]
    rows = [heads, ["---"] * len(heads)]
    rows += [[name, *counts(outcomes)] for name, outcomes in lines.items() if outcomes]
    return "\n".join("| " + " | ".join(row) + " |" for row in rows)


def holds(row: dict[str, Any]) -> bool:
    """Say whether every test of a row ran and passed."""
    return bool(row["complete"] and row["tried"] and row["passed"] == row["tried"])


def written(outcomes: list[Outcome], tested: list[dict[str, Any]], facts: dict[str, Any]) -> str:
    """Return the page; `facts` say where and when the matrix was run."""
    strategies = dict.fromkeys(o.case.strategy for o in outcomes)
    by_strategy = {s: [o for o in outcomes if o.case.strategy == s] for s in strategies}
    by_strategy["all"] = outcomes
    kinds = {title: [o for o in outcomes if group(o) == kind] for kind, title in GROUPS.items()}
    rows = ["| given | then | tests | passed |", "|---|---|---|---|"]
    rows += [f"| {r['given']} | {r['then']} | {r['tried']} | {r['passed']} |" for r in tested]
    failed = [f"- {o.case}: {_why(o)}" for o in outcomes if not o.promised]
    failed += [f"- {row['given']}: not every test passed" for row in tested if not holds(row)]
    later = sorted({o.when for o in outcomes if o.when > facts["when"]})
    return TEMPLATE.read_text().format(
        strategies=table("strategy", by_strategy),
        kinds=table("fault", kinds),
        rows="\n".join(rows),
        tested=f"run on {facts.get('rows_when', facts['when'])}",
        failed="\n".join([_verdict(failed, len(outcomes)), *_left(facts.get("left", []))]),
        machine=_machine(facts) + "".join(f"; some cases again on {day}" for day in later),
        survival=survival(),
        commands=commands(),
        fuzz=fuzz(),
        soak=soak(),
    )


def _verdict(failed: list[str], tried: int) -> str:
    return "\n".join(["Not as promised:", "", *failed]) if failed else f"All {tried} as promised."


def _left(names: list[str]) -> list[str]:
    """Return what the page says of cases that are planned, but were not struck yet."""
    kinds = Counter((n.partition(":")[0], n.partition(", then ")[2] or "stop") for n in names)
    told = "; ".join(
        f"{strategy}, then {then}: {count}" for (strategy, then), count in kinds.items()
    )
    return ["", f"{len(names)} more are planned and not struck yet ({told})."] if names else []


def _machine(facts: dict[str, Any]) -> str:
    return f"{facts['cores']} cores, {facts['cpu']}, {facts['when']}"


def _recorded(name: str) -> dict[str, Any] | None:
    path = RECORDS / name
    return json.loads(path.read_text()) if path.exists() else None


def survival() -> str:
    """Return what became of runs that lost three workers, as recorded."""
    found = _recorded("survival.json")
    if found is None:
        return "No record of it is committed yet: `python studies/survival.py`."
    rows = ["| run | deaths | test accuracy | seconds of training | most seconds lost per death |"]
    rows += ["|---|---|---|---|---|"]
    for name, runs in found["runs"].items():
        lost = [e["noticed"] + e["seconds"] for run in runs for e in run["story"]]
        accuracies = ", ".join(f"{100 * run['accuracy']:.2f} %" for run in runs)
        seconds = ", ".join(f"{run['seconds']:.1f}" for run in runs)
        most = f"{max(lost):.2f}" if lost else "–"
        rows.append(f"| {name} | {len(lost)} | {accuracies} | {seconds} | {most} |")
    where = f"`{found['command']}`, {found['machine']['cores']} cores, {found['machine']['cpu']}:"
    picture = (
        "![Examples per second and loss of a run that loses three workers](images/survival.png)"
    )
    return "\n".join([where, "", *rows, "", picture])


def fuzz() -> str:
    """Return what became of damaged files, as recorded."""
    found = _recorded("fuzz.json")
    if found is None:
        return "No record of it is committed yet: `python tools/faults/fuzz.py`."
    rows = [
        "| reader | inputs | read | refused | failed | largest process |",
        "|---|---|---|---|---|---|",
    ]
    for r in found["readers"]:
        size = f"{r['peak_rss_bytes'] / 2**20:.0f} MB"
        cells = (r["reader"], r["inputs"], r["read"], r["refused"], len(r["failures"]), size)
        rows.append("| " + " | ".join(map(str, cells)) + " |")
    bounds = f"{found['limit_seconds']:g} s and {found['limit_bytes'] >> 20} MB for each input"
    where = f"{found['inputs']:,} inputs in {found['seconds']} s ({bounds}; {_machine(found)}):"
    return "\n".join([where, "", *rows])


def commands() -> str:
    """Return what became of odd command lines, as recorded."""
    found = _recorded("commands.json")
    if found is None:
        return "No record of it is committed yet: `python tools/faults/commands.py`."
    first = ("tried", "done", "refused", "failed")
    defects = [name for name in next(iter(found["kinds"].values())) if name not in first]
    rows = ["| command | " + " | ".join([*first, *defects]) + " |"]
    rows += ["|---" * (1 + len(first) + len(defects)) + "|"]
    for kind, counts in found["kinds"].items():
        rows.append(f"| {kind} | " + " | ".join(str(counts[name]) for name in counts) + " |")
    tried = sum(counts["tried"] for counts in found["kinds"].values())
    again, why = found.get("struck_again", []), found.get("struck_again_why", "after a fix")
    mended = f"; lines {', '.join(map(str, again))} were run again {why}" if again else ""
    short = found.get("left_out", 0)
    left = f"; {short} more were not begun in time" if short else ""
    where = f"{tried:,} command lines in {found['seconds']} s ({_machine(found)}{mended}{left}):"
    return "\n".join([where, "", *rows])


def soak() -> str:
    """Return what a long row of short runs left behind, as recorded."""
    found = _recorded("soak.json")
    if found is None:
        return "No record of it is committed yet: `python tools/faults/soak.py`."
    ended = ", ".join(f"{count} {how}" for how, count in found["ended"].items())
    where = f"{found['runs']} runs in {found['minutes']:g} minutes ({_machine(found)}): {ended}."
    rows = ["| median over | " + " | ".join(found["flat"]) + " |"]
    rows += ["|---" * (len(found["flat"]) + 1) + "|"]
    for place, part in enumerate(("the first quarter", "the last quarter")):
        values = " | ".join(f"{value[place]:g}" for value in found["flat"].values())
        rows.append(f"| {part} | {values} |")
    return "\n".join([where, "", *rows])


def _why(outcome: Outcome) -> str:
    said = outcome.said.strip().splitlines() or [""]
    return f"exit {outcome.code}, resumed: {outcome.resumed}; {said[0]}"


def summary(outcomes: list[Outcome], tested: list[dict[str, Any]]) -> str:
    """Return the whole in two lines."""
    tried, kept, hung, left, residue, back, lost = counts(outcomes)
    rows = f"{sum(map(holds, tested))} of {len(tested)} rows of other faults hold"
    return (
        f"{tried} faults: {kept} as promised, {hung} hung, {left} orphans, {residue} left in "
        f"shared memory, continued correctly {back}, at most {lost} steps lost\n{rows}"
    )
