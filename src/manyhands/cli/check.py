"""The command `manyhands check`."""

from __future__ import annotations

import json
from typing import Annotated

from cyclopts import Parameter

from manyhands.cli.predict import parse_counts
from manyhands.cli.status import Status
from manyhands.errors import ConfigError


def check(
    target: Annotated[
        str, Parameter(help="an all-reduce: mine.py:ring, package.module:ring, or one of ours")
    ],
    *,
    course: Annotated[
        str | None, Parameter(help="grade a file by an assignment's tests: course/3-allreduce")
    ] = None,
    public: Annotated[
        bool, Parameter(negative="", help="with --course: the public tests only")
    ] = False,
    workers: Annotated[
        str, Parameter(help="numbers of processes, whatever the cores")
    ] = "1,2,3,4,5,6,7,8",
    point_to_point: Annotated[
        bool, Parameter(negative="", help="fail if it does more than send and receive")
    ] = False,
    patience: Annotated[
        float, Parameter(help="seconds in which nothing moves that make a deadlock")
    ] = 2.0,
    mpi: Annotated[str, Parameter(help="which MPI: auto, mpich, openmpi or site")] = "auto",
    json_: Annotated[
        bool, Parameter(name="--json", negative="", help="print the findings as one JSON object")
    ] = False,
) -> None:
    """Say what holds of your own all-reduce: results, messages, deadlocks; exit code 1 if it fails.

    For example: manyhands check mine.py:ring --point-to-point
    """
    if course is not None:
        _grade(course, target, public=public, mpi=mpi, as_json=json_)
        return
    if public:
        raise ConfigError("public is given without course; it names the tests of an assignment")
    from manyhands.experiments.check.allreduce import check_allreduce
    from manyhands.experiments.check.page import format_page, to_json

    if not 0.1 <= patience <= 600:
        raise ConfigError(f"patience is {patience}; expected seconds from 0.1 to 600")
    counts = parse_counts(workers)
    sizes = counts if isinstance(counts, list) else [counts or 1]
    with Status("check", shown=not json_) as status:
        status.stage(f"trying {target}")
        checked = check_allreduce(
            target, sizes=sizes, point_to_point=point_to_point, mpi=mpi, patience=patience
        )
    print(json.dumps(to_json(checked), indent=1) if json_ else format_page(checked))
    if not checked.passed:
        raise SystemExit(1)


def _grade(course: str, file: str, *, public: bool, mpi: str, as_json: bool) -> None:
    """Print what a student's file earns; exit code 1 if that is not everything."""
    from manyhands.experiments.check.course import grade

    with Status("check", shown=not as_json) as status:
        status.stage(f"grading {file}")
        tell = (lambda _: None) if as_json else (lambda mark: print(mark, flush=True))
        result = grade(course, file, public=public, mpi=mpi, tell=tell)
    points = f"\n{result.points} of {result.of} points"
    print(json.dumps(result.to_json(), indent=1) if as_json else points)
    if result.points < result.of:
        raise SystemExit(1)
