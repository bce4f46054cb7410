"""Train from data sets of Hugging Face: `python examples/integrations/hugging_face_datasets.py`.

Needs `pip install '.[integrations]'`. The rows are made here, so that nothing is downloaded;
`load_dataset` returns the same types. Each worker reads the rows of its own share when they are
due.
"""

import numpy as np
import torch
from datasets import Dataset, DatasetDict
from torch import nn

import manyhands as mh

GIVEN = {"workers": 2, "batch_size": 50, "optimizer": "adam", "lr": 0.05}


class Classifier(nn.Module):
    """Takes the columns by their names, and returns its own loss, as Transformers' models do."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(6, 2)

    def forward(self, inputs, labels):
        logits = self.layer(inputs)
        return {"loss": nn.functional.cross_entropy(logits, labels), "logits": logits}


def rows(count, seed):
    """Return rows whose label is the sign of the first number."""
    inputs = np.random.default_rng(seed).normal(size=(count, 6)).astype(np.float32)
    labels = (inputs[:, 0] > 0).astype(np.int64)
    return Dataset.from_dict({"inputs": inputs.tolist(), "labels": labels.tolist()})


def resume_stream(train, test):
    """Train on a stream, stop in the second epoch and resume; say if no bit differs."""
    stream = train.to_iterable_dataset().shuffle(seed=1, buffer_size=100)
    data = mh.Data(stream, test, examples=len(train))
    whole = mh.fit(Classifier, data, epochs=2, **GIVEN)
    mh.fit(
        Classifier, data, epochs=2, max_steps=15, checkpoint_every="5steps", output="run", **GIVEN
    )
    resumed = mh.fit(Classifier, data, resume="run", max_steps=20)
    pairs = zip(whole.model.parameters(), resumed.model.parameters(), strict=True)
    return all(torch.equal(one, other) for one, other in pairs)


def main():
    parts = DatasetDict(
        train=rows(500, seed=1), validation=rows(100, seed=2), test=rows(200, seed=3)
    )
    alone = mh.fit(Classifier, parts["train"], epochs=1, **GIVEN)
    print(f"Dataset: {alone.record['result']['examples']} examples in an epoch")
    result = mh.fit(Classifier, parts, epochs=6, patience=3, **GIVEN)
    sizes = {part: result.record["data"][part] for part in parts}
    print(f"DatasetDict: {sizes}, test accuracy {result.accuracy:.3f}")
    same = resume_stream(parts["train"], parts["test"])
    print(f"stream: resumed without a difference: {same}")


if __name__ == "__main__":
    main()
