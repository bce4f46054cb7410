"""The examples run as they stand."""

import copy
import re
import runpy
import sys
from pathlib import Path

import nbformat
import numpy as np
import pytest
from running import ran

sys.path.insert(0, str(Path(__file__).parents[1] / "unit"))
sys.path.insert(0, str(Path(__file__).parents[2] / "tools/docs"))
import execute_notebook
import shards

from manyhands.launch import mpi as mpis

EXAMPLES = Path(__file__).parents[2] / "examples"


@pytest.mark.parametrize(("name", "accuracy"), [("own_model", 0.93), ("torch_dataset", 0.95)])
def test_a_script_trains(name, accuracy, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    result = runpy.run_path(str(EXAMPLES / f"{name}.py"))["main"]()
    assert result.accuracy > accuracy


# Each example with three strategies, over these tests: what all of them reach at the small size.
@pytest.mark.parametrize("strategy", ["sync", "averaging", "server"])
def test_the_resnet_tells_pictures_apart(strategy, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    main = runpy.run_path(str(EXAMPLES / "resnet_on_pictures.py"))["main"]
    assert main(["--quick", "--strategy", strategy]).accuracy > 0.5


@pytest.mark.parametrize("strategy", ["sync", "gossip", "hogwild"])
def test_the_regression_knows_more_than_the_median(strategy, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    example = runpy.run_path(str(EXAMPLES / "flight_delays.py"))
    result = example["main"](["--quick", "--strategy", strategy])
    assert example["NOISE"] * 0.9 < result.loss < 8.5  # the median alone is 11 minutes off


@pytest.mark.parametrize("classes", [[False, True], None])
def test_the_regression_takes_prepared_flights(classes, tmp_path, monkeypatch, capsys):
    """Shards as of recipes/flights.toml, or of minutes; here the label is told by the features."""
    monkeypatch.chdir(tmp_path)
    x, _, keys = shards.rows(5000)
    y = (x[:, 0] > 0.3) if classes else x @ np.float32([3, 2, 1])
    parts = [(x[:4000], y[:4000], keys[:4000])]
    shards.write(tmp_path / "flights", parts, (x[4000:], y[4000:], keys[4000:]), classes=classes)
    main = runpy.run_path(str(EXAMPLES / "flight_delays.py"))["main"]
    result = main(["--quick", "--data", "flights"])
    assert "the flights of flights: " in capsys.readouterr().out
    assert result.accuracy > 0.9 if classes else result.loss < 0.5


@pytest.mark.parametrize("strategy", ["sync", "averaging", "server"])
def test_the_autoencoder_beats_a_linear_code(strategy, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    example = runpy.run_path(str(EXAMPLES / "autoencoder.py"))
    result = example["main"](["--quick", "--strategy", strategy])
    linear = example["linear_code"](example["signals"](4000, 1), example["signals"](1000, 2))
    assert 0.01 * 0.9 < result.loss < linear


@pytest.mark.parametrize("strategy", ["sync", "averaging", "gossip"])
def test_the_transformer_learns_letters(strategy):
    """Alone, by mpiexec, by torchrun: one script; 4.85 nats a letter are blind guessing."""
    script = [str(EXAMPLES / "transformer_on_text.py"), "--quick", "--strategy", strategy]
    environment = None
    line = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    if strategy == "averaging":
        script += ["--period", "4"]
        line, environment = mpis.mpiexec_command(mpis.find_mpi(), 2, [])
    done = ran([*line, *script], env=environment)
    assert done.returncode == 0, done.stderr
    assert f"{strategy}, 2 workers" in done.stdout
    assert float(done.stdout.split("test loss ")[1].split()[0]) < 3.2


@pytest.mark.parametrize("mpi", ["mpich", "openmpi"])
def test_the_ring_on_ones_own_arrays(mpi):
    script = str(EXAMPLES / "ring_on_my_arrays.py")
    line, environment = mpis.mpiexec_command(mpis.find_mpi(mpi), 4, [script])
    done = ran(line, env=environment)
    assert done.returncode == 0, done.stderr
    # 96 bytes: naive sends all of them to each of 3 others, the ring 2 · 3/4 of them.
    assert "'naive': 288, 'ring': 144" in done.stdout


@pytest.mark.parametrize("mpi", ["mpich", "openmpi"])
def test_ddp_over_mpi(mpi):
    line, environment = mpis.mpiexec_command(
        mpis.find_mpi(mpi), 3, [str(EXAMPLES / "ddp_over_mpi.py")]
    )
    done = ran(line, env=environment)
    assert done.returncode == 0, done.stderr
    share = float(done.stdout.split("3 processes, ")[1].split(" %")[0])
    assert share > 97


def printed(notebook):
    """Return what each cell printed, with numbers left out: times and last digits differ."""
    return [
        re.sub(r"\d+", "N", "".join(o.text for o in cell.outputs if o.get("name") == "stdout"))
        for cell in notebook.cells
        if cell.cell_type == "code"
    ]


def test_the_notebook_prints_what_it_shows():
    kept = nbformat.read(execute_notebook.NOTEBOOK, as_version=4)
    again = copy.deepcopy(kept)
    execute_notebook.execute(again)
    assert printed(again) == printed(kept)
    assert any("the same weights up to rounding: True" in text for text in printed(kept))
