"""Log a run to Weights & Biases, offline: options at the start, figures after each epoch.

Needs `pip install '.[wandb]'`. `wandb sync wandb/offline-run-*` uploads it. To log online, leave
`mode="offline"` out (not tested).
"""

import manyhands as mh
from manyhands.callbacks import WandB


def main(folder="."):
    keeper = WandB(project="manyhands", mode="offline", dir=str(folder))
    return mh.fit("mlp", "blobs", workers=2, epochs=3, callbacks=[keeper])


if __name__ == "__main__":
    print(main())
