"""`manyhands report FOLDER --watch`: from its first line to the signal that ends it."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path
from urllib.request import urlopen

import pytest
from running import PATIENCE

sys.path.insert(0, str(Path(__file__).parents[1] / "unit"))
import records


@pytest.mark.parametrize("signum", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_it_follows_a_sweep_until_it_is_told_to_end(signum: int, tmp_path: Path) -> None:
    sweep = records.sweep(tmp_path / "sweep", [records.record("sync", 1)])
    (tmp_path / "tmp").mkdir()
    watching = subprocess.Popen(
        [sys.executable, "-m", "manyhands", "report", str(sweep), "--watch"],
        env={**os.environ, "TMPDIR": str(tmp_path / "tmp")},
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    try:
        assert watching.stdout is not None
        first = watching.stdout.readline()
        address = re.fullmatch(r"report: (http://127\.0\.0\.1:\d+/) \(Ctrl-C ends it\)\n", first)
        assert address, first + watching.communicate(timeout=PATIENCE)[1]
        with urlopen(address[1], timeout=PATIENCE) as answer:
            page = answer.read().decode()
        assert "records of 1 run." in page
        (sweep / "runs" / "later").mkdir()
        (sweep / "runs" / "later" / "run.json").write_text(json.dumps(records.record("sync", 2)))
        (version,) = re.findall(r'data-version="(\w+)"', page)
        status = 204  # nothing yet
        while status == 204:
            with urlopen(f"{address[1]}changed?from={version}", timeout=PATIENCE) as answer:
                status = answer.status
        assert status == 200
        with urlopen(address[1], timeout=PATIENCE) as answer:
            assert "records of 2 runs." in answer.read().decode()
        watching.send_signal(signum)
        assert watching.communicate(timeout=PATIENCE) == ("ended\n", "")
        assert watching.returncode == 0
        assert list((tmp_path / "tmp").glob("manyhands*")) == []
    finally:
        watching.kill()
        watching.wait()
