"""What `make faults` found, as a page."""

from __future__ import annotations

import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from manyhands._version import __version__
from manyhands.record import cores, cpu_name

if TYPE_CHECKING:
    from matrix import Outcome

TEMPLATE = Path(__file__).parent / "page.md"
GROUPS = {
    "kill": "SIGKILL of a worker",
    "stop": "SIGSTOP of a worker",
    "rank 0": "SIGKILL of rank 0",
    "master": "a master killed or stopped",
    "fail_write": "the disk is full",
    "kill-launcher": "SIGKILL of the launcher",
    "signal": "SIGINT, SIGTERM",
    "restart": "killed or stopped, with `--on-failure restart`",
    "continue": "killed or stopped, with `--on-failure continue`",
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
        return case.then
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
    heads += ["went on rightly", "most steps lost"]
    rows = [heads, ["---"] * len(heads)]
    rows += [[name, *counts(outcomes)] for name, outcomes in lines.items() if outcomes]
    return "\n".join("| " + " | ".join(row) + " |" for row in rows)


def holds(row: dict[str, Any]) -> bool:
    """Say whether every test of a row ran and passed."""
    return bool(row["complete"] and row["tried"] and row["passed"] == row["tried"])


def written(outcomes: list[Outcome], tested: list[dict[str, Any]]) -> str:
    """Return the page."""
    strategies = dict.fromkeys(o.case.strategy for o in outcomes)
    by_strategy = {s: [o for o in outcomes if o.case.strategy == s] for s in strategies}
    by_strategy["all"] = outcomes
    kinds = {title: [o for o in outcomes if group(o) == kind] for kind, title in GROUPS.items()}
    rows = ["| given | then | tests | passed |", "|---|---|---|---|"]
    rows += [f"| {r['given']} | {r['then']} | {r['tried']} | {r['passed']} |" for r in tested]
    failed = [f"- {o.case}: {_why(o)}" for o in outcomes if not o.promised]
    failed += [f"- {row['given']}: not every test passed" for row in tested if not holds(row)]
    facts = about()
    return TEMPLATE.read_text().format(
        strategies=table("strategy", by_strategy),
        kinds=table("fault", kinds),
        rows="\n".join(rows),
        failed="\n".join(["Not as promised:", "", *failed]) if failed else "All ended as promised.",
        machine=f"{facts['cores']} cores, {facts['cpu']}, {facts['when']}",
    )


def _why(outcome: Outcome) -> str:
    said = outcome.said.strip().splitlines() or [""]
    return f"exit {outcome.code}, resumed: {outcome.resumed}; {said[0]}"


def summary(outcomes: list[Outcome], tested: list[dict[str, Any]]) -> str:
    """Return the whole in two lines."""
    tried, kept, hung, left, residue, back, lost = counts(outcomes)
    rows = f"{sum(map(holds, tested))} of {len(tested)} rows of other faults hold"
    return (
        f"{tried} faults: {kept} as promised, {hung} hung, {left} orphans, {residue} left in "
        f"shared memory, went on rightly {back}, at most {lost} steps lost\n{rows}"
    )
