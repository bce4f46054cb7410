"""Comments on the laws of scaling: how well Amdahl's or Gustafson's fits, and which applies."""

from __future__ import annotations

from manyhands.report.groups import Group
from manyhands.report.scaling import Fit
from manyhands.report.sentences import Fact, Name, Sentence, fact, listed, say
from manyhands.report.tables import Row, Summary
from manyhands.report.wording import some

CLOSE, ROUGH = 0.05, 0.15  # of the peak: a law fits, fits roughly
_ALL, _NONE = 0.9995, 0.0005  # a serial fraction of one, of zero, to three digits


def comment(summary: Summary) -> list[Sentence]:
    """Say how well the laws fit; groups with the same verdict share a sentence."""
    found: dict[str, list[tuple[Sentence, Sentence]]] = {}
    for group, fitted in summary.fits.items():
        verdict = _verdict(summary, group, fitted)
        stated = _stated(summary, group, fitted)
        found.setdefault(str(verdict), []).append((verdict, stated))
    states = [
        say("{verdict}: {stated}.", verdict=held[0][0], stated=listed([each for _, each in held]))
        for held in found.values()
    ]
    return some(*states, _regime(summary))


def fitted_rows(summary: Summary, group: Group) -> tuple[Row, ...]:
    """Return the configurations that the law of a group was fitted to, the first worker's too."""
    limit = summary.fits[group].limit
    rows = [row for row in summary.of(group) if row.shown_speedup is not None]
    return tuple(row for row in rows if row.workers <= limit)


def _fact(summary: Summary, group: Group, what: str, value: float, text: str) -> Fact:
    rows = fitted_rows(summary, group)
    return fact(
        what, value, how="fit", runs=[run for row in rows for run in row.runs],
        against=rows[0].reference, parameters={"law": summary.fits[group].law}, text=text,
    )  # fmt: skip


def _stated(summary: Summary, group: Group, fitted: Fit) -> Sentence:
    name = Name(group.label)
    if fitted.serial > _ALL:
        return say("{name}", name=name)
    serial = _fact(summary, group, "serial fraction", fitted.serial, f"{fitted.serial:.3f}")
    off, bound = say(""), say("")
    if fitted.residual is not None:
        error = _fact(summary, group, "residual", fitted.residual, f"{fitted.residual:.2g}")
        off = say(", off by {error} on average", error=error)
    if fitted.bound and fitted.serial >= _NONE:
        most = _fact(summary, group, "bound", fitted.bound, f"{fitted.bound:.3g}×")
        bound = say(", at most {most}", most=most)
    return say(
        "{name} (serial fraction {serial}{off}{bound})", name=name, serial=serial, off=off,
        bound=bound,
    )  # fmt: skip


def _verdict(summary: Summary, group: Group, fitted: Fit) -> Sentence:
    law = f"{fitted.law}'s law"
    if fitted.serial > _ALL:
        row = fitted_rows(summary, group)[-1]
        most = fact("workers", row.workers, runs=row.runs, text=f"{row.workers} workers")
        return say("Up to {most}, where every worker has a core, more bring nothing", most=most)
    if fitted.residual is None:
        return say("One point with several workers and a core for each cannot test {law}", law=law)
    if fitted.serial < _NONE:
        return say(
            "No serial part shows where every worker has a core, so {law} sets no bound", law=law
        )
    off = fitted.residual / max(row.shown_speedup or 0 for row in fitted_rows(summary, group))
    if off <= CLOSE:
        return say("{law} fits where every worker has a core", law=law)
    if off <= ROUGH:
        return say("{law} fits roughly where every worker has a core", law=law)
    return say("{law} does not fit, since the cost itself changes with the workers", law=law)


def _regime(summary: Summary) -> Sentence:
    """Say which law applies to such a sweep, and what would change that."""
    if not summary.fits:
        return say("")
    if summary.scaling == "weak":
        return say(
            "The work grows with the workers (weak scaling), so that Gustafson's law applies; with "
            "the same work for all (strong scaling) it would be Amdahl's, which has a bound."
        )
    if any(row.scaling == "weak" for row in summary.rows):
        return say(
            "Amdahl's law is for sweeps with the same work for every number of workers (strong "
            "scaling), Gustafson's for those whose work grows with the workers (weak scaling)."
        )
    return say(
        "The work is the same for every number of workers (strong scaling), so that Amdahl's law "
        "applies; were the work to grow with the workers (weak scaling), it would be Gustafson's, "
        "which has no bound."
    )
