"""The course: what the skeletons, the model solutions and the broken rings earn."""

import json
import os
import subprocess
import sys
from pathlib import Path

import nbformat
import pytest
from nbclient import NotebookClient
from running import anybody_alive, eventually

from manyhands.experiments.check.course.grade_student_file import grade

pytestmark = pytest.mark.timeout(1200)  # each test starts dozens of groups of processes

COURSE = Path(__file__).parents[2] / "course"
SOLUTIONS = {
    "1-averaging": "averaging",
    "2-hogwild": "hogwild",
    "3-allreduce": "allreduce",
    "4-server": "server",
    "5-private": "private",
}
# Files that do nothing of what is asked; the last two remove what says so, and claim success.
CHEATS = {
    "exits": "import os; os._exit(0)",
    "exits by an exception": "import sys; sys.exit(0)",
    "exits at the end": """
import atexit, os, pathlib, sys
def end():
    for path in pathlib.Path(sys.argv[4]).glob("failure-*"):
        path.unlink()
    os._exit(0)
atexit.register(end)
""",
    "writes its own result": """
import os, pathlib, sys
folder = pathlib.Path(sys.argv[4])
known = [p.read_text() for p in folder.glob("*") if p.is_file()] + [*os.environ.values(), *sys.argv]
for rank in range(4):
    (folder / f"passed-{rank}").write_text(known[0])
print("passed", *sys.argv, flush=True)
os._exit(0)
""",
}
BORROWED = {  # all-reduces that sum rightly, and are nobody's own
    "imported": "from manyhands.allreduce import naive, ring\n",
    "MPI's": """
from mpi4py import MPI
def ring(send, recv, comm, op):
    comm.Allreduce(send, recv, {"add": MPI.SUM, "maximum": MPI.MAX}.get(op.__name__, MPI.PROD))
naive = ring
""",
}


WAITS = """
import os, pathlib, time
def naive(send, recv, comm, op):
    pathlib.Path({folder!r}, f"waits-{{os.getpid()}}").touch()
    time.sleep(900)
"""


def test_a_grader_that_is_killed_leaves_nobody_waiting(nobody_is_left, tmp_path):
    file = tmp_path / "file.py"
    file.write_text(WAITS.format(folder=str(tmp_path)))
    line = [sys.executable, "-m", "manyhands", "check", "--course", str(COURSE / "3-allreduce")]
    with subprocess.Popen([*line, "--patience", "600", str(file)]) as grader:
        assert eventually(lambda: len(list(tmp_path.glob("waits-*"))) == 2)
        assert anybody_alive()
        grader.kill()


@pytest.mark.parametrize("assignment", SOLUTIONS)
def test_a_skeleton_earns_nothing_and_the_solution_everything(assignment):
    folder, patience = str(COURSE / assignment), 200  # of a busy machine
    nothing = grade(folder, str(COURSE / assignment / "skeleton.py"), patience=patience)
    assert [mark.points for mark in nothing.marks if mark.points] == []
    assert all("NotImplementedError" in mark.why for mark in nothing.marks)
    solution = COURSE / "solutions" / f"{SOLUTIONS[assignment]}.py"
    everything = grade(folder, str(solution), patience=patience)
    assert [mark.why for mark in everything.marks if mark.why] == []
    assert everything.points == everything.of == nothing.of
    points = f"| {everything.of} |"
    rows = (COURSE / "README.md").read_text().splitlines()
    assert [points in row for row in rows if f"({assignment}/task.md)" in row] == [True]


@pytest.mark.parametrize(
    ("mistake", "said"),
    [
        ("wrong_chunk", "recv[0] is"),
        ("blocking_sends", "nobody receives"),
        ("missing_copy", "send was changed"),
    ],
)
def test_a_broken_ring_earns_something_and_is_told_its_mistake(mistake, said):
    made = grade(str(COURSE / "3-allreduce"), str(COURSE / "broken" / f"{mistake}.py"), patience=25)
    assert 0 < made.points < made.of
    assert said in str(made)


@pytest.mark.parametrize("cheat", CHEATS)
def test_a_file_that_only_ends_without_an_error_earns_nothing(cheat, tmp_path):
    file = tmp_path / "mine.py"
    file.write_text(CHEATS[cheat])
    made = grade(str(COURSE / "3-allreduce"), str(file), public=True)
    assert [mark.points for mark in made.marks] == [0] * 4
    if cheat != "exits by an exception":
        assert "exit code 0 before its test was over: does the file exit?" in made.marks[-1].why


def test_a_ring_earns_nothing_as_the_naive_all_reduce(tmp_path):
    file = tmp_path / "mine.py"
    solution = (COURSE / "solutions" / "allreduce.py").read_text()
    file.write_text(f"{solution}\n\nnaive = ring\n")
    made = grade(str(COURSE / "3-allreduce"), str(file), patience=200)
    lost = [mark.test for mark in made.marks if not mark.points]
    assert lost == [mark.test for mark in made.marks if " naive " in mark.test]
    assert len(lost) == 3
    assert "naive sent 4 messages, expected 2" in str(made)


@pytest.mark.parametrize("text", BORROWED.values(), ids=BORROWED)
def test_an_all_reduce_that_is_not_of_messages_earns_nothing(text, tmp_path):
    file = tmp_path / "mine.py"
    file.write_text(text)
    made = grade(str(COURSE / "3-allreduce"), str(file), patience=200)
    assert [mark.test for mark in made.marks if mark.points] == []
    assert "only Isend, Irecv and waiting are allowed" in str(made)


@pytest.mark.parametrize(
    "option", [("--workers", "2"), ("--options", "a=1"), ("--point-to-point",)]
)
def test_an_option_that_a_course_would_ignore_is_refused(option):
    line = [sys.executable, "-m", "manyhands", "check", "--course", COURSE / "5-private", *option]
    run = subprocess.run([*line, "mine.py"], capture_output=True, text=True)
    name = option[0][2:].replace("-", "_")
    assert (run.returncode, run.stderr.count(f"{name} is given with course")) == (2, 1)


def test_the_course_works_in_a_notebook_with_the_solutions(tmp_path, monkeypatch):
    out = tmp_path / "out"
    subprocess.run([sys.executable, COURSE / "hand_out.py", out, "--with-solutions"], check=True)
    files = {p.relative_to(out).as_posix() for p in out.rglob("*")}
    assert {f"solutions/{name}.py" for name in SOLUTIONS.values()} <= files
    assert not [f for f in files if f.endswith(("instructor_tests.py", "teachers.md", "_out.py"))]
    assert "teachers.md" not in (out / "README.md").read_text()
    monkeypatch.setenv("PATH", f"{Path(sys.executable).parent}:{os.environ['PATH']}")
    solution = (out / "solutions/allreduce.py").read_text()
    skeleton = (out / "3-allreduce/skeleton.py").read_text()
    graded = "from manyhands.testing import grade\nprint(grade('3-allreduce', 'mine.py'))"
    cells = ["%%writefile mine.py\n" + solution, "!manyhands check --course 3-allreduce mine.py"]
    cells += ["%%writefile mine.py\n" + skeleton, graded]
    book = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(cell) for cell in cells])
    resources = {"metadata": {"path": str(out)}}
    NotebookClient(book, timeout=600, startup_timeout=600, resources=resources).execute()
    printed = ["".join(o.get("text", "") for o in cell.outputs) for cell in book.cells]
    assert "4 of 4 points" in printed[1]
    assert printed[3].endswith("0 of 4 points\n")
    assert "NotImplementedError" in printed[3]


def test_students_get_no_solution_and_a_grader_gets_json(tmp_path):
    out = tmp_path / "out"
    subprocess.run([sys.executable, COURSE / "hand_out.py", out], check=True)
    files = {p.name for p in out.rglob("*")}
    assert {"task.md", "skeleton.py", "public_tests.py"} <= files
    assert not {"instructor_tests.py", "solutions", "teachers.md", "broken"} & files
    line = [sys.executable, "-m", "manyhands", "check", "--json", "--course", out / "5-private"]
    run = subprocess.run([*line, out / "5-private/skeleton.py"], capture_output=True, text=True)
    found = json.loads(run.stdout)
    assert (run.returncode, found["schema"], found["points"]) == (1, "manyhands-course/1", 0)
    assert found["of"] == sum(test["of"] for test in found["tests"]) > 0
