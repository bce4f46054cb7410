"""Packed sweeps are read as their folders are; hostile and damaged archives are refused."""

from __future__ import annotations

import io
import lzma
import os
import sys
import tarfile
from collections.abc import Callable
from pathlib import Path

import pytest
import records
from committed_records import RECORDS

sys.path.insert(0, str(Path(__file__).parents[4] / "tools/docs"))
import pack_records

from manyhands.cli.app import main
from manyhands.report import build
from manyhands.report.records import archive
from manyhands.report.records.archive import ArchiveError, unpacked
from manyhands.report.records.load import read


@pytest.fixture
def sweep(tmp_path: Path) -> Path:
    return records.sweep(tmp_path / "psgd", records.psgd(1), title="T")


def test_the_report_of_a_packed_sweep_is_that_of_its_folder(sweep: Path, tmp_path: Path) -> None:
    build([sweep], tmp_path / "of-folder")
    build([pack_records.pack(sweep)], tmp_path / "of-archive")
    assert not sweep.exists()
    for name in ("report.json", "results.csv", "runs.csv"):
        written = [(tmp_path / place / name).read_bytes() for place in ("of-folder", "of-archive")]
        assert written[0] == written[1], name


def test_the_report_goes_beside_the_archive(sweep: Path, capsys: pytest.CaptureFixture) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["report", str(pack_records.pack(sweep))])
    assert ended.value.code in (None, 0)
    assert f"report: {sweep / 'report.html'}" in capsys.readouterr().out
    assert (sweep / "report.html").is_file()


def test_a_file_is_not_taken_for_the_folder_of_a_report(
    sweep: Path, tmp_path: Path, capsys: pytest.CaptureFixture
) -> None:
    (tmp_path / "notes.txt").write_text("mine")
    with pytest.raises(SystemExit) as ended:
        main(["report", str(sweep), "--output", str(tmp_path / "notes.txt")])
    assert ended.value.code == 2
    assert "notes.txt is not a folder" in capsys.readouterr().err
    assert (tmp_path / "notes.txt").read_text() == "mine"


def test_the_same_records_give_the_same_bytes(sweep: Path, tmp_path: Path) -> None:
    first = pack_records.pack(sweep).read_bytes()
    again = pack_records.unpack(tmp_path / "psgd.tar.xz")
    for path in again.rglob("*"):
        os.utime(path, (1, 1))
        path.chmod(0o700)
    assert pack_records.pack(again).read_bytes() == first


def test_a_run_that_left_nothing_is_still_missed(sweep: Path) -> None:
    (sweep / "runs" / "empty").mkdir()
    of_folder = read([sweep])
    assert read([pack_records.pack(sweep)]) == of_folder
    assert len(of_folder.problems) == 1


def test_what_a_plain_tar_packs_is_read(sweep: Path, tmp_path: Path) -> None:
    path = tmp_path / "mine.tar.xz"
    with tarfile.open(path, "w:xz") as packed:
        packed.add(sweep, "psgd")
    assert read([path]) == read([sweep])


def member(name: str, kind: bytes = tarfile.REGTYPE, size: int = 0, **more: str) -> tarfile.TarInfo:
    info = tarfile.TarInfo(name)
    info.type, info.size = kind, size
    info.pax_headers = more
    return info


def link(name: str, kind: bytes) -> tarfile.TarInfo:
    info = member(name, kind)
    info.linkname = "/etc/passwd"
    return info


def tar(*members: tarfile.TarInfo) -> bytes:
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w") as file:
        for info in members:
            file.addfile(info, io.BytesIO(b"x" * info.size))
    return packed.getvalue()


GOOD = member("s/runs/a/run.json", size=2)
HUGE = {"GNU.sparse.major": "0", "GNU.sparse.size": str(1 << 50), "GNU.sparse.map": "0,1"}


@pytest.mark.parametrize(
    ("members", "told"),
    [
        ([GOOD, member("../out")], "holds '../out', which leads out of its folder"),
        ([GOOD, member("s/../../out")], "leads out of its folder"),
        ([GOOD, member("/tmp/out")], "holds '/tmp/out', which leads out of its folder"),
        ([GOOD, link("s/run.json", tarfile.SYMTYPE)], "which is neither a file nor a folder"),
        ([GOOD, link("s/run.json", tarfile.LNKTYPE)], "which is neither a file nor a folder"),
        ([link("s", tarfile.SYMTYPE), GOOD], "holds 's', which is neither a file nor a folder"),
        ([GOOD, member("s/pipe", tarfile.FIFOTYPE)], "which is neither a file nor a folder"),
        ([GOOD, member("s/disk", tarfile.BLKTYPE)], "which is neither a file nor a folder"),
        ([GOOD, member("s/holes", **HUGE)], "which is neither a file nor a folder"),
        ([GOOD, member("t/run.json")], "does not hold one folder"),
        ([member("run.json")], "does not hold one folder"),
        ([], "does not hold one folder"),
        ([GOOD, GOOD], "holds 's/runs/a/run.json' twice"),
        ([GOOD, member("s/runs/a/run.json/b")], "below a file"),
        ([GOOD, member("s/" + "n" * 300)], "holds a name of 302 characters"),
    ],
)
def test_what_is_no_folder_of_plain_files_is_refused(
    members: list[tarfile.TarInfo], told: str, tmp_path: Path
) -> None:
    path = tmp_path / "inner" / "s.tar.xz"
    path.parent.mkdir()
    path.write_bytes(lzma.compress(tar(*members)))
    refused(path, told)
    assert [each.name for each in tmp_path.iterdir()] == ["inner"]
    assert [each.name for each in path.parent.iterdir()] == ["s.tar.xz"]


def refused(path: Path, told: str) -> None:
    with pytest.raises(ArchiveError, match=told), unpacked(path):
        pass
    (problem,) = read([path]).problems
    assert problem.where == str(path)
    assert told in problem.message
    assert str(path) not in problem.message


@pytest.mark.parametrize(
    ("damage", "told"),
    [
        (lambda data: b"", "is damaged"),
        (lambda data: data[: len(data) // 2], "is damaged"),
        (lambda data: data[:-40] + bytes(40), "is damaged"),
        (lambda data: data + data, "is damaged"),
        (lambda data: lzma.decompress(data), "is damaged or no xz file"),
        (lambda data: lzma.compress(b"no tar file at all" * 100), "is damaged"),
        (lambda data: lzma.compress(lzma.decompress(data)[:700]), "is damaged"),
        (lambda data: lzma.compress(lzma.decompress(data)[:1024]), "is damaged"),
        (
            lambda data: lzma.compress(lzma.decompress(data).replace(b"run.json", b"run.jsan")),
            "damaged",
        ),
    ],
)
def test_a_damaged_archive_is_named(
    damage: Callable[[bytes], bytes], told: str, sweep: Path
) -> None:
    path = pack_records.pack(sweep)
    path.write_bytes(damage(path.read_bytes()))
    refused(path, told)


def test_an_archive_that_is_not_there_is_named(tmp_path: Path) -> None:
    refused(tmp_path / "s.tar.xz", "cannot be read: No such file or directory")


def test_no_more_is_decompressed_than_allowed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(archive, "MOST_BYTES", 1 << 20)
    path = tmp_path / "s.tar.xz"
    path.write_bytes(lzma.compress(tar(member("s/run.json", size=2 << 20))))
    assert path.stat().st_size < 1 << 14
    refused(path, "holds more than 1 MiB")


def test_no_more_files_are_written_than_allowed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(archive, "MOST_FILES", 3)
    path = tmp_path / "s.tar.xz"
    path.write_bytes(lzma.compress(tar(*(member(f"s/{n}.json") for n in range(4)))))
    refused(path, "holds more than 3 files")


def test_links_are_not_packed(sweep: Path) -> None:
    (sweep / "elsewhere").symlink_to("/etc")
    with pytest.raises(SystemExit, match="neither a file nor a folder"):
        pack_records.pack(sweep)
    assert sweep.is_dir()


@pytest.mark.parametrize("path", sorted(RECORDS.glob("*.tar.xz")), ids=lambda path: path.name)
def test_a_committed_archive_is_what_the_tool_packs(path: Path) -> None:
    with unpacked(path) as folder:
        assert folder.name == path.name.removesuffix(".tar.xz")
        assert pack_records.tar(folder) == lzma.decompress(path.read_bytes())
