"""An autoencoder, trained without labels by any strategy.

Signals of 64 samples (a wave of random pitch, strength and phase, under noise) are squeezed through
a few numbers and made again from them. Beside it stands what a linear code of as many numbers, the
principal components, can do.

    python examples/autoencoder.py --quick
    python examples/autoencoder.py --strategy hogwild --workers 4
"""

import argparse

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn

import manyhands as mh

CODE = 4  # numbers that a signal is squeezed into


def autoencoder(width):
    return nn.Sequential(
        nn.Linear(64, width), nn.Tanh(), nn.Linear(width, CODE),
        nn.Linear(CODE, width), nn.Tanh(), nn.Linear(width, 64),
    )  # fmt: skip


def signals(count, seed):
    """Return waves as they were measured, (count, 64)."""
    rng = np.random.default_rng(seed)
    pitch, phase = rng.uniform(1, 4, (count, 1)), rng.uniform(0, 2 * np.pi, (count, 1))
    strength, time = rng.uniform(0.5, 1.5, (count, 1)), np.linspace(0, 1, 64)
    wave = strength * np.sin(2 * np.pi * pitch * time + phase)
    return (wave + rng.normal(0, 0.1, (count, 64))).astype(np.float32)


def remade(model, batch):
    """Return the mean square of what is lost on the way through the code."""
    return F.mse_loss(model(batch), batch)


def linear_code(train, test):
    """Return the same for the first principal components of the training set."""
    centre = train.mean(0)
    _, _, directions = np.linalg.svd(train - centre, full_matrices=False)
    kept = directions[:CODE]
    left = (test - centre) - (test - centre) @ kept.T @ kept
    return float((left**2).mean())


def main(arguments=None):
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--strategy", default="sync")
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--output", help="folder for the records; by default runs/NAME-DATE-TIME")
    parser.add_argument("--quick", action="store_true", help="a size for trying it out")
    chosen = parser.parse_args(arguments)
    often = {"period": 8} if chosen.strategy == "averaging" else {}  # once at the end is too late
    count, epochs, width = (4000, 8, 64) if chosen.quick else (50_000, 40, 256)

    train, test = signals(count, seed=1), signals(count // 4, seed=2)
    result = mh.fit(
        lambda: autoencoder(width),
        mh.Data(train=train, test=test, name="signals"),
        loss=remade,
        strategy=chosen.strategy,
        workers=chosen.workers,
        epochs=epochs,
        batch_size=32,
        optimizer="adam",
        lr=0.005,
        schedule="cosine",
        output=chosen.output,
        **often,
    )
    who = f"{chosen.strategy}, {chosen.workers} workers"
    print(f"{who}: {result.loss:.4f} lost through {CODE} numbers;")
    print(f"{linear_code(train, test):.4f} with principal components, 0.01 of it is noise")
    with torch.inference_mode():
        code = result.model[:3](torch.from_numpy(test[:1]))
    print("the first test signal as numbers:", [round(float(c), 2) for c in code[0]])
    return result


if __name__ == "__main__":
    main()
