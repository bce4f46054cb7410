"""The command `manyhands predict`; the forecast itself is in `experiments.forecast.predict`."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Annotated, Any, Literal

from cyclopts import Parameter

from manyhands.cli.options import takes_options
from manyhands.errors import ConfigError
from manyhands.training.output_folder import check_writable


@takes_options("predict")
def predict(
    *,
    strategies: Annotated[
        str | None,
        Parameter(help="names of strategies, separated by commas, or all [default: all]"),
    ] = None,
    workers: Annotated[
        str | None,
        Parameter(
            help="largest number of workers, or a list such as 1,3,5 [default: up to the cores]"
        ),
    ] = None,
    scaling: Annotated[
        Literal["strong", "weak"],
        Parameter(help="strong: workers share batch_size; weak: each worker has batch_size"),
    ] = "strong",
    latency: Annotated[
        str | None, Parameter(help="network latency between hosts, e.g. 20us [default: one host]")
    ] = None,
    bandwidth: Annotated[
        str | None, Parameter(help="network bandwidth per host and second, e.g. 100Gbit or 12.5GB")
    ] = None,
    per_host: Annotated[int | None, Parameter(help="workers per host [default: 1]")] = None,
    calibration: Annotated[
        Path | None, Parameter(help="an earlier prediction.json to use instead of measuring")
    ] = None,
    against: Annotated[
        Path | None,
        Parameter(help="a sweep's folder: predict its runs and report the error"),
    ] = None,
    json_: Annotated[
        bool, Parameter(name="--json", negative="", help="print the forecast as one JSON object")
    ] = False,
    output: Annotated[Path, Parameter(help="folder for the records and the picture")] = Path(
        "prediction"
    ),
    **options: Any,
) -> None:
    """Predict time per step, speed-up and the best number of workers, from short measurements."""
    from manyhands.experiments.forecast.predict import report

    check_writable(output)
    report(
        output=output,
        json_=json_,
        against=against,
        strategies=None if strategies is None else strategies.split(","),
        workers=parse_counts(workers),
        scaling=scaling,
        latency=latency,
        bandwidth=bandwidth,
        per_host=per_host,
        calibration=calibration,
        **options,
    )


def parse_counts(workers: str | None) -> int | list[int] | None:
    """Return the workers that a text names: one number, or several separated by commas."""
    if workers is None:
        return None
    parts = workers.split(",")
    if not all(re.fullmatch(r"\d{1,9}", part.strip()) for part in parts):
        raise ConfigError(f"workers is {workers!r}; expected a number such as 64, or 1,3,5")
    numbers = [int(part) for part in parts]
    return numbers if len(numbers) > 1 else numbers[0]
