"""The course: what the skeletons, the model solutions and the broken rings earn."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from manyhands.experiments.check.course import grade

pytestmark = pytest.mark.timeout(600)  # each test starts dozens of groups of processes

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


@pytest.mark.parametrize("assignment", SOLUTIONS)
def test_a_skeleton_earns_nothing_and_the_solution_everything(assignment):
    nothing = grade(str(COURSE / assignment), str(COURSE / assignment / "skeleton.py"))
    assert [mark.points for mark in nothing.marks if mark.points] == []
    assert all("NotImplementedError" in mark.why for mark in nothing.marks)
    solution = COURSE / "solutions" / f"{SOLUTIONS[assignment]}.py"
    everything = grade(str(COURSE / assignment), str(solution))
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
    made = grade(str(COURSE / "3-allreduce"), str(COURSE / "broken" / f"{mistake}.py"), limit=25)
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
