"""The command `manyhands allreduce`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from manyhands.cli.status import is_silent
from manyhands.training.output_folder import check_writable


def allreduce(
    *,
    workers: Annotated[
        str | None,
        Parameter(
            help="group sizes, e.g. 2,4,8 [default: 2,4; that of the group under mpiexec or srun]"
        ),
    ] = None,
    sizes: Annotated[
        str,
        Parameter(help="message sizes: 1KB..64MB in factors of four, or a list such as 4KB,1MB"),
    ] = "1KB..64MB",
    algorithms: Annotated[
        str | None, Parameter(help="algorithms to time beside MPI's own [default: all, and gloo]")
    ] = None,
    with_: Annotated[
        str | None,
        Parameter(name="--with", help="your own functions, timed beside them: mine.py:ring"),
    ] = None,
    mpi: Annotated[str, Parameter(help="which MPI: auto, mpich, openmpi or site")] = "auto",
    output: Annotated[Path, Parameter(help="folder for the records and the picture")] = Path(
        "allreduce"
    ),
) -> None:
    """Time the all-reduces and those of MPI and gloo; every result is checked."""
    from manyhands.experiments import allreduce_benchmark
    from manyhands.experiments.allreduce_figure import draw_figure

    check_writable(output)
    own = with_.split(",") if with_ else ()
    records = allreduce_benchmark.measure(workers, sizes, algorithms, own=own, mpi=mpi)
    if not is_silent():
        output.mkdir(parents=True, exist_ok=True)
        (output / "allreduce.json").write_text(json.dumps(records, indent=1) + "\n")
        draw_figure(records, output / "allreduce.png")
        print("microseconds, median over the repeats, of the slowest process")
        print(allreduce_benchmark.format_table(records))
        print(f"records and picture: {output}")
    if not all(record["correct"] for record in records):
        raise SystemExit(1)
