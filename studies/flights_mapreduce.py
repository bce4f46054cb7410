"""The MapReduce jobs of `flights_ways.with_mapreduce`, for mrjob: join, summarise, place."""

from __future__ import annotations

import csv
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from flights_ways import HALF, declared, features, hashed, joined, side_tables
from mrjob.job import MRJob
from mrjob.step import MRStep

PARTS = 8


class Flights(MRJob):
    """One of three jobs; each reads from disk what the one before wrote there."""

    def configure_args(self) -> None:
        """Declare which job, and where the small tables are."""
        super().configure_args()
        self.add_passthru_arg("--job", choices=("join", "summarise", "place"))
        self.add_passthru_arg("--data")

    def steps(self) -> list[MRStep]:
        """Return the one step of the job."""
        if self.options.job == "join":
            return [MRStep(mapper_init=self.begin, mapper=self.join, reducer=self.keep)]
        if self.options.job == "summarise":
            return [
                MRStep(
                    mapper_init=self.declare,
                    mapper=self.count,
                    combiner=self.total,
                    reducer=self.total,
                )
            ]
        return [MRStep(mapper_init=self.declare, mapper=self.deal, reducer=self.sort)]

    def begin(self) -> None:
        """Load the small tables, and the names of the columns."""
        data = Path(self.options.data)
        self.tables = side_tables(data)
        with (data / "flights.csv").open() as file:
            self.names = next(csv.reader(file))

    def declare(self) -> None:
        """Load what the recipe declares."""
        self.said = declared()

    def join(self, _: Any, line: str) -> Iterator[tuple[int, str]]:
        """Join one line of the flights with the small tables."""
        values = next(csv.reader([line]))
        if values == self.names:
            return
        record = joined(dict(zip(self.names, values, strict=True)), self.tables)
        if record:
            yield record["key"], json.dumps(record)

    def keep(self, key: int, records: Iterator[str]) -> Iterator[tuple[int, str]]:
        """Pass the records of one key on."""
        for record in records:
            yield key, record

    def _read(self, line: str) -> tuple[dict[str, Any], list[float]]:
        record = json.loads(json.loads(line.split("\t", 1)[1]))
        return record, features(record, self.said)

    def count(self, _: Any, line: str) -> Iterator[tuple[Any, Any]]:
        """Give one record's features to the sums of its side and class."""
        record, values = self._read(line)
        yield ("test" if record["test"] else "train", record["late"]), (1, values)

    def total(self, group: Any, found: Iterator[Any]) -> Iterator[tuple[Any, Any]]:
        """Add features up."""
        rows, sums = 0, [0.0] * 54
        for count, values in found:
            rows += count
            sums = [a + b for a, b in zip(sums, values, strict=True)]
        yield group, (rows, sums)

    def deal(self, _: Any, line: str) -> Iterator[tuple[Any, Any]]:
        """Give one record to its part."""
        record, values = self._read(line)
        order = hashed(0, "shuffle", record["key"]) / HALF
        yield (record["test"], int(order * PARTS)), (order, record["key"], record["late"], values)

    def sort(self, part: Any, records: Iterator[Any]) -> Iterator[tuple[Any, Any]]:
        """Put the records of one part into their order."""
        for record in sorted(records):
            yield part, record


if __name__ == "__main__":
    Flights.run()
