"""The code for other libraries runs as the pages have it, with the real packages, offline."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from test_scripts import expect_installed

from manyhands.launch import mpi as mpis

DOCS = Path(__file__).parents[2] / "docs"


def blocks_of(page, heading):
    """Return the Python code under a heading of a page."""
    section = (DOCS / page).read_text().partition(f"\n## {heading}\n")[2].partition("\n## ")[0]
    return re.findall(r"^```python\n(.*?)^```$", section, re.MULTILINE | re.DOTALL)


OVER_MPI = {
    re.search(r"accelerate|transformers|lightning", code)[0]: code
    for code in blocks_of("torch-mpi.md", "Accelerate, Transformers and Lightning")
}


def run_offline(line, folder, **environment):
    environment = {**os.environ, "HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1", **environment}
    done = subprocess.run(
        line, cwd=folder, env=environment, capture_output=True, text=True, timeout=500
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_every_tool_has_its_lines():
    assert list(OVER_MPI) == ["accelerate", "transformers", "lightning"]


@pytest.mark.timeout(600)
@pytest.mark.parametrize("tool", OVER_MPI)
def test_the_lines_over_mpi_run_as_copied(tool, tmp_path):
    expect_installed("accelerate")
    expect_installed(tool)
    (tmp_path / "script.py").write_text(OVER_MPI[tool])
    line, own = mpis.mpiexec_command(mpis.find_mpi(), 2, ["script.py"])
    assert "2 processes over mpi4py" in run_offline(line, tmp_path, **own)


@pytest.mark.timeout(600)
def test_the_cookbook_fine_tunes_a_model_of_transformers(tmp_path):
    expect_installed("transformers")
    from transformers import BertConfig, BertForSequenceClassification, BertTokenizer

    words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "a", "fine", "dull", "film"]
    BertTokenizer(vocab={word: at for at, word in enumerate(words)}).save_pretrained(
        tmp_path / "tiny"
    )
    config = BertConfig(
        vocab_size=len(words),
        hidden_size=16,
        num_hidden_layers=1,
        num_attention_heads=2,
        intermediate_size=32,
    )
    BertForSequenceClassification(config).save_pretrained(tmp_path / "tiny")
    (code,) = blocks_of("cookbook.md", "From Hugging Face Transformers")
    code, named = re.subn(r'^name = ".*"$', 'name = "tiny"', code, flags=re.MULTILINE)
    assert named == 1
    (tmp_path / "script.py").write_text(code)
    run_offline([sys.executable, "script.py"], tmp_path)
    tuned = BertForSequenceClassification.from_pretrained(tmp_path / "tuned")
    assert tuned.config.vocab_size == len(words)
