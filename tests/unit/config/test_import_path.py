"""Objects named by package.module:object, and what is said where there is none."""

import shutil
import subprocess
import sys

import cloudpickle
import pytest

import manyhands as mh
from manyhands.config.import_path import import_object
from manyhands.config.user_file import load_file, source_location


def test_a_users_error_while_importing_is_the_users(tmp_path, monkeypatch):
    (tmp_path / "faulty_module.py").write_text("int('a')")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(ValueError, match="invalid literal"):
        import_object("faulty_module:make", "model")
    for spec in ("", ":make", "mine", "mine:", "1x:make"):
        with pytest.raises(mh.ConfigError, match=r"expected package\.module:factory"):
            import_object(spec, "model")


def test_a_file_is_loaded_by_its_path_and_again_once_it_is_edited(tmp_path, monkeypatch):
    (tmp_path / "beside.py").write_text("value = 5\n")
    file = tmp_path / "own.py"
    file.write_text("import beside\n\ndef make():\n    return beside.value\n")
    make = import_object(f"{file}:make", "model")
    assert make() == 5
    assert import_object(f"{file}:make", "model") is make
    monkeypatch.chdir(tmp_path)
    assert import_object("own.py:make", "model") is make
    assert source_location(make) == "own.py:3"
    file.write_text("def make():\n    return 17\n")
    assert import_object("own.py:make", "model")() == 17


def test_another_process_needs_neither_the_file_nor_its_folder(tmp_path):
    folder = tmp_path / "code"
    folder.mkdir()
    (folder / "helper_of_own.py").write_text("def double(x):\n    return 2 * x\n")
    (folder / "own_code.py").write_text(
        "from helper_of_own import double\n\ndef make():\n    return double(21)\n"
    )
    pickled = cloudpickle.dumps(import_object(f"{folder}/own_code.py:make", "model"))
    shutil.rmtree(folder)
    code = "import sys, cloudpickle; print(cloudpickle.load(sys.stdin.buffer)())"
    done = subprocess.run(
        [sys.executable, "-c", code], input=pickled, capture_output=True, check=True, cwd=tmp_path
    )
    assert done.stdout.strip() == b"42"


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("x = 1\ndef f(:\n", r"own\.py, which fails at line 2: SyntaxError"),
        ("x = 1\n\nint('a')\n", r"own\.py, which fails at line 3: ValueError: invalid literal"),
        ("import sys\nsys.exit(0)\n", r"fails at line 2: SystemExit"),
        ("import no_such_module_there\n", r"line 1: ModuleNotFoundError: No module named"),
        ("def mkae():\n    pass\n", r"has no 'make'\. Did you mean 'mkae'\?"),
    ],
)
def test_a_file_that_fails_is_named_with_the_line(content, message, tmp_path):
    (tmp_path / "own.py").write_text(content)
    with pytest.raises(mh.ConfigError, match=message):
        import_object(f"{tmp_path}/own.py:make", "strategy")


def test_a_file_that_is_not_there_names_those_that_are(tmp_path):
    (tmp_path / "own.py").write_text("")
    with pytest.raises(mh.ConfigError, match=r"other\.py, which does not exist; .* has own\.py"):
        import_object(f"{tmp_path}/other.py:make", "strategy")


def test_files_in_two_folders_have_helpers_of_one_name(tmp_path):
    for folder in ("one", "two"):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "helper_of_both.py").write_text(f"NAME = {folder!r}\n")
        (tmp_path / folder / "mine.py").write_text("from helper_of_both import NAME\n")
    for folder in ("one", "two", "one"):
        found = load_file(str(tmp_path / folder / "mine.py"), "strategy")
        assert str(found.NAME) == folder


def test_a_file_is_loaded_again_once_its_helper_is_edited(tmp_path):
    helper, mine = tmp_path / "helper_to_edit.py", tmp_path / "mine.py"
    helper.write_text("NAME = 'first'\n")
    mine.write_text("from helper_to_edit import NAME\n")
    assert load_file(str(mine), "strategy").NAME == "first"
    helper.write_text("NAME = 'the second'\n")
    assert load_file(str(mine), "strategy").NAME == "the second"
