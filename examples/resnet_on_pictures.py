"""A ResNet on pictures of CIFAR's shape, with any strategy.

The pictures are drawn here, so that nothing has to be downloaded: stripes of five directions and
two widths, in random colours, under noise. Ten classes, 3 × 32 × 32 bytes, as in CIFAR-10.

    python examples/resnet_on_pictures.py --quick
    python examples/resnet_on_pictures.py --strategy averaging --workers 4
"""

import argparse

import numpy as np
from torch import nn

import manyhands as mh


class Block(nn.Module):
    """Two convolutions and a way around them (He et al. 2016)."""

    def __init__(self, inputs, outputs, stride):
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(inputs, outputs, 3, stride, padding=1, bias=False),
            nn.BatchNorm2d(outputs),
            nn.ReLU(),
            nn.Conv2d(outputs, outputs, 3, padding=1, bias=False),
            nn.BatchNorm2d(outputs),
        )
        self.around = nn.Identity()
        if (inputs, stride) != (outputs, 1):
            self.around = nn.Conv2d(inputs, outputs, 1, stride, bias=False)
        self.relu = nn.ReLU()

    def forward(self, x):
        return self.relu(self.body(x) + self.around(x))


def resnet(width, blocks):
    """Three stages of `blocks` blocks each; the picture halves and the width doubles between."""
    layers = [nn.Conv2d(3, width, 3, padding=1, bias=False), nn.BatchNorm2d(width), nn.ReLU()]
    inputs = width
    for stage in range(3):
        for block in range(blocks):
            outputs, stride = width * 2**stage, 2 if stage and not block else 1
            layers.append(Block(inputs, outputs, stride))
            inputs = outputs
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(inputs, 10))


def pictures(count, seed):
    """Return stripes as bytes, (count, 3, 32, 32), and their kinds, (count,)."""
    rng = np.random.default_rng(seed)
    kind = rng.integers(10, size=count)
    angle = np.pi * (kind % 5) / 5 + rng.normal(0, 0.06, count)
    wave = np.where(kind < 5, 4.0, 8.0) * rng.uniform(0.9, 1.1, count)
    row, column = np.mgrid[:32, :32]
    along = np.cos(angle)[:, None, None] * column + np.sin(angle)[:, None, None] * row
    phase = rng.uniform(0, 2 * np.pi, (count, 1, 1))
    stripe = np.sin(2 * np.pi * along / wave[:, None, None] + phase)  # (count, 32, 32)
    colour = rng.normal(0, 1, (count, 3, 1, 1))
    picture = 128 + 40 * colour * stripe[:, None] + rng.normal(0, 40, (count, 3, 32, 32))
    return picture.clip(0, 255).astype(np.uint8), kind.astype(np.int64)


def main(arguments=None):
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--strategy", default="sync")
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--output", help="folder for the records; by default runs/NAME-DATE-TIME")
    parser.add_argument("--quick", action="store_true", help="a size for trying it out")
    chosen = parser.parse_args(arguments)
    often = {"period": 8} if chosen.strategy == "averaging" else {}  # once at the end is too late
    train, epochs, width, blocks = (1000, 3, 8, 1) if chosen.quick else (20_000, 10, 16, 2)

    result = mh.fit(
        lambda: resnet(width, blocks),
        mh.Data(
            train=pictures(train, seed=1),
            test=pictures(train // 4, seed=2),
            normalise=(0.5, 0.2),
            name="stripes",
        ),
        strategy=chosen.strategy,
        workers=chosen.workers,
        epochs=epochs,
        batch_size=32,
        optimizer="adam",
        lr=0.01 if chosen.quick else 0.002,
        schedule="cosine",
        output=chosen.output,
        **often,
    )
    print(f"{chosen.strategy}, {chosen.workers} workers: {result.accuracy:.1%} right", end=" ")
    print(f"after {result.seconds:.1f} s of training; records in {result.output}")
    return result


if __name__ == "__main__":
    main()
