"""The command `manyhands check`."""

from __future__ import annotations

import json
from typing import Annotated, Any, Literal

from cyclopts import Parameter

from manyhands.cli.predict import parse_counts
from manyhands.cli.status import Status
from manyhands.errors import ConfigError


def check(
    target: Annotated[
        str,
        Parameter(
            help="an all-reduce or a strategy: mine.py:ring, mine.py:EASGD, package.module:name, "
            "or the name of one of ours"
        ),
    ],
    *,
    course: Annotated[
        str | None, Parameter(help="grade a file by an assignment's tests: course/3-allreduce")
    ] = None,
    public: Annotated[
        bool, Parameter(negative="", help="with --course: the public tests only")
    ] = False,
    workers: Annotated[
        str | None,
        Parameter(
            help="numbers of processes, whatever the cores [default: 1 to 8; of a strategy 1,2,3]"
        ),
    ] = None,
    point_to_point: Annotated[
        bool, Parameter(negative="", help="fail if it does more than send and receive")
    ] = False,
    expect: Annotated[
        Literal["equal"] | None,
        Parameter(help="equal: a strategy must end where sequential ends, as with equals_one"),
    ] = None,
    options: Annotated[
        str | None,
        Parameter(help="options of a strategy and of its runs: alpha=0.1,lr=0.01"),
    ] = None,
    patience: Annotated[
        float | None,
        Parameter(
            help="seconds in which nothing moves that make a deadlock [default: 2; of a strategy "
            "20]; with --course: seconds for one test [default: 30]"
        ),
    ] = None,
    mpi: Annotated[str, Parameter(help="which MPI: auto, mpich, openmpi or site")] = "auto",
    json_: Annotated[
        bool, Parameter(name="--json", negative="", help="print the findings as one JSON object")
    ] = False,
) -> None:
    """Say what holds of your own all-reduce or strategy; exit code 1 if something fails.

    For example: manyhands check mine.py:ring --point-to-point, or: manyhands check mine.py:EASGD
    """
    common = {"mpi": mpi, **_parse_numbers(workers, patience)}
    own = {"point_to_point": point_to_point, "expect": expect, "options": options}
    if course is not None:
        for name, value in {"workers": workers, **own}.items():
            if value:
                raise ConfigError(f"{name} is given with course, whose tests say it; leave it out")
        _grade(course, target, {"public": public, **common}, as_json=json_)
        return
    if public:
        raise ConfigError("public is given without course; it names the tests of an assignment")
    with Status("check", shown=not json_) as status:
        status.stage(f"trying {target}")
        passed, page, findings = _try(target, common, own)
    print(json.dumps(findings, indent=1) if json_ else page)
    if not passed:
        raise SystemExit(1)


def _parse_numbers(workers: str | None, patience: float | None) -> dict[str, Any]:
    """Return the options that all-reduces and strategies share, as far as they are given."""
    found: dict[str, Any] = {}
    if workers is not None:
        counts = parse_counts(workers)
        found["sizes"] = counts if isinstance(counts, list) else [counts or 1]
    if patience is not None:
        if not 0.1 <= patience <= 600:
            raise ConfigError(f"patience is {patience}; expected seconds from 0.1 to 600")
        found["patience"] = patience
    return found


def _try(
    target: str, common: dict[str, Any], own: dict[str, Any]
) -> tuple[bool, str, dict[str, Any]]:
    """Check an all-reduce or a strategy; refuse options that are of the other kind.

    Returns:
        Whether it passes, and the findings as text and as JSON.
    """
    from manyhands.experiments.check.target import names_strategy

    strategy = names_strategy(target)
    others = ("point_to_point",) if strategy else ("expect", "options")
    for name in others:
        if own[name]:
            kind = "a strategy" if strategy else "an all-reduce"
            raise ConfigError(f"{name} is given, but the target is {kind}; leave it out")
    if not strategy:
        return _try_allreduce(target, {**common, "point_to_point": own["point_to_point"]})
    parsed = _parse_options(own["options"])
    expected = {"expect_equal": own["expect"] == "equal"}
    return _try_strategy(target, {**common, **expected, "options": parsed})


def _try_allreduce(target: str, options: dict[str, Any]) -> tuple[bool, str, dict[str, Any]]:
    from manyhands.experiments.check.allreduce.check import check_allreduce
    from manyhands.experiments.check.allreduce.printed_page import format_page, to_json

    checked = check_allreduce(target, **options)
    return checked.passed, format_page(checked), to_json(checked)


def _try_strategy(target: str, options: dict[str, Any]) -> tuple[bool, str, dict[str, Any]]:
    from manyhands.experiments.check.strategy.check import check_strategy
    from manyhands.experiments.check.strategy.printed_page import format_page, to_json

    checked = check_strategy(target, **options)
    return checked.passed, format_page(checked), to_json(checked)


def _parse_options(text: str | None) -> dict[str, Any]:
    """Return the options in a text such as `alpha=0.1,lr=0.01`."""
    found: dict[str, Any] = {}
    for part in (text or "").split(",") if text else ():
        name, equals, value = part.partition("=")
        if not equals or not name.strip().isidentifier():
            raise ConfigError(f"options is {text!r}; expected such as alpha=0.1,lr=0.01")
        try:
            found[name.strip()] = json.loads(value)
        except json.JSONDecodeError:
            found[name.strip()] = value.strip()
    return found


def _grade(course: str, file: str, options: dict[str, Any], *, as_json: bool) -> None:
    """Print what a student's file earns; exit code 1 if that is not everything."""
    from manyhands.experiments.check.course.grade_student_file import grade

    with Status("check", shown=not as_json) as status:
        status.stage(f"grading {file}")
        tell = (lambda _: None) if as_json else (lambda mark: print(mark, flush=True))
        result = grade(course, file, tell=tell, **options)
    points = f"\n{result.points} of {result.of} points"
    print(json.dumps(result.to_json(), indent=1) if as_json else points)
    if result.points < result.of:
        raise SystemExit(1)
