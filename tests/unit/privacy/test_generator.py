"""PyTorch's generator in a private run: a whole secret state instead of a seed of 32 bits."""

import numpy as np
import pytest
import torch
from torch import nn

from manyhands.model.replica import Replica
from manyhands.privacy import keys
from manyhands.privacy.clipping import PerExample
from manyhands.privacy.generator import seed_secretly


@pytest.fixture(autouse=True)
def _restored():
    with torch.random.fork_rng(devices=[]):
        yield


def words():
    """Return the 624 words of the generator's state."""
    return torch.get_rng_state().numpy()[24 : 24 + 8 * 624].view("<u8").astype(np.uint64)


def follows_from_32_bits(state):
    """Return whether each word is made of the one before, as every seed of 32 bits makes them."""
    before = state[:-1]
    made = np.uint64(1812433253) * (before ^ (before >> np.uint64(30)))
    made = (made + np.arange(1, 624, dtype=np.uint64)) & np.uint64(0xFFFFFFFF)
    return bool((made == state[1:]).all())


def test_the_state_does_not_follow_from_a_seed():
    torch.manual_seed(2**63 - 1)
    assert follows_from_32_bits(words())
    seed_secretly(keys.new_key())
    assert not follows_from_32_bits(words())
    assert (words() < 2**32).all()


def test_a_key_gives_one_state_and_two_keys_give_two():
    drawn = []
    for key in (keys.fixed_key(1), keys.fixed_key(1), keys.fixed_key(2)):
        seed_secretly(key)
        drawn.append(torch.rand(100))
    assert torch.equal(drawn[0], drawn[1])
    assert not torch.equal(drawn[0], drawn[2])


def test_the_words_are_the_state_of_a_mersenne_twister_and_nothing_else_is_left_over():
    """PyTorch continues from them as NumPy's Mersenne Twister does."""
    torch.randn(3)  # a normal number that is kept for the next call must not survive
    seed_secretly(keys.fixed_key(1))
    twister = np.random.MT19937()
    state = {"key": words().astype(np.uint32), "pos": 624}
    twister.state = {"bit_generator": "MT19937", "state": state}
    expected = twister.random_raw(1000)
    drawn = torch.empty(1000, dtype=torch.int64).random_(0, 2**24)
    assert np.array_equal(drawn.numpy(), expected % 2**24)


class Attending(nn.Module):
    """Its dropout has the batch in dimension 1, and attention has a dropout of its own."""

    def __init__(self):
        super().__init__()
        self.attention = nn.MultiheadAttention(4, 1, dropout=0.5, batch_first=True)
        self.drop, self.out = nn.Dropout(0.5), nn.Linear(12, 2)

    def forward(self, x):
        mixed = self.attention(x, x, x, need_weights=False)[0]
        return self.out(self.drop(mixed.transpose(0, 1)).transpose(0, 1).flatten(1))


def test_masks_that_pytorch_draws_follow_the_secret_and_not_the_seed():
    """By vmap, as private gradients of such a model are computed."""
    torch.manual_seed(0)
    replica = Replica(Attending(), nn.functional.cross_entropy)
    x, y = torch.randn(6, 3, 4), torch.zeros(6, dtype=torch.long)
    sums = []
    for key in (keys.fixed_key(1), keys.fixed_key(1), keys.fixed_key(2)):
        torch.manual_seed(7)
        seed_secretly(key)
        sums.append(torch.zeros_like(replica.params))
        PerExample(replica, chunk_mb=1).add(x, y, 1.0, sums[-1])
    assert torch.equal(sums[0], sums[1])
    assert not torch.allclose(sums[0], sums[2])
