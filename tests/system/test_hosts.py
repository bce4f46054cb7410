"""Several hosts: namespaces with names and network cards of their own, real TCP between them."""

import json
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from running import MANYHANDS, PATIENCE, eventually, processes, ran, record

from manyhands.launch import mpi as mpis
from manyhands.launch import simulated_cluster
from manyhands.testing import Faults

SMALL = ["--data", "blobs", "--model", "mlp", "--epochs", "1", "--kernels", "default"]

_WHY_NOT = simulated_cluster.obstacle()
pytestmark = pytest.mark.skipif(_WHY_NOT is not None, reason=f"no simulated hosts: {_WHY_NOT}")


def in_lab(*arguments, hosts=2, per_host=1, bandwidth=None, cwd=None, prefix=(), traffic=None):
    line = [*MANYHANDS, "lab", "--hosts", str(hosts), "--workers-per-host", str(per_host)]
    line += ["--bandwidth", bandwidth] if bandwidth else []
    line += ["--traffic", str(traffic)] if traffic else []
    return ran([*line, "--", *prefix, *arguments], cwd=cwd)


def test_hosts_have_names_of_their_own_and_share_memory_only_within(tmp_path):
    done = in_lab("train", *SMALL, "--output", tmp_path / "run", hosts=2, per_host=2)
    assert done.returncode == 0, done.stderr
    run = record(tmp_path / "run")
    assert [w["host"] for w in run["workers"]] == ["host1", "host1", "host2", "host2"]
    assert run["machine"]["hosts"] == ["host1", "host2"]
    # Not None, as MPI's own would be, and no refusal, as of shared memory: the hierarchical one.
    assert all(w["operations"]["allreduce auto"]["messages"] for w in run["workers"])
    assert (tmp_path / "run/rank-3.log").exists()


def test_a_compressed_sum_with_several_workers_on_a_host_is_warned_of(tmp_path):
    options = ["--compress", "bf16", "--max-steps", "2", "--output", tmp_path / "run"]
    done = in_lab("train", *SMALL, *options, hosts=2, per_host=2)
    assert done.returncode == 0, done.stderr
    assert "compress 'bf16' does not sum within a host first" in done.stderr


@pytest.mark.parametrize("mpi", ["mpich", "openmpi"])
def test_the_end_is_that_of_one_host(tmp_path, mpi):
    options = ["--dtype", "float64", "--mpi", mpi]
    line = [*MANYHANDS, "train", *SMALL, *options, "--workers", "2", "--output"]
    alone = ran([*line, tmp_path / "alone"])
    assert alone.returncode == 0, alone.stderr
    done = in_lab("train", *SMALL, *options, "--output", tmp_path / "apart")
    assert done.returncode == 0, done.stderr
    losses = [record(tmp_path / name)["result"]["loss"] for name in ("alone", "apart")]
    assert losses[0] == pytest.approx(losses[1], rel=1e-10)


def test_a_model_over_three_hosts_by_rpc_ends_with_the_bits_of_one_host(tmp_path):
    given = ["--strategy", "pipeline", "--transport", "rpc", "--cut", "fc2", "--batch-size", "50"]
    given = ["train", *SMALL, *given, "--limit", "500"]
    alone = ran([*MANYHANDS, *given, "--workers", "1", "--output", tmp_path / "alone"])
    assert alone.returncode == 0, alone.stderr
    traffic = tmp_path / "traffic.json"
    done = in_lab(*given, "--output", tmp_path / "apart", hosts=3, traffic=traffic)
    assert done.returncode == 0, done.stderr
    one, three = (record(tmp_path / name) for name in ("alone", "apart"))
    assert [w["host"] for w in three["workers"]] == ["host1", "host2", "host3"]
    assert one["result"]["loss"] == three["result"]["loss"]
    by_rank = [w["operations"] for w in three["workers"]]
    counted = [{n: c["bytes"] for n, c in found.items() if "rpc" in n} for found in by_rank]
    features, hidden, classes = 20, 128, 4
    sent = [features + hidden, hidden + classes], [hidden], [classes, hidden]
    for found, numbers in zip(counted, sent, strict=True):
        assert list(found.values()) == [500 * 4 * count for count in numbers]
    cards = json.loads(traffic.read_text())
    for found, card in zip(counted, cards.values(), strict=True):
        assert card["sent"] > sum(found.values())


def test_job_and_data_are_sent_to_hosts_that_do_not_see_them(tmp_path):
    # /dev/shm is each host's own: what the launcher keeps there no other host sees.
    (tmp_path / "mine.py").write_text(
        "import pathlib, socket\nfrom torch import nn\n\n"
        "class Model(nn.Linear):\n"
        "    def forward(self, x):\n"
        "        maps = pathlib.Path('/proc/self/maps').read_text()\n"
        f"        pathlib.Path('{tmp_path}', socket.gethostname()).write_text(maps)\n"
        "        return super().forward(x)\n\n"
        "def make():\n    return Model(20, 4)\n"
    )
    script = 'mkdir /dev/shm/own && TMPDIR=/dev/shm/own exec "$@"'
    prefix = ["sh", "-c", script, "sh", *MANYHANDS]
    traffic = tmp_path / "traffic.json"
    output = tmp_path / "run"
    done = in_lab(
        "train",
        *[word if word != "mlp" else "mine:make" for word in SMALL],
        "--output",
        output,
        hosts=2,
        per_host=2,
        prefix=prefix,
        traffic=traffic,
        cwd=tmp_path,
    )
    assert done.returncode == 0, done.stderr
    assert {w["host"] for w in record(output)["workers"]} == {"host1", "host2"}
    blobs = 2000 * 20 * 4  # at least the training features went over the network
    assert json.loads(traffic.read_text())["host2"]["received"] > blobs
    # While they train on it the copy has no name any more: nothing stays, however the run ends.
    for name, removed in (("host1", False), ("host2", True)):
        assert ("train_x.npy (deleted)" in (tmp_path / name).read_text()) == removed


def test_under_somebody_s_mpiexec_the_hosts_are_told_apart_too(tmp_path):
    mpi = mpis.find_mpi("mpich")
    train = [*MANYHANDS, "train", *SMALL, "--output", str(tmp_path / "run")]
    spread = "-launcher ssh -launcher-exec {launcher} -iface eth0 -hosts host1:2,host2:2 -n 4"
    code = (
        "import json, os, sys\n"
        "launcher = json.loads(os.environ['MANYHANDS_LAB'])['launcher']\n"
        f"line = {spread!r}.format(launcher=launcher).split()\n"
        "os.execv(sys.argv[1], [sys.argv[1], *line, *sys.argv[2:]])\n"
    )
    done = in_lab(mpi.mpiexec, *train, prefix=[sys.executable, "-c", code])
    assert done.returncode == 0, done.stderr
    run = record(tmp_path / "run")
    assert [w["host"] for w in run["workers"]] == ["host1", "host1", "host2", "host2"]
    assert all(w["operations"]["allreduce auto"]["messages"] for w in run["workers"])


def test_checkpoints_need_a_folder_that_all_hosts_see():
    options = ["--checkpoint-every", "10steps", "--output", "/dev/shm/run"]
    done = in_lab("train", *SMALL, *options)
    assert done.returncode == 2, done.stderr
    assert "which host2 does not see as the first host does" in done.stderr


def test_naive_sends_more_than_the_ring_and_sync_more_than_averaging(tmp_path):
    busiest = {}
    for name, options in {
        "naive": ["--allreduce", "naive"],
        "ring": ["--allreduce", "ring"],
        "averaging": ["--strategy", "averaging"],
    }.items():
        traffic = tmp_path / f"{name}.json"
        done = in_lab(
            "train",
            *SMALL,
            *options,
            "--output",
            tmp_path / name,
            hosts=3,
            bandwidth="100Mbit",
            traffic=traffic,
        )
        assert done.returncode == 0, done.stderr
        sent = [card["sent"] for card in json.loads(traffic.read_text()).values()]
        busiest[name] = max(sent)
        run = record(tmp_path / name)
        assert run["machine"]["lab"] == {"bandwidth": 100_000_000}
        if name != "averaging":  # what the card counted holds what the meter says, and headers
            assert sent[-1] > run["workers"][-1]["bytes"]
    # With 3 hosts and n bytes: naive 2 n from each, the ring 4/3 n; averaging once, not each step.
    assert busiest["naive"] > 1.3 * busiest["ring"]
    assert busiest["ring"] > 3 * busiest["averaging"]


def test_a_worker_killed_on_another_host_is_named(tmp_path):
    with Faults().kill(rank=1, step=5, phase="gradient"):
        done = in_lab("train", *SMALL, "--output", tmp_path / "run")
    assert done.returncode == 1
    assert "rank 1 died without a word" in done.stderr


def test_an_error_on_another_host_comes_home_once(tmp_path):
    (tmp_path / "mine.py").write_text(
        "import socket\nfrom torch import nn\n\n"
        "def make():\n"
        "    if socket.gethostname() == 'host2':\n"
        "        raise RuntimeError('no hands on this host')\n"
        "    return nn.Linear(20, 4)\n"
    )
    done = in_lab("train", "--data", "blobs", "--model", "mine:make", cwd=tmp_path)
    assert done.returncode == 1, done.stderr
    assert done.stderr.count("Traceback") == 1
    assert "rank 1 failed: RuntimeError: no hands on this host" in done.stderr


def test_a_worker_stopped_on_another_host_is_named(tmp_path):
    with Faults().stop(rank=3, step=5, phase="gradient"):
        done = in_lab(
            "train", *SMALL, "--timeout", "20", "--output", tmp_path / "run", hosts=2, per_host=2
        )
    assert done.returncode == 1
    assert "missing: rank 3 (on another host in gradient, step 5)" in done.stderr


def test_a_network_cut_between_hosts_ends_the_run_on_both_sides(tmp_path):
    script = tmp_path / "cut.sh"
    script.write_text(
        '"$@" &\nrun=$!\n'
        f'while ! grep -q . "{tmp_path}/run/rank-1.log" 2>/dev/null && [ ! -e "{tmp_path}/go" ]\n'
        "do sleep 0.1; done\nip link set eth0 down\nwait $run\n"
    )
    (tmp_path / "mine.py").write_text(
        "import pathlib, torch\nfrom torch import nn\n\n"
        "class Model(nn.Linear):\n"
        "    calls = 0\n"
        "    def forward(self, x):\n"
        "        self.calls += 1\n"
        f"        if self.calls == 20: pathlib.Path('{tmp_path}/go').touch()\n"
        "        return super().forward(x)\n\n"
        "def make():\n    return Model(20, 4)\n"
    )
    train = [*MANYHANDS, "train", "--data", "blobs", "--model", "mine:make", "--epochs", "100000"]
    train += ["--kernels", "default", "--timeout", "20", "--output", str(tmp_path / "run")]
    done = in_lab(*train, cwd=tmp_path, prefix=["sh", str(script)])
    assert done.returncode == 1, done.stderr
    assert "no word for 20 s" in done.stderr


def test_a_host_that_cannot_be_reached_is_named_before_anything_is_written(tmp_path):
    options = ["--hosts", "host1:1,host2:1,nowhere:1"]
    launcher = "import json, os; print(json.loads(os.environ['MANYHANDS_LAB'])['launcher'])"
    script = f'exec "$@" --launcher "$({sys.executable} -c "{launcher}")"'
    done = in_lab(
        "train",
        *SMALL,
        *options,
        "--output",
        tmp_path / "run",
        prefix=["sh", "-c", script, "sh", *MANYHANDS],
    )
    assert done.returncode == 3, done.stderr
    assert "cannot reach nowhere (no host nowhere in this lab)" in done.stderr
    assert done.stderr.count("\n") == 1
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("signum", [signal.SIGTERM, signal.SIGKILL])
def test_a_lab_that_is_killed_takes_everything_along(tmp_path, signum):
    mark = f"{tmp_path}/mark"
    line = [*MANYHANDS, "lab", "--", "sh", "-c", f"touch {mark}; sleep 1000; touch {mark}"]
    process = subprocess.Popen(line, stderr=subprocess.DEVNULL)
    try:
        assert eventually(lambda: Path(mark).exists())
        assert alive(mark)
        process.send_signal(signum)
        process.wait(PATIENCE)
        assert eventually(lambda: not alive(mark), 60)
    finally:
        process.kill()


def alive(mark):
    return processes(lambda line: mark.encode() in line)
