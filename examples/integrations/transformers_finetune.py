"""Fine-tune a Transformers model as it is: `python examples/integrations/transformers_finetune.py`.

Needs `pip install '.[integrations]'`. The model is tiny and its weights are random, so that nothing
is downloaded. With your own, write `AutoModelForSequenceClassification.from_pretrained(name)` and
the tokenizer's result.
"""

import numpy as np
from transformers import BertConfig, BertForSequenceClassification

import manyhands as mh


def sentences(count, seed):
    """Return token ids whose label says which of two words comes more often."""
    ids = np.random.default_rng(seed).integers(2, 50, (count, 16))
    ids[:, ::3] = np.random.default_rng(seed + 1).integers(5, 7, (count, 6))
    labels = ((ids == 5).sum(1) > (ids == 6).sum(1)).astype(np.int64)
    return {"input_ids": ids, "attention_mask": np.ones_like(ids), "labels": labels}


def main():
    config = BertConfig(
        vocab_size=50,
        hidden_size=32,
        num_hidden_layers=1,
        num_attention_heads=2,
        intermediate_size=64,
        max_position_embeddings=16,
    )
    result = mh.fit(
        lambda: BertForSequenceClassification(config),
        mh.Data(train=sentences(2000, seed=1), test=sentences(500, seed=3)),
        workers=2,
        epochs=4,
        batch_size=32,
        optimizer="adamw",
        lr=3e-3,
    )
    result.model.save_pretrained("tuned")
    again = BertForSequenceClassification.from_pretrained("tuned")
    weights = result.model.state_dict()
    same = all((value == weights[name]).all() for name, value in again.state_dict().items())
    print(f"test accuracy {result.accuracy:.3f}; read again from 'tuned': {same}")


if __name__ == "__main__":
    main()
