"""Replaces files atomically, and refuses pipes, devices and links.

A file is written under a temporary name and renamed: a reader sees the old content or the new one.
The rename replaces a symbolic link itself, not the file that the link points to.
"""

from __future__ import annotations

import errno
import hashlib
import os
import stat
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from manyhands.errors import ConfigError

PACKAGE = Path(__file__).parents[1]  # what lies here is not a user's own code
PART = ".part"  # ends the name of a file that is not complete


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """Yield the path of a new, empty file; it replaces `path` when the block succeeds."""
    temporary = path.with_name(path.name + PART)
    temporary.unlink(missing_ok=True)  # what a killed process left, or a link
    os.close(os.open(temporary, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o666))
    try:
        yield temporary
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
    temporary.replace(path)


def write(path: Path, data: bytes | str, *, flush: bool = False) -> None:
    """Replace the content of a file; with `flush` it is on the disk when this returns."""
    content = data.encode() if isinstance(data, str) else data
    with replacing(path) as temporary, temporary.open("wb") as file:
        file.write(content)
        if flush:
            file.flush()
            os.fsync(file.fileno())


def flush_folder(path: Path) -> None:
    """Write a folder's entries to the disk, so that files renamed into it survive a power cut."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def append(path: Path) -> int:
    """Open a file for appending, made if needed; return its descriptor.

    Raises:
        OSError: Also where `path` is a symbolic link.
    """
    return os.open(path, os.O_CREAT | os.O_WRONLY | os.O_APPEND | os.O_NOFOLLOW, 0o644)


def expect_regular(path: Path) -> None:
    """Refuse pipes, devices and folders, without opening them.

    Raises:
        OSError: Saying what is expected; or if there is nothing.
    """
    if not stat.S_ISREG(path.stat().st_mode):
        raise OSError(errno.EINVAL, "not a regular file, so it is not opened", str(path))


def read(path: Path) -> bytes:
    """Return the content of a regular file; raises as `expect_regular`."""
    expect_regular(path)
    return path.read_bytes()


def sha256(path: Path) -> str:
    """Return the SHA-256 of a regular file; raises as `expect_regular`."""
    expect_regular(path)
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while piece := file.read(1 << 20):
            digest.update(piece)
    return digest.hexdigest()


def read_toml(path: Path, what: str) -> tuple[str, dict[str, Any]]:
    """Return the text and the content of a TOML file.

    Raises:
        ConfigError: There is none, or it is no TOML; `what` names its kind in the message.
    """
    if sys.version_info >= (3, 11):
        import tomllib
    else:
        import tomli as tomllib
    try:
        text = path.read_text(encoding="utf-8")
        return text, tomllib.loads(text)
    except FileNotFoundError:
        raise ConfigError(f"there is no {what} {str(path)!r}") from None
    except (OSError, ValueError, RecursionError) as error:  # TOMLDecodeError is a ValueError
        raise ConfigError(f"{path} cannot be read as TOML: {error}") from None


def make_folder(path: Path) -> None:
    """Make a folder inside an output folder, if needed.

    Raises:
        ConfigError: A symbolic link or a file is in its place.
        OSError: It cannot be made.
    """
    try:
        path.mkdir(parents=True)
    except FileExistsError:
        if path.is_symlink() or not path.is_dir():
            kind = "a symbolic link" if path.is_symlink() else "not a folder"
            raise ConfigError(
                f"{path} is {kind}; expected a folder inside the output folder: move it away, or "
                "choose another output"
            ) from None
