"""A step between hosts: ours, exact, overlapped and compressed, against DDP plain and tuned.

Run by hand: `python benchmarks/slow_network.py --hosts 2 --minutes 20 --out FILE.json`. It starts
a lab (`manyhands lab`) for every bandwidth, with one worker per host, and within it one group of
processes. All ways train the same GPT of 4.2 million parameters on the same batches, and take turns
round by round. The models are compared in a loop of the user's own: `manyhands.join` beside DDP.

With `--train-steps N` it also trains the GPT on the sources of Python's standard library, without
a lab since a loss per step does not depend on the network: the validation loss of every way of
ours, for several seeds.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import sysconfig
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import torch
import torch.nn.functional as F
from run import machine
from torch import Tensor, nn
from turns import Found, Record, in_turns, record, seconds, write

from manyhands.config.parse import parse_bandwidth
from manyhands.launch.machine import write_json
from manyhands.strategies.sync.overlapped_sum import BUCKET_BYTES, plan_buckets

OURS, ALONE, DDP = "ours", "computing alone", "DDP"
OVERLAP = f"{OURS}, overlap"
FORWARD, BOUND = "forward alone", "bound of overlap"
BUCKETS = (1, 2, 4, 8)  # megabytes; DDP's own default is 25
METHODS = ("fp16", "bf16", "int8", "topk:0.01", "powersgd:{rank}")


class Layer(nn.Module):
    """One layer of a transformer that looks back only."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.attend, self.project = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.grow, self.shrink = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        """Return x with what attention and the perceptron add to it."""
        batch, length, width = x.shape
        shape = (batch, length, self.heads, width // self.heads)
        parts = [p.view(shape).transpose(1, 2) for p in self.attend(self.norm1(x)).split(width, 2)]
        seen = F.scaled_dot_product_attention(*parts, is_causal=True)
        x = x + self.project(seen.transpose(1, 2).reshape(batch, length, width))
        return x + self.shrink(F.gelu(self.grow(self.norm2(x))))


class GPT(nn.Module):
    """A small GPT with tied embeddings: 4.2 million parameters with the defaults."""

    def __init__(
        self, tokens: int = 4096, length: int = 128, width: int = 256, layers: int = 4
    ) -> None:
        super().__init__()
        self.token, self.place = nn.Embedding(tokens, width), nn.Embedding(length, width)
        self.layers = nn.Sequential(*(Layer(width, 4) for _ in range(layers)))
        self.norm = nn.LayerNorm(width)
        for embedding in (self.token, self.place):
            nn.init.normal_(embedding.weight, std=0.02)

    def forward(self, x: Tensor) -> Tensor:
        """Return the scores of the next tokens."""
        places = torch.arange(x.shape[1])
        hidden = self.layers(self.token(x) + self.place(places))
        return self.norm(hidden) @ self.token.weight.T


def make_model(quick: bool, seed: int = 0) -> GPT:
    """Return the model; with `quick`, a tiny one."""
    torch.manual_seed(seed)
    return GPT(tokens=256, length=32, width=32, layers=1) if quick else GPT()


def loss_of(model: nn.Module, x: Tensor) -> Tensor:
    """Return the mean loss of predicting each token from those before it."""
    return F.cross_entropy(model(x[:, :-1]).flatten(0, 1), x[:, 1:].flatten())


def make_optimizer(model: nn.Module) -> torch.optim.Optimizer:
    """Return the optimizer of every way."""
    return torch.optim.AdamW(model.parameters(), lr=5e-4)


def list_methods(asked: argparse.Namespace) -> list[str]:
    """Return the compressions."""
    return [] if asked.exact else [method.format(rank=asked.rank) for method in METHODS]


def list_ours(asked: argparse.Namespace) -> dict[str, dict[str, object]]:
    """Return the options of every way of ours."""
    compressed = {f"{OURS}, {method}": {"compress": method} for method in list_methods(asked)}
    return {OURS: {}, OVERLAP: {"overlap": True}, **compressed}


def plain_step(model: nn.Module) -> Callable[[Tensor], None]:
    """Return a step of an ordinary loop, DDP's included."""
    optimizer = make_optimizer(model)

    def step(x: Tensor) -> None:
        optimizer.zero_grad()
        loss_of(model, x).backward()
        optimizer.step()

    return step


def ddp_steps(asked: argparse.Namespace) -> Iterator[tuple[str, Callable[[Tensor], None]]]:
    """Yield DDP as it comes, with smaller buckets, and with its hooks that compress."""
    import torch.distributed as dist
    from torch.distributed.algorithms.ddp_comm_hooks import default_hooks, powerSGD_hook
    from torch.nn.parallel import DistributedDataParallel

    yield DDP, plain_step(DistributedDataParallel(make_model(asked.quick)))
    for size in BUCKETS:
        model = DistributedDataParallel(make_model(asked.quick), bucket_cap_mb=size)
        yield f"{DDP}, buckets of {size} MB", plain_step(model)
    if asked.exact:
        return
    half = DistributedDataParallel(make_model(asked.quick))
    half.register_comm_hook(None, default_hooks.fp16_compress_hook)
    yield f"{DDP}, fp16 hook", plain_step(half)
    low = DistributedDataParallel(make_model(asked.quick))
    state = powerSGD_hook.PowerSGDState(
        dist.group.WORLD, matrix_approximation_rank=asked.rank, start_powerSGD_iter=2
    )
    low.register_comm_hook(state, powerSGD_hook.powerSGD_hook)
    yield f"{DDP}, PowerSGD hook", plain_step(low)


def measure(asked: argparse.Namespace) -> None:
    """Measure all ways; called in each process of a group."""
    from mpi4py import MPI

    import manyhands as mh
    from manyhands.comm.torch import make_torch_group

    comm = MPI.COMM_WORLD
    torch.set_num_threads(asked.threads)
    batch = max(1, asked.batch_size // comm.size)
    length, tokens = (32, 256) if asked.quick else (128, 4096)
    generator = torch.Generator().manual_seed(comm.rank)
    data = torch.randint(tokens, (8, batch, length), generator=generator)
    with ExitStack() as stack:
        model = make_model(asked.quick)
        steps: dict[str, Callable[[Tensor], object]] = {
            ALONE: plain_step(make_model(asked.quick)),
            FORWARD: lambda x, m=model: loss_of(m, x),  # type: ignore[misc]
        }
        for name, options in list_ours(asked).items():
            model = make_model(asked.quick)
            loop = mh.join(model, make_optimizer(model), strategy="sync", **options)
            hands = stack.enter_context(loop)
            steps[name] = lambda x, m=model, h=hands: h.step(loss_of(m, x))  # type: ignore[misc]
        make_torch_group("gloo")
        steps |= ddp_steps(asked)

        def way(step: Callable[[Tensor], object]) -> Callable[[], float]:
            return lambda: seconds(lambda i: step(data[i % 8]), asked.steps, comm.Barrier)

        ways = {name: way(step) for name, step in steps.items()}
        for _ in range(2):  # DDP makes its buckets anew after the first step; hooks begin later
            in_turns(ways, range(1))
        found: Found = {name: [] for name in ways}
        begin, rounds = time.monotonic(), 0
        while comm.bcast(_goes_on(asked, rounds, time.monotonic() - begin)):
            for name, values in in_turns(ways, range(1)).items():
                found[name].append(comm.allreduce(values[0], MPI.MAX))
            rounds += 1
    if comm.rank == 0:
        lengths = [p.numel() for p in make_model(asked.quick).parameters()]
        write(asked.out, *make_records(asked, found, lengths, comm.size))


def _goes_on(asked: argparse.Namespace, rounds: int, spent: float) -> bool:
    """Say whether another round will end in time; the first does whatever it takes."""
    return rounds < asked.rounds and (not rounds or spent + spent / rounds <= 60 * asked.minutes)


def bound(found: Found, lengths: list[int], hosts: int, bandwidth: str) -> list[float]:
    """Return by round the seconds below which no exact step with these gradients can be.

    The larger of computing + the last piece on the network, and forward + all of it. The last piece
    are the buckets that wait for the gradient that backward has last: that of a tied embedding.
    """
    each = 2 * (hosts - 1) / hosts * 32 / parse_bandwidth(bandwidth)  # seconds per number
    last = sum(
        span.stop - span.start for span in plan_buckets(lengths, BUCKET_BYTES // 4)[-1].spans
    )
    return [
        max(alone + last * each, forward + sum(lengths) * each)
        for alone, forward in zip(found[ALONE], found[FORWARD], strict=True)
    ]


def make_records(
    asked: argparse.Namespace, found: Found, lengths: list[int], hosts: int
) -> list[Record]:
    """Return a record of the exact ways, and one of the compressed, each with its bars."""
    found = {**found, BOUND: bound(found, lengths, hosts, asked.bandwidth)}
    tuned = {name: values for name, values in found.items() if name.startswith(f"{DDP}, buckets")}
    best = min(tuned, key=lambda name: sorted(tuned[name])[len(tuned[name]) // 2])
    hooks = [name for name in found if name.endswith("hook")]
    slow = asked.bandwidth != "1Gbit"
    facts = {"parameters": sum(lengths), "hosts": hosts, "bandwidth": asked.bandwidth,
             "best buckets": best, "batch_size": asked.batch_size, "rank": asked.rank,
             "all": found}  # fmt: skip
    unnamed = {name for name in found if "," not in name}
    exact = {name: found[name] for name in found if name in {OVERLAP, *unnamed, *tuned}}
    bars = {best: (1.05, False)} if slow else {DDP: (1.15, False), best: (1.05, False)}
    what = f"a step between {hosts} hosts, {asked.bandwidth}"
    bars[BOUND] = (1.1, True)
    records = [record(what, exact, unit="ms", ours=OVERLAP, bars=bars, **facts)]
    for method in list_methods(asked):
        mine = f"{OURS}, {method}"
        some = {name: found[name] for name in [mine, ALONE, OURS, DDP, *hooks]}
        limits = {hooks[0]: (1.3, False), hooks[1]: (1.1, False)}
        bars = limits if slow and method.startswith("powersgd") else {}
        records.append(
            record(
                f"{what}, {method}",
                some,
                unit="ms",
                ours=mine,
                bars=bars,
                hosts=hosts,
                bandwidth=asked.bandwidth,
            )
        )
    return records


def read_text() -> Tensor:
    """Return the sources of Python's standard library as bytes."""
    folder = Path(sysconfig.get_paths()["stdlib"])
    text = b"".join(path.read_bytes() for path in sorted(folder.glob("*.py")))
    return torch.frombuffer(bytearray(text), dtype=torch.uint8)


def train(asked: argparse.Namespace) -> None:
    """Train with every way of ours and several seeds; called in each process of a group."""
    from mpi4py import MPI

    import manyhands as mh

    comm = MPI.COMM_WORLD
    torch.set_num_threads(asked.threads)
    text, length = read_text(), 32 if asked.quick else 128
    held_out, text = text[-len(text) // 20 :], text[: -len(text) // 20]
    batch = max(1, asked.batch_size // comm.size)

    def draw(source: Tensor, generator: torch.Generator, count: int) -> Tensor:
        starts = torch.randint(len(source) - length, (count,), generator=generator)
        return torch.stack([source[s : s + length] for s in starts.tolist()]).long()

    found: Found = {}
    for name, options in list_ours(asked).items():
        losses = found.setdefault(name, [])
        for seed in range(asked.seeds):
            model = make_model(asked.quick, seed)
            generator = torch.Generator().manual_seed(1000 * seed + comm.rank)
            optimizer = make_optimizer(model)
            with mh.join(model, optimizer, strategy="sync", **options) as hands:
                for _ in range(asked.train_steps):
                    hands.step(loss_of(model, draw(text, generator, batch)))
            judge = torch.Generator().manual_seed(0)
            with torch.no_grad():
                losses.append(float(loss_of(model, draw(held_out, judge, 128))))
    if comm.rank == 0:
        what = f"validation loss after {asked.train_steps} steps, {comm.size} workers"
        write(asked.out, record(what, found, unit="nats", bars={}, ours=OURS, all=found))


def start_group(asked: argparse.Namespace, role: str, **changed: object) -> None:
    """Start the processes of one group: in the lab if we are in one."""
    from manyhands.launch.mpi import find_mpi, mpiexec_command

    line, environment = mpiexec_command(
        find_mpi(), asked.hosts, [__file__, *_again(role, **changed)]
    )
    subprocess.run(line, env=environment, check=True)


def _again(role: str, **changed: object) -> list[str]:
    """Return this command's arguments for another role."""
    given = [f"--{name.replace('_', '-')}={value}" for name, value in changed.items()]
    return [*sys.argv[1:], f"--role={role}", *given]  # the last one counts


def start_labs(asked: argparse.Namespace) -> None:
    """Measure in a lab of every bandwidth; then train, if requested."""
    records: list[Record] = []
    with tempfile.TemporaryDirectory() as folder:
        part = Path(folder) / "part.json"
        for bandwidth in asked.bandwidths.split(","):
            minutes = asked.minutes / len(asked.bandwidths.split(","))
            again = _again("lab", bandwidth=bandwidth, out=part, minutes=minutes)
            lab = ["lab", "--hosts", str(asked.hosts), "--bandwidth", bandwidth, "--"]
            line = [sys.executable, "-m", "manyhands", *lab, sys.executable, __file__, *again]
            subprocess.run(line, check=True)
            records += json.loads(part.read_text())
            _keep(asked.out, records)
        if asked.train_steps:
            start_group(asked, "train", out=part)
            records += json.loads(part.read_text())
    _keep(asked.out, records)
    for one in records:
        print(one["what"])
        for name, value in sorted(one["medians"].items(), key=lambda pair: pair[1]):
            print(f"  {value:10.4g} {one['unit']}  {name}")


def _keep(out: Path, records: list[Record]) -> None:
    """Write what was measured so far, with the machine and the command."""
    command = " ".join(["python", "benchmarks/slow_network.py", *sys.argv[1:]])
    write_json(out, {"machine": machine(), "command": command, "records": records})


def table(path: Path) -> str:
    """Return the table of all ways of each bandwidth in a file of this benchmark, as Markdown."""
    lines = [
        "| way | ms a step, median (range) | times as fast as DDP with its defaults |",
        "|---|---|---|",
    ]
    for each in json.loads(path.read_text())["records"]:
        found: Found = each.get("all", {})  # of the exact ways' record alone
        if DDP not in found:
            continue
        lines.append(f"| **{each['hosts']} hosts, {each['bandwidth']}** | | |")
        for name in sorted(found, key=lambda way: statistics.median(found[way])):
            times = [1000 * value for value in found[name]]
            ratio = statistics.median(
                theirs / own for own, theirs in zip(found[name], found[DDP], strict=True)
            )
            spread = f"{min(times):.0f}–{max(times):.0f}"
            lines.append(f"| {name} | {statistics.median(times):.0f} ({spread}) | {ratio:.2f} |")
    return "\n".join(lines)


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--hosts", type=int, default=2)
    options.add_argument("--bandwidths", default="1Gbit,200Mbit")
    options.add_argument("--batch-size", type=int, default=16, help="of all workers together")
    options.add_argument("--rank", type=int, default=4, help="of PowerSGD, ours and DDP's")
    options.add_argument("--threads", type=int, default=1, help="of each worker")
    options.add_argument("--steps", type=int, default=5, help="steps of one way in one round")
    options.add_argument("--rounds", type=int, default=15)
    options.add_argument("--minutes", type=float, default=20, help="of all rounds")
    options.add_argument("--train-steps", type=int, default=0, help="also compare losses")
    options.add_argument("--seeds", type=int, default=3)
    options.add_argument("--quick", action="store_true", help="a tiny model: only to try it")
    options.add_argument("--exact", action="store_true", help="without compression")
    options.add_argument("--out", type=Path, required=True, help="where the records go")
    options.add_argument("--role", default="labs", help=argparse.SUPPRESS)
    options.add_argument("--bandwidth", help=argparse.SUPPRESS)
    asked = options.parse_args()
    if asked.role == "lab":
        start_group(asked, "worker")
    else:
        {"labs": start_labs, "worker": measure, "train": train}[asked.role](asked)


if __name__ == "__main__":
    main()
