"""Train from a DataLoader with a `collate_fn` and worker processes of its own.

`python examples/integrations/dataloader_workers.py`. Each worker of manyhands asks the loader only
for its share of every batch; the loader's two processes per worker read ahead and pad.
"""

import torch
from torch import nn
from torch.nn.utils.rnn import pad_sequence
from torch.utils.data import DataLoader, Dataset

import manyhands as mh


class Sentences(Dataset):
    """Sentences of different lengths; the label says which of two words comes more often."""

    def __init__(self, count, seed):
        self.count, self.seed = count, seed

    def __len__(self):
        return self.count

    def __getitem__(self, index):
        random = torch.Generator().manual_seed(self.seed * self.count + index)
        length = int(torch.randint(5, 20, (), generator=random))
        words = torch.randint(1, 4, (length,), generator=random)
        return words, int((words == 1).sum() > (words == 2).sum())


def pad(examples):
    """Make a batch: word ids, padded with zeros, and labels."""
    words, labels = zip(*examples, strict=True)
    return pad_sequence(words, batch_first=True), torch.tensor(labels)


class CountWords(nn.Module):
    """Sums a learned vector per word; padding has none."""

    def __init__(self):
        super().__init__()
        self.words = nn.Embedding(4, 8, padding_idx=0)
        self.scores = nn.Linear(8, 2)

    def forward(self, words):
        return self.scores(self.words(words).sum(1))


def loader(count, seed):
    return DataLoader(
        Sentences(count, seed), batch_size=32, shuffle=True, collate_fn=pad, num_workers=2
    )


def main():
    result = mh.fit(
        CountWords,
        mh.Data(loader(600, seed=1), test=loader(200, seed=2), classes=2),
        loss="cross-entropy",
        metric="accuracy",
        workers=2,
        epochs=6,
        optimizer="adam",
        lr=0.02,
    )
    print(f"test accuracy {result.accuracy:.3f}")
    return result


if __name__ == "__main__":
    main()
