"""Workers that are forked for those whom mpiexec started: one is as good as the other."""

import os
import resource
import signal
import socket
import subprocess
import sys
import time
from contextlib import contextmanager, suppress

import pytest

from manyhands.launch import launcher

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="forks workers on Linux only")
SECONDS = 60  # until what must come true counts as hung
FORK_SERVER = """
import os, signal, socket, sys, time
from manyhands.launch.fork_server import ForkServer
if context := ForkServer(socket.socket(fileno=int(sys.argv[1]))).serve(int(sys.argv[2])):
    context.apply()
    exec(os.environ["DEED"])
"""


@contextmanager
def fork_server(folder, count=1, **options):
    """Have a process that forks `count` workers, who do as their clients' DEED says."""
    place = os.open(folder, os.O_RDONLY)
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(f"/proc/self/fd/{place}/{launcher.FORK_SOCKET}")
        listener.listen()
        line = [sys.executable, "-c", FORK_SERVER, str(listener.fileno()), str(count)]
        server = subprocess.Popen(line, pass_fds=[listener.fileno()], **options)
    os.close(place)
    try:
        yield server
    finally:
        server.kill()
        server.wait()


def client(folder, deed, *files, core=None, **environment):
    """Start what mpiexec would start, on one core if so asked."""
    line = [
        sys.executable,
        "-I",
        "-S",
        str(launcher.FORK_CLIENT),
        str(folder / launcher.FORK_SOCKET),
    ]
    return subprocess.Popen(
        line,
        env={**os.environ, **environment, "DEED": deed},
        stdout=subprocess.PIPE,
        text=True,
        pass_fds=files,
        preexec_fn=None if core is None else lambda: os.sched_setaffinity(0, [core]),
    )


def gone(pid):
    deadline = time.monotonic() + SECONDS
    while time.monotonic() < deadline:
        with suppress(ProcessLookupError):
            os.kill(pid, 0)
            time.sleep(0.02)
            continue
        return True
    return False


@pytest.mark.parametrize(
    ("deed", "code"),
    [
        ("pass", 0),
        ("sys.exit(3)", 3),
        ("os.kill(os.getpid(), signal.SIGKILL)", -signal.SIGKILL),
        ("os.kill(os.getpid(), signal.SIGSEGV)", -signal.SIGSEGV),
        ("os.kill(os.getppid(), signal.SIGKILL); time.sleep(60)", 1),  # nobody can tell
    ],
)
def test_a_client_ends_as_its_worker(tmp_path, deed, code):
    with fork_server(tmp_path):
        assert client(tmp_path, deed).wait(SECONDS) == code


def test_a_worker_has_the_files_and_the_environment_of_its_client(tmp_path):
    with fork_server(tmp_path, 2):
        told = []
        for name in ("one", "two"):
            near, far = os.pipe()
            deed = f"print(os.environ['WHO']); os.write({far}, os.environ['WHO'].encode())"
            started = client(tmp_path, deed, far, WHO=name, PMI_FD=str(far))
            os.close(far)
            with os.fdopen(near) as pipe:
                told.append((started.communicate(timeout=SECONDS)[0], pipe.read()))
    assert told == [("one\n", "one"), ("two\n", "two")]


def test_a_worker_has_nothing_open_of_the_fork_server_or_of_other_workers(tmp_path):
    deed = "print(*sorted(map(int, os.listdir('/proc/self/fd')))[:-1])"
    near, far = socket.socketpair()
    with fork_server(tmp_path, 2), near, far:
        waits = client(tmp_path, "time.sleep(60)")
        told, _ = client(tmp_path, deed, near.fileno()).communicate(timeout=SECONDS)
    waits.communicate(timeout=SECONDS)
    assert told.split() == ["0", "1", "2"]


def test_few_numbers_for_files_are_enough(tmp_path):
    """As many as 1024 are the rule."""
    near, far = os.pipe()
    most = far + 10
    deed = f"import resource; os.write({far}, str(resource.getrlimit(7)[0]).encode())"
    with fork_server(tmp_path) as server:
        resource.prlimit(server.pid, resource.RLIMIT_NOFILE, (most, most))
        started = client(tmp_path, deed, far, PMI_FD=str(far))
        os.close(far)
        assert started.wait(SECONDS) == 0
        started.stdout.close()
    with os.fdopen(near) as pipe:
        assert pipe.read() == str(most)


def test_a_worker_ends_with_its_client(tmp_path):
    with fork_server(tmp_path):
        started = client(tmp_path, "print(os.getpid(), flush=True); time.sleep(600)")
        worker = int(started.stdout.readline())
        started.kill()
        started.communicate()
        assert gone(worker)


@pytest.mark.parametrize("end", ["sys.exit(1)", "time.sleep(600)"])
def test_whom_a_worker_started_ends_with_it(tmp_path, end):
    deed = "import subprocess; child = subprocess.Popen(['sleep', '600'], stdout=2); "
    deed += f"print(child.pid, flush=True); {end}"
    with fork_server(tmp_path):
        started = client(tmp_path, deed)
        child = int(started.stdout.readline())
        if "sleep(" in end:
            started.kill()
        started.communicate()
        assert gone(child)


def test_a_worker_may_use_the_cores_of_its_client(tmp_path):
    core = min(os.sched_getaffinity(0))
    with fork_server(tmp_path):
        started = client(tmp_path, "print(*os.sched_getaffinity(0))", core=core)
        assert started.communicate(timeout=SECONDS)[0].split() == [str(core)]


def test_who_does_not_want_to_hear_of_children_is_no_hindrance(tmp_path):
    def deaf():
        signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGCHLD])

    with fork_server(tmp_path, preexec_fn=deaf):
        assert client(tmp_path, "pass").wait(SECONDS) == 0


@pytest.mark.parametrize("signum", [signal.SIGTERM, signal.SIGKILL])
def test_workers_end_with_the_fork_server(tmp_path, signum):
    with fork_server(tmp_path) as server:
        started = client(tmp_path, "print(os.getpid(), flush=True); time.sleep(600)")
        worker = int(started.stdout.readline())
        server.send_signal(signum)
        assert gone(worker)
        assert started.wait(SECONDS) == 1
        started.stdout.close()


def test_a_signal_is_passed_on(tmp_path):
    deed = "signal.signal(signal.SIGUSR1, lambda *_: os._exit(7)); print(flush=True); "
    with fork_server(tmp_path):
        started = client(tmp_path, deed + "time.sleep(600)")
        started.stdout.readline()
        started.send_signal(signal.SIGUSR1)
        assert started.wait(SECONDS) == 7
        started.stdout.close()


def test_a_client_that_ends_too_early_is_in_nobodys_way(tmp_path):
    with fork_server(tmp_path, 2):
        with socket.socket(socket.AF_UNIX) as line:
            line.connect(str(tmp_path / launcher.FORK_SOCKET))
        assert client(tmp_path, "pass").wait(SECONDS) == 0


def test_without_a_fork_server_a_client_ends_at_once(tmp_path):
    assert client(tmp_path, "pass").wait(SECONDS) == 1


def test_a_path_may_be_longer_than_the_name_of_a_socket(tmp_path):
    folder = tmp_path / ("long" * 25) / ("longer" * 15)
    folder.mkdir(parents=True)
    with fork_server(folder):
        assert client(folder, "pass").wait(SECONDS) == 0
