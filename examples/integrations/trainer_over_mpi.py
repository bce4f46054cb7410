"""The Trainer of Hugging Face Transformers over MPI, with a tiny model of random weights.

Needs `pip install '.[integrations]'`. Run it under an mpiexec:
`mpiexec -n 2 python examples/integrations/trainer_over_mpi.py`.
"""

import tempfile

import torch
import torch.distributed as dist
from datasets import Dataset
from transformers import BertConfig, BertForSequenceClassification, Trainer, TrainingArguments

import manyhands.torch_mpi  # noqa: F401 — registers the backend

CONFIG = BertConfig(
    vocab_size=50,
    hidden_size=32,
    num_hidden_layers=1,
    num_attention_heads=2,
    intermediate_size=64,
    max_position_embeddings=16,
)


def sentences():
    """Return token ids whose label says which of two words comes more often."""
    ids = torch.randint(2, 50, (1000, 16), generator=torch.Generator().manual_seed(0))
    labels = ((ids < 26).sum(1) > 8).long()
    return Dataset.from_dict({"input_ids": ids.tolist(), "labels": labels.tolist()})


def main():
    dist.init_process_group("mpi4py")  # the Trainer takes the group that is there
    torch.manual_seed(0)
    with tempfile.TemporaryDirectory() as folder:
        trainer = Trainer(
            BertForSequenceClassification(CONFIG),
            TrainingArguments(
                folder,
                use_cpu=True,  # and no ddp_backend, whose name Accelerate would refuse
                num_train_epochs=4,
                per_device_train_batch_size=25,
                learning_rate=3e-3,
                save_strategy="no",
                report_to=[],
                disable_tqdm=True,
            ),
            train_dataset=sentences(),
        )
        loss = trainer.train().training_loss
    weights = [torch.empty(2, 32) for _ in range(dist.get_world_size())]
    dist.all_gather(weights, trainer.model.classifier.weight.detach())
    if dist.get_rank() == 0:
        same = all(torch.equal(each, weights[0]) for each in weights)
        print(
            f"{dist.get_world_size()} processes over {dist.get_backend()}, "
            f"training loss {loss:.3f}, equal weights: {same}"
        )
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
