"""The CNN on one GPU: plain PyTorch against ours, taking turns in one run.

`python studies/gpu.py --out FILE.json` on a machine with an NVIDIA GPU. Plain PyTorch is what
its tutorials show: a `DataLoader` over tensors in the host's memory, shuffled, one batch after the
other sent to the GPU, every kernel started from Python. Ours is `manyhands train --device cuda`,
in a process of its own, its training seconds as its record has them. Both train the same model with
the same optimizer for as many epochs, and are judged on the test set.
"""

from __future__ import annotations

import argparse
import json
import shlex
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch.utils.data import DataLoader, TensorDataset

from manyhands.data import Stored, store
from manyhands.launch.machine import machine
from manyhands.model.zoo import cnn

LR, MOMENTUM = 0.05, 0.9
PRIVATE = "--private --epsilon 3 --clip 0.1 --lr 0.5 --model tanh-cnn --batch-size 512 --epochs 40"


def plain(data: Stored, epochs: int, batch_size: int, schedule: str, seed: int) -> dict[str, float]:
    """Train as PyTorch's tutorials do; returns seconds and accuracy."""
    x, y = data.train.batch(torch.arange(len(data.train)))
    loader = DataLoader(TensorDataset(x, y), batch_size=batch_size, shuffle=True, pin_memory=True)
    torch.manual_seed(seed)
    model = cnn().cuda()
    optimizer = torch.optim.SGD(model.parameters(), lr=LR, momentum=MOMENTUM)
    steps = epochs * len(loader)
    falls = [steps // 2, 3 * steps // 4] if schedule == "step" else []
    rate = torch.optim.lr_scheduler.MultiStepLR(optimizer, falls)
    model(x[:batch_size].cuda()).sum().backward()  # what is loaded once is nobody's training
    torch.cuda.synchronize()
    begin = time.perf_counter()
    for _ in range(epochs):
        for bx, by in loader:
            optimizer.zero_grad()
            F.nll_loss(model(bx.cuda()), by.cuda()).backward()
            optimizer.step()
            rate.step()
    torch.cuda.synchronize()
    seconds = time.perf_counter() - begin
    assert data.test is not None
    model.eval()
    tx, ty = data.test.batch(torch.arange(len(data.test)))
    with torch.inference_mode():
        accuracy = float((model(tx.cuda()).argmax(1) == ty.cuda()).float().mean())
    return {"seconds": seconds, "accuracy": accuracy}


def ours(folder: Path, name: str, words: str) -> dict[str, Any]:
    """Train with the command; returns seconds, accuracy and the run's record."""
    line = [sys.executable, "-m", "manyhands", "train", "--strategy", "sequential"]
    line += ["--device", "cuda", *words.split(), "--output", name]
    subprocess.run(line, check=True, stdout=subprocess.DEVNULL, cwd=folder)
    record = json.loads((folder / name / "run.json").read_text())
    result = record["result"]
    return {"seconds": result["seconds"], "accuracy": result["accuracy"], "record": record}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--epochs", type=int, default=10)
    parser.add_argument("--batch-size", type=int, default=128)
    parser.add_argument("--schedule", choices=("constant", "step"), default="constant")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--private", action="store_true", help="also one private run")
    parser.add_argument("--out", type=Path, required=True)
    options = parser.parse_args()
    if not torch.cuda.is_available():
        raise SystemExit("there is no NVIDIA GPU here")
    folder = Path(tempfile.mkdtemp(prefix="manyhands-"))
    data = Stored.open(store("mnist", folder / "data"))
    given = (options.epochs, options.batch_size, options.schedule)
    words = "--epochs {} --batch-size {} --schedule {}".format(*given)
    words += f" --lr {LR} --momentum {MOMENTUM}"
    rows: dict[str, list[dict[str, Any]]] = {"plain": [], "ours": []}
    for seed in range(options.rounds):
        rows["plain"].append(plain(data, *given, seed))
        rows["ours"].append(ours(folder, f"run-{seed}", f"{words} --seed {seed}"))
        for name, found in rows.items():
            print(f"{name}: {found[-1]['seconds']:.2f} s, {100 * found[-1]['accuracy']:.2f} %")
    if options.private:
        rows["ours, private"] = [ours(folder, "private", PRIVATE)]
    result = {
        "gpu": torch.cuda.get_device_name(),
        "machine": machine(mpi=False),
        "command": "python studies/gpu.py " + shlex.join(sys.argv[1:]),
        "epochs": options.epochs,
        "batch_size": options.batch_size,
        "runs": rows,
        "median_seconds": {n: statistics.median(r["seconds"] for r in f) for n, f in rows.items()},
        "least_accuracy": {n: min(r["accuracy"] for r in f) for n, f in rows.items()},
    }
    options.out.write_text(json.dumps(result, indent=1) + "\n")
    print(json.dumps({k: result[k] for k in ("gpu", "median_seconds", "least_accuracy")}, indent=1))


if __name__ == "__main__":
    main()
