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
            help="group sizes, e.g. 2,4,8 [default: 2,4; under mpiexec, srun or torchrun: theirs]"
        ),
    ] = None,
    sizes: Annotated[
        str, Parameter(help="bytes: 1KB..64MB in steps of four, or 4KB,1MB")
    ] = "1KB..64MB",
    algorithms: Annotated[
        str | None, Parameter(help="some of them, timed beside MPI's own [default: all, and gloo]")
    ] = None,
    mpi: Annotated[str, Parameter(help="auto, mpich, openmpi or site")] = "auto",
    output: Annotated[Path, Parameter(help="folder for records and picture")] = Path("allreduce"),
) -> None:
    """Time the all-reduces against each other, MPI's and gloo's own; every result is checked."""
    from manyhands.experiments import allreduce_benchmark

    check_writable(output)
    records = allreduce_benchmark.measure(workers, sizes, algorithms, mpi=mpi)
    if not is_silent():
        output.mkdir(parents=True, exist_ok=True)
        (output / "allreduce.json").write_text(json.dumps(records, indent=1) + "\n")
        allreduce_benchmark.draw_figure(records, output / "allreduce.png")
        print("microseconds, median over the repeats, of the slowest process")
        print(allreduce_benchmark.format_table(records))
        print(f"records and picture: {output}")
    if not all(record["correct"] for record in records):
        raise SystemExit(1)
