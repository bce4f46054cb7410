"""Hosts as options: how they are written, how many workers they take, what is refused."""

import hashlib
import json

import pytest

from manyhands.config.options import configure
from manyhands.errors import ConfigError, LaunchError
from manyhands.experiments.forecast.predict import expect_measurable
from manyhands.launch import hosts, stderr_channel
from manyhands.launch.hosts import Hosts
from manyhands.launch.simulated_cluster import Lab
from manyhands.launch.status_board import Board
from manyhands.training.job import Job


@pytest.fixture(autouse=True)
def _outside_of_a_lab(monkeypatch):
    monkeypatch.delenv(hosts.LAB, raising=False)


def test_hosts_are_read_from_text_and_from_both_kinds_of_file(tmp_path):
    expected = (("node1", 4), ("node2.example.org", 1))
    assert hosts.parse_hosts("node1:4, node2.example.org") == expected
    file = tmp_path / "hosts"
    file.write_text("# ours\nnode1:4\n\nnode2.example.org  # small\n")
    assert hosts.read_hostfile(str(file)) == expected
    file.write_text("node1 slots=4\nnode2.example.org slots=1\n")
    assert hosts.read_hostfile(str(file)) == expected


@pytest.mark.parametrize("text", ["", "a:0", "a:b", "a:4,", "-oProxyCommand=x:1", "a b:2", "a:-1"])
def test_what_is_no_host_is_refused(text):
    with pytest.raises(ConfigError, match="expected names with processes"):
        configure({"hosts": text})


def test_as_many_workers_as_fit_unless_told():
    assert configure({"hosts": "a:4,b:4"}).workers == 8
    assert configure({"hosts": "a:4,b:4", "workers": 3}).workers == 3
    server = configure({"hosts": "a:4,b:4", "strategy": "server", "masters": 2})
    assert (server.workers, server.processes) == (6, 8)
    assert configure({}).workers == 2


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"hosts": "a:2", "workers": 3}, "the hosts take 2"),
        ({"hosts": "a:2", "hostfile": "x"}, "both given"),
        ({"hostfile": "/nowhere/hosts"}, "cannot be read"),
        ({"interface": "eth0"}, "it would be ignored"),
        ({"launcher": "ssh"}, "it would be ignored"),
        ({"hosts": "a:2", "strategy": "hogwild"}, "shares the memory of one host"),
    ],
)
def test_what_cannot_work_is_refused(given, message):
    with pytest.raises(ConfigError, match=message):
        configure(given)


@pytest.mark.parametrize("option", ["hosts", "hostfile"])
def test_workers_on_other_hosts_are_not_chosen_by_measuring_this_one(option, tmp_path):
    (tmp_path / "hosts").write_text("a:2\n")
    value = {"hosts": "a:2", "hostfile": str(tmp_path / "hosts")}[option]
    with pytest.raises(ConfigError, match="measures this machine alone"):
        expect_measurable(configure({option: value, "workers": 1}))


def test_a_launcher_that_is_not_installed_is_named(monkeypatch):
    monkeypatch.setenv("PATH", "/nowhere")
    with pytest.raises(LaunchError, match="launcher is 'slurm', but there is no srun here"):
        Hosts(slots=(("a", 1),), launcher="slurm").check()


def test_every_host_that_does_not_answer_is_named(tmp_path):
    ssh = tmp_path / "my-ssh"
    ssh.write_text('#!/bin/sh\n[ "$1" = good ] || { echo "no route to $1" >&2; exit 255; }\n')
    ssh.chmod(0o755)
    slots = (("localhost", 1), ("good", 1), ("lost", 1), ("gone", 1))
    with pytest.raises(LaunchError) as found:
        Hosts(slots=slots, launcher=str(ssh)).check()
    assert "lost (no route to lost); gone (no route to gone)" in str(found.value)
    assert "good" not in str(found.value)


def test_in_a_lab_its_hosts_are_used(monkeypatch):
    about = {"hosts": ["h1", "h2"], "slots": 2, "launcher": "/enter", "interface": "eth0"}
    monkeypatch.setenv(hosts.LAB, json.dumps(about))
    config = configure({})
    assert config.workers == 4
    assert config.places == Hosts(slots=(("h1", 2), ("h2", 2)), launcher="/enter", interface="eth0")
    assert configure({"strategy": "hogwild"}).places is None


def test_sizes_and_bandwidth_of_a_lab():
    for count in (0, 201):
        with pytest.raises(ConfigError, match=f"hosts is {count}"):
            Lab(hosts=count)
    for bits in (999, 10**16):
        with pytest.raises(ConfigError, match=f"bandwidth is {bits}"):
            Lab(hosts=2, bandwidth=bits)


def test_only_the_launcher_s_job_is_unpickled():
    content = b"not even a pickle"
    with pytest.raises(LaunchError, match="not the one that was sent"):
        Job.from_bytes(content, hashlib.sha256(b"another").hexdigest())


def test_what_other_hosts_tell_is_heard_once_and_whole(tmp_path):
    log = tmp_path / "log"
    with log.open("wb") as file:
        file.write(b"mpiexec says something\n")
        file.flush()
        listener = stderr_channel.Listener(log)
        stderr_channel.send(file.fileno(), "beat", [[1, 42, 7, 10, 3, 2.5]])
        file.write(b'@manyhands ["beat", [[cut@manyhands ["event", {}]]\n@manyhands ["ev')
        file.flush()
        assert listener.read() == [("beat", [[1, 42, 7, 10, 3, 2.5]])]
        file.write(b'ent", {"epoch": 1}]\n')
        file.flush()
        assert listener.read() == [("event", {"epoch": 1})]
        assert listener.read() == []
    assert stderr_channel.strip_messages(log.read_text()) == "mpiexec says something"


def test_a_worker_elsewhere_is_on_the_board_but_no_process_of_ours(tmp_path):
    board = Board(tmp_path / "board", 2, create=True)
    board.note_remote(1, 42, 7, 10, 3, 2.5)
    (note,) = board.read()
    assert (note.rank, note.pid, note.step, note.operation) == (1, None, 7, "gradient")
