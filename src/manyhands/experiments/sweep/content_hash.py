"""Marks of a user's own code and data: what tells one content from another under the same name.

A sweep goes on where the last one ended, and keeps runs that are finished. A run is the same only
if what it was made of is: a class that was edited, an array of other numbers or a file that was
written anew make another run. Code counts as it is compiled, with the user's own functions, classes
and constants that it uses; comments and other parts of a file do not. What a function reads from
the disk is not looked at.
"""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import types
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

import manyhands.strategies  # noqa: F401  (registers their options)
from manyhands.config.import_path import import_object, names_object
from manyhands.config.options import find_tagged, options
from manyhands.config.strategy_table import own
from manyhands.config.user_file import is_users

_ABOUT = ("manifest.json", "data.json")  # what says all of a folder: it has the hashes of its files


class ContentHashes:
    """Marks of many runs' contents; what several of them share is read once."""

    def __init__(self) -> None:
        self._known: dict[tuple[str, object, bool], tuple[Any, str | None]] = {}

    def of(self, options: Mapping[str, Any]) -> dict[str, str]:
        """Return a mark for each option whose name alone does not say what it holds.

        In a private run only the form of arrays and files counts: a hash would tell who knows a
        data set that it was this one.
        """
        hashes, hidden = {}, bool(options.get("private") or options.get("privacy"))
        for field in find_tagged(lambda tags: tags.code or tags.file):
            if mark := self._hash_option(field, options.get(field), hidden=hidden):
                hashes[field] = mark
        return hashes

    def _hash_option(self, field: str, value: Any, *, hidden: bool) -> str | None:
        key = (field, value if isinstance(value, str) else id(value), hidden)
        if key not in self._known:
            self._known[key] = value, _hash_option(field, value, hidden=hidden)
        return self._known[key][1]


def _hash_option(field: str, value: Any, *, hidden: bool) -> str | None:
    if field in ("optimizer", "strategy") and type(value).__module__.startswith("manyhands."):
        return None  # its options say all of it
    named = value if isinstance(value, tuple | list) else (value,)
    if all(one is None or isinstance(one, str) for one in named):
        value = [_resolve(field, one) for one in named if one is not None]
        if not any(one is not None for one in value):
            return None
    reader = _Hasher(hidden=hidden)
    reader.take(value)
    return reader.seen.hexdigest()


def _resolve(field: str, name: str) -> Any:
    """Return what a name stands for: an object or a file; None where it is one of ours."""
    if field == "strategy":
        return found.kind if (found := own(name)) else None
    if names_object(name):
        return import_object(name, field)
    return Path(name) if options()[field].tags.file and Path(name).exists() else None


class _Hasher:
    """Goes through a value and all that belongs to it, each object once."""

    def __init__(self, *, hidden: bool) -> None:
        self.hidden = hidden
        self.seen = hashlib.blake2b(digest_size=8)
        self.met: dict[int, Any] = {}  # the objects themselves, lest another take an address over

    def _say(self, *words: object) -> None:
        self.seen.update("\0".join(map(repr, words)).encode() + b"\1")

    def take(self, value: Any) -> None:
        """Add a value to the mark."""
        import torch

        if value is None or isinstance(value, bool | int | float | complex | str | bytes):
            self._say(type(value).__name__, value)
            return
        if id(value) in self.met:
            self._say("again", type(value).__name__)
            return
        self.met[id(value)] = value
        if isinstance(value, Path):
            self._file(value)
        elif isinstance(value, torch.nn.Module):
            self._say(type(value).__qualname__, repr(value))
            self.take(type(value))
            self.take(dict(value.state_dict()))
        elif isinstance(value, torch.Tensor):
            self._array(value.detach().cpu().numpy())
        elif isinstance(value, np.ndarray) or hasattr(value, "__array__"):
            self._array(np.asarray(value))
        elif isinstance(value, Mapping):
            for key in sorted(value, key=repr):
                self.take(key)
                self.take(value[key])
        elif isinstance(value, list | tuple):
            self._say(type(value).__name__, len(value))
            for one in value:
                self.take(one)
        elif isinstance(value, set | frozenset):
            self._say(sorted(map(repr, value)))
        elif isinstance(value, type):
            self._class(value)
        elif isinstance(value, types.FunctionType):
            self._function(value)
        elif isinstance(value, functools.partial):
            self.take([value.func, value.args, value.keywords])
        else:
            self._object(value)

    def _file(self, path: Path) -> None:
        if path.is_dir():
            about = next((path / name for name in _ABOUT if (path / name).exists()), None)
            files = [about] if about else sorted(p for p in path.rglob("*") if p.is_file())
        else:
            files = [path]
        for file in files:
            self._say(file.name, file.stat().st_size)
            if not self.hidden and (len(files) == 1 or file.name in _ABOUT):
                with file.open("rb") as opened:
                    while piece := opened.read(1 << 24):
                        self.seen.update(piece)

    def _array(self, array: np.ndarray) -> None:
        self._say(array.dtype.str, array.shape)
        if array.dtype.hasobject:
            self.take(None if self.hidden else array.tolist())
        elif not self.hidden:
            self.seen.update(np.ascontiguousarray(array).view(np.uint8).data)

    def _class(self, kind: type) -> None:
        self._say("class", kind.__module__, kind.__qualname__)
        if not is_users(kind.__module__):
            return
        for base in kind.__bases__:
            self.take(base)
        for name, value in sorted(vars(kind).items()):
            inner = getattr(value, "__func__", getattr(value, "fget", value))
            if isinstance(inner, types.FunctionType) or not name.startswith("__"):
                self._say(name)
                self.take(inner)

    def _function(self, function: types.FunctionType) -> None:
        self._say("function", function.__module__, function.__qualname__)
        if not is_users(function.__module__):
            return
        self.take(function.__defaults__)
        self.take(function.__kwdefaults__)
        for cell in function.__closure__ or ():
            self.take(cell.cell_contents)
        self._code(function.__code__, function.__globals__)

    def _code(self, code: types.CodeType, known: Mapping[str, Any]) -> None:
        self._say(code.co_code, code.co_names, code.co_varnames, code.co_freevars)
        for constant in code.co_consts:
            if isinstance(constant, types.CodeType):
                self._code(constant, known)
            else:
                self.take(constant)
        for name in code.co_names:
            if name in known:
                self._used(known[name], code.co_names)

    def _used(self, value: Any, names: tuple[str, ...]) -> None:
        """Add a global that code uses; of a module, what the code may take from it."""
        if not isinstance(value, types.ModuleType):
            self.take(value)
        elif is_users(value.__name__):
            for name in names:
                if name in vars(value):
                    self._used(vars(value)[name], names)

    def _object(self, value: Any) -> None:
        kind = type(value)
        self.take(kind)
        if dataclasses.is_dataclass(value):
            self.take({f.name: getattr(value, f.name) for f in dataclasses.fields(value)})
        elif hasattr(value, "__dict__"):
            self.take(vars(value))
        if hasattr(value, "__len__") and hasattr(value, "__getitem__"):
            self._say(len(value))
