"""The faults that are not struck into every strategy: each has a test of its own, by name.

`check` runs them all in one pytest and says, row by row, whether every one of them passed.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
import xml.etree.ElementTree as ET
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]
UNIT, SYSTEM = "tests/unit/", "tests/system/"
EXPERIMENTS = UNIT + "experiments/sweep/test_experiment_files.py::"
PRIVATE = UNIT + "config/test_privacy_options.py::"
SERVER = UNIT + "strategies/server/test_server.py::"
PIPELINE = UNIT + "strategies/pipeline/test_pipeline.py::"
SHARDS = UNIT + "data/test_parquet_shards.py::"
FILES = UNIT + "data/test_hostile_files.py::"
CHECKPOINTS = UNIT + "worker/checkpoint/test_folder_layout.py::"
REPLICA = UNIT + "model/test_replica.py::"
LAUNCHER = UNIT + "launch/test_launcher.py::"
MPIEXEC = SYSTEM + "test_user_mpiexec.py::"
TRAINING = SYSTEM + "test_training.py::"
HOSTS = SYSTEM + "test_hosts.py::"
BAD_INPUT = TRAINING + "test_bad_input_is_refused_before_anything_is_written"


@dataclass(frozen=True)
class Row:
    """What is given, what must happen, and the tests that hold it."""

    given: str
    then: str
    tests: tuple[str, ...]


ROWS = [
    Row(
        "an unknown option, TOML key or strategy",
        "exit 2, the nearest name, nothing written",
        (
            BAD_INPUT,
            UNIT + "test_options.py::test_an_unknown_option_names_the_nearest",
            UNIT + "test_options.py::test_an_unknown_strategy_names_the_nearest",
            EXPERIMENTS + "test_what_is_wrong_in_a_file_is_named",
        ),
    ),
    Row(
        "NaN, negative, zero or infinite numbers",
        "refused, naming field and value",
        (
            UNIT + "test_options.py::test_a_learning_rate_that_cannot_work_is_refused",
            UNIT + "test_options.py::test_counts_below_one_are_refused",
            UNIT + "test_options.py::test_a_target_outside_zero_to_one_is_refused",
            PRIVATE + "test_what_is_no_finite_number_above_zero_is_refused",
            PRIVATE + "test_noise_that_is_none_is_refused",
            PRIVATE + "test_a_delta_of_one_is_refused",
        ),
    ),
    Row(
        "more workers than examples, a batch smaller than the workers",
        "refused",
        (BAD_INPUT, UNIT + "test_options.py::test_a_batch_smaller_than_the_workers_is_refused"),
    ),
    Row(
        "more stages than layers, no master, more masters than layers",
        "refused before launch, stating the most allowed",
        (
            SERVER + "test_what_cannot_work_is_refused_at_once",
            SERVER + "test_more_masters_than_layers_are_refused_before_launch",
            PIPELINE + "test_what_cannot_work_is_refused_before_launch",
        ),
    ),
    Row(
        "corrupt Parquet, another schema, NaN features, labels out of range",
        "file and row; never trained on silently",
        (
            SHARDS + "test_a_part_that_is_not_itself_is_refused",
            SHARDS + "test_what_cannot_be_trained_on_is_named_by_file_and_row",
            SHARDS + "test_other_columns_are_refused",
            SHARDS + "test_a_damaged_page_is_refused_even_if_its_hash_is_stated",
        ),
    ),
    Row(
        "a damaged IDX file, a header larger than the file",
        "expected and actual bytes, no giant allocation",
        (
            FILES + "test_damaged_idx_states_expected_and_actual",
            FILES + "test_a_header_larger_than_the_file_takes_no_memory",
        ),
    ),
    Row(
        "data that changed since the checkpoint",
        "refused by its content hash",
        (SYSTEM + "test_faults.py::test_data_that_changed_since_the_checkpoint_is_refused",),
    ),
    Row(
        "a checkpoint truncated or with a flipped bit",
        "the one before it is used, and it says so",
        (
            CHECKPOINTS + "test_any_flipped_bit_is_seen_and_the_one_before_is_used",
            CHECKPOINTS + "test_a_truncated_file_is_seen",
            CHECKPOINTS + "test_a_missing_file_is_seen",
        ),
    ),
    Row(
        "a pickle given as a checkpoint",
        "refused without executing it",
        (CHECKPOINTS + "test_a_pickle_is_refused_without_executing_it",),
    ),
    Row(
        "a checkpoint of another strategy, size or model",
        "refused",
        (SYSTEM + "test_faults.py::test_a_checkpoint_of_another_run_is_refused",),
    ),
    Row(
        "a second signal",
        "the end at once, exit 130 or 143",
        (TRAINING + "test_a_second_signal_ends_at_once_and_is_no_failure_to_restart_from",),
    ),
    Row(
        "an output folder that cannot be written or holds a run",
        "found before training starts",
        (
            TRAINING + "test_a_folder_that_holds_a_run_is_refused",
            TRAINING + "test_a_folder_that_cannot_be_written_is_refused",
        ),
    ),
    Row(
        "two runs on one host at once",
        "both work",
        (TRAINING + "test_two_runs_on_one_host_at_once",),
    ),
    Row(
        "a loss that is not finite on one worker",
        "all stop, rank and step named",
        (
            TRAINING + "test_a_loss_that_is_not_finite_stops_all_and_names_rank_and_step",
            TRAINING + "test_a_loss_that_is_not_finite_ends_those_who_do_not_wait_too",
            SYSTEM + "test_hogwild_processes.py::test_a_diverging_run_ends_all",
            UNIT + "privacy/test_mechanism.py::"
            "test_an_example_whose_gradient_is_not_finite_contributes_zero",
        ),
    ),
    Row(
        "a very slow worker",
        "it is waited for",
        (SYSTEM + "test_slow_workers.py::test_a_very_slow_worker_is_not_a_dead_one",),
    ),
    Row(
        "no mpiexec, two MPIs, a site's own",
        "doctor and the first failing command say what to do",
        (
            UNIT + "launch/test_mpi.py::test_no_mpi_is_explained",
            TRAINING + "test_doctor_finds_what_training_needs",
        ),
    ),
    Row(
        "bytes from outside",
        "on one host no worker listens beyond it; others' jobs and pickled arrays are refused",
        (
            SYSTEM + "test_faults.py::test_no_worker_listens_beyond_the_host",
            LAUNCHER + "test_a_job_that_others_could_have_written_is_not_read",
            FILES + "test_npz_with_pickles_is_refused",
        ),
    ),
    Row(
        "`<script>` in a run's name",
        "escaped in the report",
        (UNIT + "report/test_written_files.py",),
    ),
    Row(
        "a privacy budget already spent, a ledger deleted before going on",
        "refused",
        (
            UNIT + "privacy/test_ledger.py::test_the_budget_ends",
            UNIT + "privacy/test_ledger.py::test_a_missing_ledger_is_refused",
        ),
    ),
    Row(
        "a model that fails on one rank; unused, shared, frozen parameters; buffers",
        "its own traceback once, with the rank; or trained rightly",
        (
            TRAINING + "test_an_error_on_one_rank_ends_all_with_that_traceback_once",
            SYSTEM + "test_hogwild_processes.py::test_a_failing_worker_ends_all_with_its_traceback",
            REPLICA + "test_training_the_vector_is_training_the_module",
            REPLICA + "test_tied_parameters_stay_tied_and_frozen_ones_stay_outside",
        ),
    ),
    Row(
        "a network cut between hosts, a worker killed or stopped on another host",
        "all end, on both sides; who is missing is named",
        (
            HOSTS + "test_a_network_cut_between_hosts_ends_the_run_on_both_sides",
            HOSTS + "test_a_worker_killed_on_another_host_is_named",
            HOSTS + "test_a_worker_stopped_on_another_host_is_named",
        ),
    ),
    Row(
        "a host that cannot be reached, a folder for checkpoints that not all hosts see",
        "named before anything is done",
        (
            HOSTS + "test_a_host_that_cannot_be_reached_is_named_before_anything_is_written",
            HOSTS + "test_checkpoints_need_a_folder_that_all_hosts_see",
        ),
    ),
    Row(
        "another version on one host, MPI of two kinds, srun without an MPI interface, no Slurm",
        "told once, with what to do",
        (
            MPIEXEC + "test_two_versions_are_explained_once",
            MPIEXEC + "test_two_kinds_of_mpi_are_explained_once",
            MPIEXEC + "test_tasks_of_srun_that_cannot_find_each_other_are_refused_once",
            SYSTEM + "test_slurm.py::test_where_there_is_no_slurm_that_is_said",
        ),
    ),
]


def check() -> list[dict[str, object]]:
    """Run every row's tests; returns a row each: how many cases there were, how many passed."""
    ids = list(dict.fromkeys(test for row in ROWS for test in row.tests))
    with tempfile.TemporaryDirectory() as place:
        report = Path(place) / "report.xml"
        line = [sys.executable, "-m", "pytest", "-q", f"--junitxml={report}", *ids]
        subprocess.run(line, cwd=ROOT, check=False)
        found = ET.parse(report).getroot().iter("testcase") if report.exists() else []
        cases = [(_name(case), not list(case)) for case in found]
    return [
        {
            "given": row.given,
            "then": row.then,
            "tests": list(row.tests),
            "tried": sum(_of(row, name) for name, _ in cases),
            "passed": sum(passed and _of(row, name) for name, passed in cases),
            "complete": all(any(_is(test, name) for name, _ in cases) for test in row.tests),
        }
        for row in ROWS
    ]


def _name(case: ET.Element) -> str:
    """Return a case as pytest names it, without its parameters: path::test."""
    name = case.get("name", "").split("[")[0]
    return case.get("classname", "").replace(".", "/") + ".py::" + name


def _is(test: str, name: str) -> bool:
    return name == test or name.startswith(test + "::")


def _of(row: Row, name: str) -> bool:
    return any(_is(test, name) for test in row.tests)
