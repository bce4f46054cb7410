"""Packs folders of records, each into one file that `manyhands report` reads.

`python tools/docs/pack_records.py docs/records/NAME` writes `docs/records/NAME.tar.xz` and removes
the folder; `--unpack` does the reverse. The same records give the same bytes: names are sorted, and
times, owners and permissions left out.
"""

from __future__ import annotations

import argparse
import io
import lzma
import shutil
import sys
import tarfile
from pathlib import Path

from manyhands.report.records.archive import SUFFIX, folder_beside, unpacked


def tar(folder: Path) -> bytes:
    """Return a folder as a tar file that depends on names and contents alone."""
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w", format=tarfile.USTAR_FORMAT) as archive:
        for path in [folder, *sorted(folder.rglob("*"))]:
            if path.is_symlink() or not (path.is_file() or path.is_dir()):
                raise SystemExit(f"{path} is neither a file nor a folder; take it out first")
            member = tarfile.TarInfo(path.relative_to(folder.parent).as_posix())
            if path.is_dir():
                member.type, member.mode = tarfile.DIRTYPE, 0o755
                archive.addfile(member)
            else:
                member.size = path.stat().st_size
                with path.open("rb") as file:
                    archive.addfile(member, file)
    return packed.getvalue()


def pack(folder: Path) -> Path:
    """Write a folder's archive beside it, see that it can be read, and remove the folder."""
    folder = folder.resolve()
    path = folder.with_name(folder.name + SUFFIX)
    path.write_bytes(lzma.compress(tar(folder), preset=9))
    with unpacked(path) as again:
        if tar(again) != tar(folder):
            raise SystemExit(f"{path} does not give back what {folder} holds")
    shutil.rmtree(folder)
    return path


def unpack(path: Path) -> Path:
    """Write the folder that an archive holds beside it, and remove the archive."""
    folder = folder_beside(path)
    with unpacked(path) as found:
        shutil.copytree(found, folder)
    path.unlink()
    return folder


def main() -> int:
    parser = argparse.ArgumentParser(description="Pack folders of records, or unpack them.")
    parser.add_argument("paths", nargs="+", type=Path)
    parser.add_argument("--unpack", action="store_true", help="archives into folders")
    asked = parser.parse_args()
    for path in asked.paths:
        print(unpack(path) if asked.unpack else pack(path))
    return 0


if __name__ == "__main__":
    sys.exit(main())
