"""Read the records of a sweep from one compressed file, `NAME.tar.xz`.

The file holds one folder, as `tar -cJf NAME.tar.xz NAME` packs it.

Guarantees:
    - Nothing is written outside the temporary folder: absolute paths, `..`, links and special
      files are refused.
    - At most `MOST_BYTES` are decompressed, and at most `MOST_FILES` files written.
"""

from __future__ import annotations

import io
import lzma
import os
import tarfile
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path, PurePosixPath

from manyhands.errors import DataError

SUFFIX = ".tar.xz"
MOST_BYTES = 256 << 20  # of one archive, decompressed; the largest committed one has 1.6 MB
MOST_FILES = 20_000
_MOST_MEMORY = 128 << 20  # of the decoder; xz -9 needs 65 MiB
_LONGEST_NAME = 250  # bytes of a path, so that every file system can write it


class ArchiveError(DataError):
    """An archive of records that is damaged or refused; `reason` lacks the path."""

    def __init__(self, path: Path, reason: str) -> None:
        super().__init__(f"{path} {reason}")
        self.reason = reason


def is_archive(path: Path) -> bool:
    """Return whether a path is a packed sweep rather than a folder."""
    return path.name.endswith(SUFFIX) and not path.is_dir()


def folder_beside(path: Path) -> Path:
    """Return the folder that an archive's path has without its suffix; any other path is itself.

    >>> folder_beside(Path("docs/sync.tar.xz")).as_posix()
    'docs/sync'
    """
    return path.with_name(path.name.removesuffix(SUFFIX)) if is_archive(path) else path


@contextmanager
def unpacked(path: Path) -> Iterator[Path]:
    """Give the folder that an archive holds, in a temporary place, and remove it afterwards.

    Raises:
        ArchiveError: The file cannot be read, is damaged, or holds something other than one folder
            of plain files within the limits.
    """
    members = _members(path)
    with tempfile.TemporaryDirectory(prefix="manyhands-records-") as place:
        for name, content in members.items():
            target = Path(place, name)
            folder = target if content is None else target.parent
            folder.mkdir(parents=True, exist_ok=True)
            if content is not None:
                target.write_bytes(content)
        yield Path(place, next(iter(members)).parts[0])


def _members(path: Path) -> dict[PurePosixPath, bytes | None]:
    """Return what the archive holds, by path: the content of each file, None for a folder."""
    plain = _decompressed(path)
    members: dict[PurePosixPath, bytes | None] = {}
    try:
        with tarfile.open(fileobj=io.BytesIO(plain), mode="r:") as archive:
            for member in archive:
                name = _checked(path, member)
                if name in members:
                    raise ArchiveError(path, f"holds {member.name!r} twice")
                if len(members) == MOST_FILES:
                    raise ArchiveError(path, f"holds more than {MOST_FILES:,} files")
                content = archive.extractfile(member)
                members[name] = content.read() if content else None
            # tarfile takes a broken header for the end; behind the true end there are only zeros.
            rest = plain[archive.offset :]
            if len(rest) < tarfile.BLOCKSIZE or rest.strip(b"\0"):
                raise ArchiveError(path, "is damaged: it ends within a file")
    except ArchiveError:
        raise
    except (tarfile.TarError, ValueError, OverflowError, RecursionError, EOFError) as error:
        raise ArchiveError(path, f"is damaged: {error}") from None
    files = {name for name, content in members.items() if content is not None}
    if len({name.parts[:1] for name in members}) != 1 or not all(len(n.parts) > 1 for n in files):
        raise ArchiveError(path, "does not hold one folder, as tar -cJf NAME.tar.xz NAME packs it")
    if inner := next((name for name in members if not files.isdisjoint(name.parents)), None):
        raise ArchiveError(path, f"holds {str(inner)!r} below a file")
    return members


def _decompressed(path: Path) -> bytes:
    """Return the tar file, if it is within the limits."""
    try:
        with path.open("rb") as file:
            packed = file.read(MOST_BYTES + 1)
        decoder = lzma.LZMADecompressor(lzma.FORMAT_XZ, memlimit=_MOST_MEMORY)
        plain = decoder.decompress(packed, max_length=MOST_BYTES + 1)
    except OSError as error:
        raise ArchiveError(path, f"cannot be read: {error.strerror or error}") from None
    except lzma.LZMAError as error:
        raise ArchiveError(path, f"is damaged or no xz file: {error}") from None
    if len(packed) > MOST_BYTES or len(plain) > MOST_BYTES:
        raise ArchiveError(path, f"holds more than {MOST_BYTES >> 20} MiB")
    if not decoder.eof or decoder.unused_data:
        raise ArchiveError(path, "is damaged: it ends too early, or goes on behind its end")
    return plain


def _checked(path: Path, member: tarfile.TarInfo) -> PurePosixPath:
    """Return a member's path, if it is a plain file or a folder within the archive's folder."""
    name = PurePosixPath(member.name)
    if name.is_absolute() or ".." in name.parts or "\0" in member.name:
        raise ArchiveError(path, f"holds {member.name!r}, which leads out of its folder")
    if len(os.fsencode(member.name)) > _LONGEST_NAME:
        raise ArchiveError(path, f"holds a name of {len(member.name):,} characters")
    plain = member.type in (tarfile.REGTYPE, tarfile.AREGTYPE) and not member.issparse()
    if not plain and not member.isdir():
        raise ArchiveError(path, f"holds {member.name!r}, which is neither a file nor a folder")
    if member.size > MOST_BYTES:
        raise ArchiveError(path, f"holds {member.name!r} of {member.size:,} bytes")
    return name
