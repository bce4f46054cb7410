"""Data that is read when it is due: what is read, in which order, and what is refused."""

import functools
import itertools
import random

import numpy as np
import pytest
import torch
from torch.utils.data import (
    BatchSampler,
    DataLoader,
    Dataset,
    DistributedSampler,
    IterableDataset,
    SequentialSampler,
    TensorDataset,
    WeightedRandomSampler,
)

from manyhands.config.options import configure
from manyhands.data import Data, SampledPlan
from manyhands.data.datasets import load
from manyhands.data.lazy import Stream, epoch_batches, from_source, is_lazy
from manyhands.errors import ConfigError, DataError
from manyhands.training.process.data import open_data, plan_for_worker

N = 23


class Squares(Dataset):
    """Items that count how often they were read."""

    def __init__(self, length=N):
        self.length, self.reads = length, []

    def __len__(self):
        return self.length

    def __getitem__(self, i):
        self.reads.append(i)
        return torch.tensor([i, i * i], dtype=torch.float32), i % 3


class Drawn(Squares):
    """Items that draw from all three generators."""

    def __getitem__(self, i):
        return torch.rand(1) + np.random.rand() + random.random(), i % 3


class Flow(IterableDataset):
    def __init__(self, length=N):
        self.length = length

    def __iter__(self):
        items = Squares(self.length)
        return (items[i] for i in range(self.length))


def opened(folder, data, **options):
    config = configure({"batch_size": 5, "workers": 1, **options})
    return config, open_data(config, data.store(folder / "data"), data.examples)


def seen(folder, data, size, epoch=1, **options):
    """Return the examples that each worker gets in an epoch, read as it reads them."""
    config, _ = opened(folder / str(size), data, workers=size, **options)
    got = []
    for rank in range(size):
        own = open_data(config, folder / str(size) / "data", data.examples)
        plan = plan_for_worker(config, own, rank)
        ahead = own.train.ahead(plan.epoch(epoch), epoch)
        got.append([ahead.batch()[0][:, 0].int().tolist() for _ in ahead])
    return got


SOURCES = [
    lambda: Data(Squares(), lazy=True),
    lambda: Data(DataLoader(Squares(), batch_size=5, shuffle=True)),
    lambda: Data(DataLoader(Squares(), batch_size=5)),
    lambda: Data(Flow(), examples=N),
    lambda: Data(DataLoader(Flow(), batch_size=5), examples=N),
    lambda: Data(lambda: iter(Flow()), examples=N),
]


@pytest.mark.parametrize("make", SOURCES)
@pytest.mark.parametrize("strategy", ["sync", "hogwild"])
def test_many_workers_see_each_example_once_an_epoch(make, strategy, tmp_path):
    for size in (1, 2, 3):
        got = seen(tmp_path, make(), size, strategy=strategy)
        assert sorted(i for own in got for batch in own for i in batch) == list(range(N))


@pytest.mark.parametrize("make", SOURCES)
def test_an_update_has_the_same_examples_for_any_number_of_workers(make, tmp_path):
    alone = seen(tmp_path, make(), 1)[0]
    for size in (2, 3):
        steps = itertools.zip_longest(*seen(tmp_path, make(), size))
        assert [list(itertools.chain(*parts)) for parts in steps] == alone


def test_a_lazy_dataset_gives_the_batches_of_a_stored_one(tmp_path):
    config, lazy = opened(tmp_path / "a", Data(Squares(), lazy=True))
    stored = open_data(config, Data(Squares()).store(tmp_path / "b"))
    for share in plan_for_worker(config, stored, 0).epoch(2):
        for mine, its in zip(
            lazy.train.batch(share.indices), stored.train.batch(share.indices), strict=True
        ):
            assert mine.dtype == its.dtype
            assert torch.equal(mine, its)


def test_a_worker_reads_its_share_only(tmp_path):
    data = Data(Squares(), lazy=True)
    config, own = opened(tmp_path, data, workers=2)
    source = data.examples["train"].source
    source.reads.clear()
    plan = plan_for_worker(config, own, 1)
    ahead = own.train.ahead(plan.epoch(1), 1)
    expected = [i for share in ahead for i in (ahead.batch(), share.indices)[1]]
    assert source.reads == expected
    assert len(expected) < N


def test_what_an_item_draws_depends_on_seed_epoch_and_index(tmp_path):
    _, own = opened(tmp_path, Data(Drawn(), lazy=True))
    before = torch.get_rng_state()
    together = own.train.read(np.arange(6), 1)[0]
    apart = torch.cat([own.train.read(np.array([i]), 1)[0] for i in range(6)])
    assert torch.equal(together, apart)
    assert not torch.equal(together, own.train.read(np.arange(6), 2)[0])
    assert torch.equal(torch.get_rng_state(), before)


def test_a_samplers_order_is_drawn_from_the_seed(tmp_path):
    sampler = WeightedRandomSampler([1.0] * 5 + [0.0] * 18, 12)
    data = Data(DataLoader(Squares(), batch_size=5, sampler=sampler))
    first, again = (seen(tmp_path / str(i), data, 2, seed=3) for i in range(2))
    assert first == again
    drawn = [i for own in first for batch in own for i in batch]
    assert len(drawn) == 12
    assert max(drawn) < 5
    assert first != seen(tmp_path / "other", data, 2, seed=4)
    assert first != seen(tmp_path / "next", data, 2, seed=3, epoch=2)


def test_a_batch_sampler_makes_the_updates(tmp_path):
    batches = BatchSampler(SequentialSampler(range(N)), 4, drop_last=True)
    data = Data(DataLoader(Squares(), batch_sampler=batches))
    assert seen(tmp_path, data, 2)[0] == [[i, i + 1] for i in range(0, 20, 4)]


def test_drop_last_is_obeyed(tmp_path):
    data = Data(DataLoader(Squares(), batch_size=5, shuffle=True, drop_last=True))
    assert list(map(len, seen(tmp_path, data, 1)[0])) == [5] * 4


def padded(items):
    longest = max(len(x) for x, _ in items)
    x = torch.stack([torch.nn.functional.pad(x, (0, longest - len(x))) for x, _ in items])
    return {"ids": x, "labels": torch.tensor([y for _, y in items])}


def test_examples_of_different_lengths_are_collated(tmp_path):
    items = [(torch.ones(1 + i % 4), i % 2) for i in range(12)]
    _, own = opened(tmp_path, Data(items, collate_fn=padded))
    for rows, width in ((np.array([0, 4]), 1), (np.array([0, 3]), 4)):
        x, y = own.train.batch(rows)
        assert y is x
        assert x["ids"].shape == (2, width)
        assert float(x["ids"].sum()) == sum(1 + i % 4 for i in rows)


@pytest.mark.parametrize("processes", [0, 2])
def test_the_loaders_own_processes_read_the_same(processes, tmp_path):
    data = Data(DataLoader(Drawn(), batch_size=5, shuffle=True, num_workers=processes))
    config, own = opened(tmp_path, data)
    plan = plan_for_worker(config, own, 0)
    ahead = own.train.ahead(plan.epoch(1), 1)
    for share in ahead:
        assert torch.equal(ahead.batch()[0], own.train.read(share.indices, 1)[0])


def test_a_stream_is_read_forwards_and_begins_again_each_epoch():
    stream = Stream(from_source(Flow(), "data", length=N), seed=0)
    assert stream.read([1, 2], 1, keep=True)[0][:, 0].tolist() == [1, 2]  # for a trial
    for epoch in (1, 2):
        for positions in ([1, 2], [5], [20, 22]):
            assert stream.read(positions, epoch, keep=False)[0][:, 0].tolist() == positions


class Shuffled(Flow):
    """A stream that draws its order while it is opened."""

    def __iter__(self):
        items = Squares(self.length)
        return iter([items[int(i)] for i in torch.randperm(self.length)])


def test_the_order_that_a_stream_draws_at_its_start_is_the_same_on_every_worker(tmp_path):
    orders = []
    for epoch in (1, 2):
        shares = seen(tmp_path / str(epoch), Data(Shuffled(), examples=N), 2, epoch)
        torch.rand(3)  # each process has drawn something else before
        assert sorted(itertools.chain(*itertools.chain(*shares))) == list(range(N))
        orders.append(shares)
    assert orders[0] != orders[1]
    assert seen(tmp_path / "again", Data(Shuffled(), examples=N), 2, 1) == orders[0]


class Epochs(Flow):
    def __len__(self):
        return self.length

    def set_epoch(self, epoch):
        self.epoch = epoch


def test_a_stream_may_be_the_test_set(tmp_path):
    test = Epochs(7)
    _, own = opened(tmp_path, Data(Flow(), test, examples=N))
    for _ in range(2):
        batches = [x[:, 0].int().tolist() for x, _ in own.test.slices(0, 7, 4)]
        assert batches == [[0, 1, 2, 3], [4, 5, 6]]
        assert test.epoch == 0


def test_the_loaders_own_processes_leave_the_models_random_numbers_alone(tmp_path):
    data = Data(DataLoader(Squares(), batch_size=5, shuffle=True, num_workers=1))
    config, own = opened(tmp_path, data)
    plan = plan_for_worker(config, own, 0)
    before = torch.get_rng_state()
    assert len(list(own.train.ahead(plan.epoch(1), 1))) == 5
    assert torch.equal(torch.get_rng_state(), before)


def test_a_package_named_datasets_of_the_users_is_none_of_hugging_face():
    kind = type("Own", (Squares,), {"__module__": "datasets.mine"})
    assert not is_lazy(kind())


def dict_of(kind, **parts):
    """Return a dictionary of data sets that seems to be Hugging Face's."""
    return type(kind, (dict,), {"__module__": "datasets.dataset_dict"})(parts)


def dataset_of(length):
    return type("Dataset", (Squares,), {"__module__": "datasets.arrow_dataset"})(length)


@pytest.mark.parametrize("kind", ["DatasetDict", "IterableDatasetDict"])
def test_a_dictionary_of_hugging_face_gives_all_its_parts(kind):
    parts = {"train": dataset_of(9), "validation": dataset_of(4), "test": dataset_of(5)}
    for names in (parts, ["train", "validation"], ["train", "test"], ["train"]):
        data = load(dict_of(kind, **{name: parts[name] for name in names}, other=Squares(3)))
        assert {name: each.length for name, each in data.examples.items()} == {
            name: len(parts[name]) for name in names
        }


def test_all_three_parts_are_read_when_due(tmp_path):
    parts = Squares(N), Squares(8), Squares(6)
    _, own = opened(tmp_path, Data(parts[0], parts[2], validation=parts[1], lazy=True))
    assert all(set(part.reads) == {0} for part in parts)  # the first example, for its form
    for split, length in ((own.train, N), (own.validation, 8), (own.test, 6)):
        rows = [row for x, _ in split.slices(0, length, 5) for row in x[:, 0].int().tolist()]
        assert rows == list(range(len(split))) == list(range(length))


def test_a_part_that_is_held_out_is_of_the_training_set(tmp_path):
    _, own = opened(tmp_path, Data(Squares(20), Squares(6), lazy=True), validation=0.25)
    parts = [
        split.read(np.arange(len(split)), 1)[0][:, 0].int().tolist()
        for split in (own.train, own.validation)
    ]
    assert [len(part) for part in parts] == [15, 5]
    assert sorted(itertools.chain(*parts)) == list(range(20))


def test_whatever_can_be_called_for_an_iterator_is_a_stream():
    whole = functools.partial(iter, [(torch.ones(2), 0)] * 3)
    assert Data(whole, examples=3).examples["train"].sample[0].shape == (1, 2)


def test_a_stream_that_ends_early_is_named():
    stream = Stream(from_source(Flow(7), "data: train", length=10), seed=0)
    with pytest.raises(DataError, match=r"train ended after 7 examples in epoch 1, .* given as 10"):
        stream.read([8], 1, keep=False)


class Fifty(IterableDataset):
    def __iter__(self):
        return iter([("a text", 1)] * 50)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Data(iter([1, 2])), "list_iterator, which can be read once .* give the function"),
        (lambda: Data(i for i in range(5)), "a generator, which can be read once"),
        (lambda: Data(Flow()), "a Flow without a length; give examples"),
        (lambda: Data(Squares(), lazy=True, examples=9), "examples is 9, but .* has a length"),
        (lambda: Data(Fifty(), examples=50), r"x is <U6; expected numbers: leave texts"),
        (lambda: Data(DataLoader(Squares(), batch_size=None)), "batch_size=None, whose dataset"),
        (lambda: Data(DataLoader(Flow(), num_workers=1), examples=N), "leave num_workers out"),
        (
            lambda: Data(DataLoader(Flow(), worker_init_fn=print), examples=N),
            "leave worker_init_fn out",
        ),
        (lambda: Data(Flow(), examples=0), "examples is 0; expected the number of examples"),
        (lambda: Data(Flow(), examples=2.5), "examples is 2.5; expected the number"),
        (lambda: Data(Flow(), lambda: iter(Flow()), examples=N), "test is a function without a"),
        (
            lambda: Data((torch.ones(4, 2), torch.ones(4)), DataLoader(Squares())),
            "test is a DataLoader, which is read when .* give its Dataset or arrays",
        ),
        (
            lambda: Data(
                DataLoader(Squares(), sampler=DistributedSampler(Squares(), num_replicas=2, rank=0))
            ),
            "DistributedSampler, which divides the data itself",
        ),
        (lambda: Data(DataLoader(Squares()), collate_fn=padded), "a DataLoader with its own"),
        (lambda: Data(Squares(0), lazy=True), "train is empty"),
        (lambda: Data(Squares(), lazy=True, ids=range(N)), "ids is given"),
        (lambda: Data([(1.0, 0)] * 4, collate_fn=lambda _: "x"), "collate_fn gave a str"),
        (lambda: Data([(1.0, 0)] * 4, collate_fn=lambda _: torch.ones(3)), "3,.* for 1 examples"),
        (
            lambda: Data(Squares(), TensorDataset(torch.ones(4, 2)), lazy=True),
            "different forms: data: test is array, without targets",
        ),
        (
            lambda: Data(Squares(), validation=TensorDataset(torch.ones(4, 2)), lazy=True),
            "different forms: data: validation is array, without targets",
        ),
        (
            lambda: Data(Squares(), validation=lambda: iter(Flow()), lazy=True),
            "validation is a fun",
        ),
        (
            lambda: Data(dict_of("DatasetDict", train=Squares(), test=Squares()), Squares()),
            "test is given, but the DatasetDict has one; leave it out",
        ),
        (
            lambda: Data(dict_of("DatasetDict", test=Squares(), unsupervised=Squares())),
            "data has test, unsupervised; expected a part called train",
        ),
    ],
)
def test_what_cannot_be_read_by_many_workers_is_refused(make, message):
    with pytest.raises((ConfigError, DataError), match=message):
        make()


@pytest.mark.parametrize(("drawn", "what"), [([], "nothing"), (["a", "b"], "np.str_\\('a'\\)")])
def test_a_sampler_that_gives_no_indices_is_named(drawn, what):
    loader = DataLoader(Squares(), sampler=drawn, batch_size=2)
    examples = from_source(loader, "data: train")
    message = f"data: train: the sampler, a list, gave {what}; expected indices from 0 to 22"
    with pytest.raises(DataError, match=message):
        epoch_batches(examples, 2, seed=0, epoch=1)


def test_an_epoch_of_too_few_batches_is_refused():
    examples = from_source(Flow(), "data", length=N)
    with pytest.raises(ConfigError, match="6 workers for 5 batches of an epoch"):
        SampledPlan(
            draw=lambda epoch: epoch_batches(examples, 5, 0, epoch),
            rank=0, size=6, whole_batches=True,
        )  # fmt: skip
