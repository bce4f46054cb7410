"""Loads your own code from a file, `mine.py:name`, and says where in it something is.

`import_object` in `import_path` is the entry point: it takes `mine.py:name` and
`package.module:name` alike.
"""

from __future__ import annotations

import functools
import importlib.util
import inspect
import itertools
import os
import re
import sys
import sysconfig
import traceback
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple

from manyhands.errors import ConfigError, ManyhandsError
from manyhands.launch.atomic_files import PACKAGE

_PREFIX = "user_file_"  # begins the names of modules that are loaded by their file


class _Loaded(NamedTuple):
    stamps: dict[
        Path, tuple[int, int] | None
    ]  # of the file, and of those in its folder that it imports
    module: ModuleType


_loaded: dict[Path, _Loaded] = {}
_folders: list[str] = []  # that were put on sys.path, the latest first
_helpers: set[str] = set()  # names of modules that files have imported from their own folders


def load_file(place: str, field: str) -> ModuleType:
    """Return the module in a Python file; an edited file is loaded again.

    Workers receive its functions and classes by value, with those of other modules in the file's
    folder that it imports, so they need not find the file.

    Args:
        place: The file, relative to the working folder.
        field: The option that names it, for messages.

    Raises:
        ConfigError: If there is no such file, or it fails; the message names the line.
    """
    path = Path(place).expanduser().resolve()
    if not path.is_file():
        there = sorted(p.name for p in path.parent.glob("*.py")) if path.parent.is_dir() else []
        known = f"; {path.parent} has {', '.join(there[:10])}" if there else ""
        raise ConfigError(f"{field} names the file {place}, which does not exist{known}")
    running = sys.modules.get("__main__")
    if _file_of(running) == path and running:
        return running  # the script that is running: once is enough
    found = _loaded.get(path)
    if found is None or any(_stamp(file) != stamp for file, stamp in found.stamps.items()):
        found = _loaded[path] = _execute(path, place, field)
    return found.module


def _stamp(path: Path) -> tuple[int, int] | None:
    """Return when a file was written, in ns, and its size; None if it is gone."""
    try:
        status = path.stat()
    except OSError:
        return None
    return status.st_mtime_ns, status.st_size


def _execute(path: Path, place: str, field: str) -> _Loaded:
    """Run the file as a module of its own, with its folder as a place to look for others.

    What other files imported from their folders is imported anew: it may have the same name here,
    or may have been edited.
    """
    import cloudpickle

    name = _choose_module_name(path)
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None:
        raise ConfigError(f"{field} names {place}, which Python cannot load; expected a .py file")
    module = importlib.util.module_from_spec(spec)
    stamps = {path: _stamp(path)}
    while _helpers:
        sys.modules.pop(_helpers.pop(), None)
    before = set(sys.modules)
    sys.modules[name] = module
    _look_first(str(path.parent))
    try:
        spec.loader.exec_module(module)
    except (Exception, SystemExit) as error:
        sys.modules.pop(name, None)
        if isinstance(error, ManyhandsError):
            raise
        raise ConfigError(
            f"{field} names {place}, which fails at line {_line_of(error, path)}: "
            f"{type(error).__name__}: {_message_of(error)}"
        ) from error
    for other in {name, *(set(sys.modules) - before)}:
        file = _file_of(sys.modules.get(other))
        if file and file.is_relative_to(path.parent) and is_users(other):
            cloudpickle.register_pickle_by_value(sys.modules[other])
            stamps.setdefault(file, _stamp(file))
            _helpers.update({other} - {name})
    return _Loaded(stamps, module)


def _look_first(folder: str) -> None:
    """Let imports find the modules of this folder before those of other files' folders."""
    if folder in _folders:
        _folders.remove(folder)
        sys.path.remove(folder)
    if folder not in sys.path:
        sys.path.insert(len(sys.path) - len(_folders), folder)
        _folders.insert(0, folder)


def _choose_module_name(path: Path) -> str:
    """Return a name that no other file's module has."""
    stem = "".join(c if c.isalnum() else "_" for c in path.stem)
    names = (f"{_PREFIX}{stem}{number or ''}" for number in itertools.count())
    return next(n for n in names if n not in sys.modules or _file_of(sys.modules[n]) == path)


def _line_of(error: BaseException, path: Path) -> int | str:
    """Return the line of the file at which an error arose."""
    if isinstance(error, SyntaxError) and error.filename == str(path):
        return error.lineno or "?"
    frames = traceback.extract_tb(error.__traceback__)
    lines = [frame.lineno for frame in frames if frame.filename == str(path)]
    return lines[-1] if lines and lines[-1] else "?"


def _message_of(error: BaseException) -> str:
    return error.msg if isinstance(error, SyntaxError) else str(error)


def _file_of(module: ModuleType | None) -> Path | None:
    file = getattr(module, "__file__", None)
    return Path(file).resolve() if file else None


@functools.cache
def is_users(name: str) -> bool:
    """Say whether a module is the user's, and not a library's or part of manyhands."""
    if name == "__main__":
        return True
    file = _file_of(sys.modules.get(name))
    if file is None or {"site-packages", "dist-packages"} & set(file.parts):
        return False
    places = (sysconfig.get_path(n) for n in ("stdlib", "platstdlib", "purelib", "platlib"))
    return not str(file).startswith((str(PACKAGE), *places))


def send_by_value(kind: type) -> None:
    """Let workers receive a user's class by value, so that they need not find its module.

    Modules beside its own in the same folder, which it may use, travel likewise.
    """
    import cloudpickle

    if kind.__module__ == "__main__" or not is_users(kind.__module__):
        return  # cloudpickle does so, or every process has the package
    folder = Path(str(sys.modules[kind.__module__].__file__)).resolve().parent
    for name, module in list(sys.modules.items()):
        file = _file_of(module) if name != "__main__" else None
        if file and file.is_relative_to(folder) and is_users(name):
            cloudpickle.register_pickle_by_value(module)


def source_location(value: Any, *, at: str = "") -> str:
    """Return where a function or a class is defined, `mine.py:12`, for messages.

    The file is relative to the working folder if it is inside; "" where Python does not know. `at`
    is a name that a class's body sets or annotates: its line is given, if there is one.
    """
    code = getattr(value, "__code__", None)
    if code is not None:  # also where the module is not there, as in a worker
        file, line = code.co_filename, code.co_firstlineno
    else:
        try:
            file, (lines, line) = inspect.getsourcefile(value) or "", inspect.getsourcelines(value)
        except (OSError, TypeError):
            methods = [v for v in vars(value).values() if hasattr(v, "__code__")]
            written = [m for m in methods if m.__code__.co_filename != "<string>"]  # not generated
            first = min(written, key=lambda m: m.__code__.co_firstlineno, default=None)
            return source_location(first) if first else ""
        begins = rf"\s+(def )?{at}\b\s*[:=(]"
        line += next((i for i, text in enumerate(lines) if at and re.match(begins, text)), 0)
    inside = Path(file).resolve().is_relative_to(Path.cwd())
    return f"{os.path.relpath(file) if inside else file}:{line}"
