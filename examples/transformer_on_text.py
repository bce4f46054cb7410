"""A small transformer learns to write Python, in a training loop of your own.

The text is the Python standard library's own sources. The loop is plain PyTorch; the two lines with
`hands` make it one of many workers. Run it alone, or with two of them:

    python examples/transformer_on_text.py --quick
    torchrun --nproc-per-node 2 examples/transformer_on_text.py --strategy gossip
    mpiexec -n 2 python examples/transformer_on_text.py --strategy averaging --period 4
"""

import argparse
import json
import os
import platform
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import nn

import manyhands as mh

LETTERS = 128  # ASCII; whatever else there is becomes a question mark
BLOCK = 64  # letters that the model sees at once


class Transformer(nn.Module):
    """Predicts each next letter from those before it."""

    def __init__(self, width, layers):
        super().__init__()
        self.letter = nn.Embedding(LETTERS, width)
        self.place = nn.Embedding(BLOCK, width)
        block = nn.TransformerEncoderLayer(
            width,
            nhead=4,
            dim_feedforward=4 * width,
            dropout=0.0,
            batch_first=True,
            norm_first=True,
        )
        self.blocks = nn.TransformerEncoder(block, layers, enable_nested_tensor=False)
        self.out = nn.Linear(width, LETTERS)
        self.register_buffer("mask", nn.Transformer.generate_square_subsequent_mask(BLOCK))

    def forward(self, letters):
        length = letters.shape[1]
        x = self.letter(letters) + self.place.weight[:length]
        return self.out(self.blocks(x, mask=self.mask[:length, :length], is_causal=True))


def library(letters):
    """Return the first so many letters of the standard library's modules, by name."""
    folder = Path(os.__file__).parent
    text = b""
    for path in sorted(folder.glob("*.py")):
        text += path.read_bytes()
        if len(text) >= letters:
            break
    return torch.tensor([c if c < LETTERS else ord("?") for c in text[:letters]])


def windows(text, starts):
    """Return the blocks that begin at `starts`, and the same one letter later."""
    places = starts[:, None] + torch.arange(BLOCK)
    return text[places], text[places + 1]


def random_batches(text, steps, size):
    for _ in range(steps):
        yield windows(text, torch.randint(len(text) - BLOCK, (size,)))


def in_order(text, size):
    for starts in torch.arange(0, len(text) - BLOCK, BLOCK).split(size):
        yield windows(text, starts)


def loss_of(model, x, y):
    return F.cross_entropy(model(x).flatten(0, 1), y.flatten())


def write(model, beginning, count):
    """Let the model go on with a text, always with its most likely next letter."""
    letters = [ord(c) for c in beginning]
    for _ in range(count):
        scores = model(torch.tensor([letters[-BLOCK:]]))
        letters.append(int(scores[0, -1].argmax()))
    return "".join(map(chr, letters))


def keep(folder, *, config, train, result):
    """Write down what was reached, in the shape of a record of `fit`."""
    machine = {"python": platform.python_version(), "torch": torch.__version__}
    data = {"name": "the standard library", "train": train}
    record = {"config": config, "data": data, "machine": machine, "result": result}
    (folder / "run.json").write_text(json.dumps(record, indent=1))


def main(arguments=None):
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--strategy", default="sync", choices=["sync", "averaging", "gossip"])
    parser.add_argument("--period", type=int, help="steps between two averagings; 8 by default")
    parser.add_argument("--output", help="folder for a record of what was reached; by default none")
    parser.add_argument("--quick", action="store_true", help="a size for trying it out")
    chosen = parser.parse_args(arguments)
    width, layers, steps, batch = (32, 1, 50, 32) if chosen.quick else (128, 4, 2000, 64)

    torch.manual_seed(0)
    text = library(200_000 if chosen.quick else 4_000_000)
    training, test = text[: -len(text) // 20], text[-len(text) // 20 :]
    model = Transformer(width, layers)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2 if chosen.quick else 1e-3)

    options = {"period": chosen.period or 8} if chosen.strategy == "averaging" else {}
    with mh.join(model, optimizer, strategy=chosen.strategy, **options) as hands:
        for x, y in hands.share(random_batches(training, steps, batch)):
            hands.step(loss_of(model, x, y), clip_norm=1.0)

        with hands.consensus(), torch.inference_mode():
            parts = [
                (float(loss_of(model, x, y)) * len(x), len(x))
                for x, y in hands.share(in_order(test, 64), evaluation=True)
            ]
            total, count = hands.sum(sum(p[0] for p in parts), sum(p[1] for p in parts))
            if hands.rank == 0:
                print(f"{chosen.strategy}, {hands.size} workers, {steps} steps: ", end="")
                print(f"test loss {total / count:.3f} nats a letter")
                print(write(model, "    def __init__(self", 60))
                if chosen.output:
                    config = {"strategy": chosen.strategy, "workers": hands.size, **options}
                    result = {"steps": steps, "loss": total / count}
                    keep(Path(chosen.output), config=config, train=len(training), result=result)
    return total / count


if __name__ == "__main__":
    main()
