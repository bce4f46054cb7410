"""Your own model and arrays, trained by two workers: `python examples/own_model.py`."""

import numpy as np
from torch import nn

import manyhands as mh


def model():
    """Any function that returns a module will do; every worker calls it with the same seed."""
    return nn.Sequential(nn.Linear(10, 32), nn.ReLU(), nn.Linear(32, 2))


def main():
    rng = np.random.default_rng(0)
    x = rng.normal(size=(5000, 10)).astype(np.float32)
    y = (x[:, 0] * x[:, 1] > 0).astype(np.int64)  # not linear: both must have the same sign
    data = mh.Data(train=(x[:4000], y[:4000]), test=(x[4000:], y[4000:]))

    result = mh.fit(model, data, strategy="sync", workers=2, epochs=20, batch_size=50)
    print(f"accuracy {result.accuracy:.3f} after {result.seconds:.1f} s of training")
    print(f"records and model: {result.output}")
    return result


if __name__ == "__main__":
    main()
