"""A forecast, from Python: `predict` measures this machine and says what workers would bring."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from manyhands import value_checks
from manyhands.config.optimizers import OPTIMIZERS
from manyhands.config.option_declaration import PROCESSES
from manyhands.config.options import check_number, configure, options
from manyhands.config.parse import parse_bandwidth, parse_latency
from manyhands.config.strategy_table import find_all
from manyhands.config.strategy_table import known as known_strategies
from manyhands.config.strategy_table import own as find_own
from manyhands.errors import ConfigError
from manyhands.experiments.forecast import Calibration, Network, presentation, validation
from manyhands.experiments.forecast.calibrate import DECIDING, calibrate
from manyhands.experiments.forecast.strategy_models import (
    Case,
    best,
    check_modelled,
    list_variants,
    rows,
)
from manyhands.experiments.forecast.uncertainty import Uncertainty, estimate_uncertainty
from manyhands.launch.environment import group_size
from manyhands.launch.machine import cores, doubling_counts, write_json
from manyhands.strategies import STRATEGIES
from manyhands.training.start_fit import batch_size_of

if TYPE_CHECKING:
    from manyhands.config.run import RunConfig


@dataclass(frozen=True)
class Prediction:
    """The predicted step times and speed-ups; `predict` returns it.

    Attributes:
        rows: One dictionary per strategy and number of workers: step, speedup, staleness …
        missing: The combinations that are left out, with reasons.
        case: The measurements and settings behind the prediction.
    """

    rows: tuple[Mapping[str, Any], ...]
    missing: tuple[str, ...]
    case: Case

    @property
    def best(self) -> Mapping[str, Any] | None:
        """The row with the most examples per second."""
        return best(self.rows)

    @property
    def best_fresh(self) -> Mapping[str, Any] | None:
        """The row with the most examples per second whose gradients are not stale."""
        return best([row for row in self.rows if (row["staleness"] or 0.0) < presentation.STALE])

    @property
    def doubt(self) -> Uncertainty:
        """The estimated error of the prediction."""
        return estimate_uncertainty(self.case.known)

    def lines(self) -> list[str]:
        """Return the result in sentences: its error, then the best row."""
        network = self.case.network is not None
        printed = presentation.describe_error(
            self.doubt, self.case.known.most, self.rows, network=network
        )
        named = presentation.describe_best(
            self.best,
            self.best_fresh,
            self.case.batch_size,
            self.best_of_each(),
            disturbed=self.doubt.disturbed,
        )
        return [*printed, *named]

    def best_of_each(self) -> list[Mapping[str, Any]]:
        """Return the best row of each strategy, the fastest first."""
        labels = dict.fromkeys(row["label"] for row in self.rows)
        winners = [best([r for r in self.rows if r["label"] == name]) for name in labels]
        return sorted((r for r in winners if r), key=lambda r: -r["examples_per_second"])

    def as_dict(self) -> dict[str, Any]:
        """Return rows, error and network as JSON can hold them."""
        case, doubt = self.case, self.doubt
        return {
            "schema": 1,
            "network": asdict(case.network) if case.network else None,
            "scaling": case.scaling,
            "batch_size": case.batch_size,
            "rows": list(self.rows),
            "missing": list(self.missing),
            "error": {
                "held_out": list(doubt.errors),
                "median": doubt.median,
                "largest": doubt.largest,
                "without_core": doubt.without_core,
                "measured_processes": case.known.most,
                "growths": list(doubt.growths),
            },
            "said": self.lines(),
        }

    def write(self, path: Path) -> None:
        """Write rows, error, network and calibration as JSON."""
        write_json(path, {**self.as_dict(), "calibration": self.case.known.as_dict()})


def predict(
    model: Any = None,
    data: Any = None,
    *,
    strategies: str | Sequence[str] | None = None,
    workers: int | Sequence[int] | None = None,
    scaling: str = "strong",
    latency: str | None = None,
    bandwidth: str | None = None,
    per_host: int | None = None,
    calibration: Calibration | str | os.PathLike[str] | None = None,
    say: Callable[[str], None] | None = None,
    **asked: Any,
) -> Prediction:
    """Predict time per step, speed-up and staleness of each strategy, from short measurements.

    It predicts speed only, not how many updates a strategy needs for an accuracy.

    Args:
        model: As in `fit`; by default "cnn".
        data: As in `fit`; by default "mnist".
        strategies: Names; by default all strategies, and sync with every all-reduce. Your own,
            "mine.py:Class", needs a method `cost`.
        workers: A list of numbers, or the largest of 1, 2, 4 …; by default the number of cores.
        scaling: "strong": workers share `batch_size`; "weak": each worker has `batch_size`.
        latency: Network latency, e.g. "20us"; without it, all workers are on this machine.
        bandwidth: Network bandwidth per host and second: "100Gbit" or "12.5GB".
        per_host: Workers per host; by default 1.
        calibration: An earlier measurement, or its file, to use instead of measuring.
        say: A function that receives progress messages.
        **asked: Options of `fit` that affect a step or belong to a strategy: `batch_size`,
            `optimizer`, `threads`, `masters`, `period`, `allreduce` …

    Returns:
        The prediction: `.rows`, one dictionary for each strategy and number of workers; `.best`,
        the row with the most examples per second; `.lines()`, the same in words.

    Raises:
        ConfigError: When an option cannot work, before anything is measured.

    Examples:
        >>> import manyhands as mh
        >>> prediction = mh.predict("logistic", "blobs", strategies="averaging", workers=4)
        >>> [row["workers"] for row in prediction.rows]
        [1, 2, 4]
        >>> prediction.best["speedup"] > 0
        True
    """
    value_checks.one_of(("strong", "weak"), scaling=scaling)
    asked = {name: value for name, value in asked.items() if value is not None}
    tried = list_counts(workers)
    names = _list_names(strategies)
    own, shared = _split_options(asked, names)
    variants = list_variants(names, own)
    for variant in filter(find_own, variants):
        check_modelled(variant)  # refused before measuring
    network = _make_network(latency, bandwidth, per_host)
    loss = shared.pop("loss", None)
    if calibration is None:
        config = configure({"strategy": "sync", "workers": 1, **shared})  # refused before measuring
        deciding = {name: value for name, value in shared.items() if name != "epochs"}
        if "batch_size" not in shared:  # a preset may have one, or a DataLoader
            deciding["batch_size"] = batch_size_of(data, config)
        known = calibrate(model, data, loss=loss, say=say, **deciding)
    else:
        known = (
            calibration
            if isinstance(calibration, Calibration)
            else read_calibration(Path(calibration))
        )
        _check_same(known, {**shared, "model": model, "data": data})
    case = Case(
        known=known,
        network=network,
        scaling=scaling,
        batch_size=shared.get("batch_size") or known.options["batch_size"],
        epochs=shared.get("epochs") or options()["epochs"].default,
    )
    predicted, missing = rows(variants, case, tried)
    return Prediction(tuple(predicted), tuple(missing), case)


def _check_same(known: Calibration, asked: Mapping[str, Any]) -> None:
    """Refuse options that the calibration was not measured with."""
    for name, value in asked.items():
        was = known.options.get(name, value)
        if value is not None and name != "batch_size" and was != value:
            raise ConfigError(
                f"{name} is {value!r}, but the calibration was measured with {was!r}; "
                "leave one of them out"
            )


def _list_names(strategies: str | Sequence[str] | None) -> list[str]:
    names = [strategies] if isinstance(strategies, str) else list(strategies or ["all"])
    return list(STRATEGIES) if names == ["all"] else find_all(names)


def _split_options(
    asked: Mapping[str, Any], names: Sequence[str]
) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the options of the strategies, and those of every run; refuse senseless numbers."""
    table = options()
    for name in asked:
        if name not in table:
            raise ConfigError(f"unknown option {name!r}; expected options of `manyhands predict`")
        check_number(name, asked[name])
    of = {name: set(table[name].owners) & set(known_strategies()) for name in asked}
    for name, owners in of.items():
        if owners and not owners & set(names):
            raise ConfigError(f"{name} is an option of {', '.join(sorted(owners))}; leave it out")
    own = {name: value for name, value in asked.items() if of[name]}
    return own, {name: value for name, value in asked.items() if not of[name]}


def _make_network(
    latency: str | None, bandwidth: str | None, per_host: int | None
) -> Network | None:
    if latency is None and bandwidth is None:
        if per_host is not None:
            raise ConfigError(
                "per_host is given without a network; give latency and bandwidth, or leave it out"
            )
        return None
    if latency is None or bandwidth is None:
        raise ConfigError("a network has a latency and a bandwidth; expected both, or neither")
    return Network(
        latency=parse_latency(latency),
        bandwidth=parse_bandwidth(bandwidth) / 8,
        per_host=1 if per_host is None else per_host,
    )


def list_counts(workers: int | Sequence[int] | None) -> list[int]:
    """Return the numbers of workers: those given, or 1, 2, 4 … up to the one given."""
    if workers is not None and not isinstance(workers, int):
        if not workers:
            raise ConfigError("workers is an empty list; expected at least one number")
        PROCESSES.check("workers", list(workers))
        return sorted(set(workers))
    most = cores() if workers is None else workers
    PROCESSES.check("workers", most)
    return doubling_counts(most)


def read_calibration(path: Path) -> Calibration:
    """Read a calibration, or the one inside a prediction."""
    try:
        record = json.loads(path.read_text())
    except (OSError, ValueError) as error:
        raise ConfigError(f"calibration is {str(path)!r}, which cannot be read: {error}") from None
    return Calibration.from_dict(record.get("calibration", record))


def expect_measurable(config: RunConfig) -> None:
    """Refuse a run whose number of workers cannot be chosen by measuring.

    Raises:
        ConfigError: If the group is there already or on other hosts, or no model predicts its time.
    """
    if group_size() is not None:
        raise ConfigError("workers is 'auto', but the group is there already; leave workers out")
    if config.hosts or config.hostfile:
        raise ConfigError(
            "workers is 'auto', which measures this machine alone, but hosts or hostfile is given; "
            "leave workers out: as many as fit are started there"
        )
    try:
        check_modelled(config.strategy)
    except ConfigError as error:
        raise ConfigError(f"workers is 'auto', but {error}; give a number") from None


def choose_workers(
    model: Any,
    data: Any,
    asked: Mapping[str, Any],
    config: RunConfig,
    *,
    loss: Any,
    say: Callable[[str], None],
) -> int:
    """Return the number of workers on this machine that gets through most examples per second.

    Args:
        model: As in `fit`.
        data: As in `fit`.
        asked: The options of the run.
        config: The run with one worker; `expect_measurable` has taken it.
        loss: As in `fit`.
        say: Told what is measured, and what was found.
    """
    strategy = config.strategy
    table = options()
    mine = {n for n in asked if n in DECIDING or set(table[n].owners) & set(OPTIMIZERS)}
    deciding = {n: asked[n] for n in mine - {"model", "data", "loss"}}
    deciding["batch_size"] = config.batch_size  # a preset may have one
    known = calibrate(model, data, loss=loss, say=say, **deciding)
    case = Case(known=known, batch_size=known.options["batch_size"])
    masters = strategy.processes(1) - 1
    predicted, missing = rows([strategy], case, range(1, max(1, cores() - masters) + 1))
    chosen = best(predicted)
    if chosen is None:
        raise ConfigError(f"workers is 'auto', but {missing[0]}; give a number")
    many = f"{chosen['workers']} worker{'s' if chosen['workers'] > 1 else ''}"
    doubt = estimate_uncertainty(known)
    for warning in presentation.describe_disturbance(doubt, predicted):
        say(warning)
    objections = presentation.find_objections(chosen, disturbed=doubt.disturbed)
    unsupported = f", which is not supported: {'; '.join(objections)}" if objections else ""
    say(f"{many}: {chosen['speedup']:.2f} times the sequential strategy is expected{unsupported}")
    return int(chosen["workers"])


def report(
    *,
    output: Path,
    against: Path | None = None,
    calibration: Path | None = None,
    json_: bool = False,
    **asked: Any,
) -> None:
    """Predict, print the table, and write `prediction.json` and a picture; the command line's."""
    shown: list[dict[str, Any]] = []
    measured: list[dict[str, Any]] = []
    if against is not None:
        shared, measured = validation.read_measurements(against)
        asked = {**{n: v for n, v in shared.items() if asked.get(n) is None}, **_drop_none(asked)}
    prediction = predict(calibration=calibration, say=_print_stage, **asked)
    output.mkdir(parents=True, exist_ok=True)
    if measured:
        shown = validation.compare_speedups(prediction.case, measured)
        write_json(output / "errors.json", shown)
    prediction.write(output / "prediction.json")
    for kind in ("png", "svg"):
        presentation.draw_figure(prediction.rows, output / f"prediction.{kind}", measured=shown)
    if json_:
        print(json.dumps({**prediction.as_dict(), "against": shown, "output": str(output)}))
        return
    if measured:
        head = ("strategy", "workers", "measured", "predicted", "error")
        print(presentation.align(head, presentation.tabulate_errors(shown)))
        worst = max(abs(row["error"]) for row in shown)
        print(f"largest error of a speed-up: {100 * worst:.1f} %")
        for warning in presentation.describe_disturbance(prediction.doubt, prediction.rows):
            print(warning)
    else:
        _print_forecast(prediction)
    print("speed only: how many updates an accuracy takes is not predicted")
    print(f"records and picture: {output}")


def _print_forecast(prediction: Prediction) -> None:
    print(presentation.align(*presentation.tabulate_speedups(prediction.rows)))
    print("\nThe best number of workers for each:")
    best_rows = prediction.best_of_each()
    print(
        presentation.align(presentation.HEAD, [presentation.format_row(row) for row in best_rows])
    )
    for reason in prediction.missing:
        print(f"left out: {reason}")
    for note in dict.fromkeys(n for row in prediction.rows for n in row["notes"]):
        print(f"note: {note}")
    print("\n".join(prediction.lines()))


def _drop_none(asked: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in asked.items() if value is not None}


def _print_stage(message: str) -> None:
    print(f"{message} …", file=sys.stderr)
