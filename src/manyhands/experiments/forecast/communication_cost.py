"""Seconds of communication: all-reduces, exchanges with neighbours, agreements.

On the host that was measured, an all-reduce costs what it cost there; between hosts it costs what
`manyhands.allreduce.cost` says it sends, on the network that is given:

    T = steps · L + messages · l + bytes / B + bytes to add · a

L, B: the network's latency and bandwidth; l: what starting a message costs a host; a: seconds to
add a byte.
"""

from __future__ import annotations

import math

from manyhands.allreduce.choose import choose
from manyhands.allreduce.cost import cost
from manyhands.comm.compression import compressed_cost
from manyhands.errors import ConfigError
from manyhands.experiments.forecast.calibration import Calibration, Group, interpolate
from manyhands.experiments.forecast.network import Network
from manyhands.experiments.forecast.placement import Growth, Placement, compute_factor
from manyhands.strategies.averaging.part_sum import codec_of

# Which part of the bytes that a process sends arrive somewhere to be added (the others are copied).
_ADDED = {
    "naive": 1.0,
    "allgather": 1.0,
    "recursive-doubling": 1.0,
    "ring": 0.5,
    "rabenseifner": 0.5,
    "hierarchical": 0.5,
}
ONE_HOST = ("shared-memory",)


def estimate_allreduce(
    known: Calibration, placement: Placement, algorithm: str
) -> tuple[float, tuple[str, ...]]:
    """Return the seconds of one all-reduce of the model's vector, and what that rests on."""
    if placement.workers == 1:
        return 0.0, ()
    if placement.network is None:
        return _interpolate_measured(known, algorithm, placement.workers, placement.growth), ()
    size, per_host = placement.workers, placement.network.per_host
    if algorithm == "auto":
        algorithm = choose(known.nbytes, size, per_host=min(per_host, size))
    if algorithm in ("mpi", *ONE_HOST) and min(per_host, size) == size:
        return _interpolate_measured(known, algorithm, size), ()
    if algorithm == "mpi":
        kinds = ("recursive-doubling", "rabenseifner")
        best = min(_estimate_messages(known, placement.network, size, kind) for kind in kinds)
        return best, ("mpi: as recursive doubling or Rabenseifner's, whichever is faster",)
    return _estimate_messages(known, placement.network, size, algorithm), ()


def _estimate_messages(known: Calibration, network: Network, size: int, algorithm: str) -> float:
    """Return the seconds of an all-reduce whose messages cross the network."""
    per_host = min(network.per_host, size)
    sent = cost(algorithm, known.parameters, size, itemsize=known.itemsize, group_size=per_host)
    group = _find_group(known, per_host)
    # On a ring only one worker of each host sends to another host; else all share the link.
    sharing = 1 if algorithm in ("ring", "allgather") else per_host
    inside = (
        _interpolate_measured(known, "shared-memory", per_host)
        if algorithm == "hierarchical"
        else 0.0
    )
    return (
        sent.steps * network.latency
        + sent.messages_each * group.latency
        + sent.bytes_each * sharing / network.bandwidth
        + sent.bytes_each * _ADDED[algorithm] * known.add_per_byte
        + inside
    )


def _interpolate_measured(
    known: Calibration, algorithm: str, size: int, growth: Growth = "usual"
) -> float:
    """Return an all-reduce's seconds on the measured host, between the sizes that were measured."""
    groups = [g for g in known.groups if algorithm in g.allreduce and g.workers > 1]
    if size == 1 or not any(g.workers > 1 for g in known.groups):
        return 0.0
    if not groups:
        raise ConfigError(f"{algorithm} was not measured by this calibration; calibrate again")
    sizes = [1.0, *(float(g.workers) for g in groups)]
    times = [0.0, *(g.allreduce[algorithm] for g in groups)]
    seconds = interpolate(size, sizes, times, beyond=False)
    return seconds * compute_factor(growth, size, sizes[-1])


def estimate_exchange(known: Calibration, placement: Placement, neighbours: int) -> float:
    """Return the seconds to swap the vector with so many neighbours, and to mix."""
    if placement.workers == 1:
        return 0.0
    group = _find_group(known, placement.here())
    mix = (neighbours + 1) * known.nbytes * known.add_per_byte
    if placement.network is None:
        crowd = max(1.0, placement.workers / known.cores)
        return crowd * (group.latency + neighbours * known.nbytes * group.per_byte + mix)
    wire = neighbours * known.nbytes * placement.network.per_host / placement.network.bandwidth
    return placement.network.latency + neighbours * group.latency + wire + mix


def part_sum_bytes(known: Calibration, workers: int, precision: str, fragments: int) -> float:
    """Return the bytes that each worker sends to sum a fragment (`averaging/part_sum.py`)."""
    import torch

    codec = codec_of(precision, torch.float64 if known.itemsize == 8 else torch.float32)
    return 2 * (workers - 1) * codec.nbytes(math.ceil(known.parameters / fragments / workers))


def estimate_part_sum(
    known: Calibration, placement: Placement, precision: str, fragments: int
) -> float:
    """Return the seconds in which a fragment of the model's vector is summed, in that precision."""
    workers, network = placement.workers, placement.network
    if workers == 1:
        return 0.0
    sent = part_sum_bytes(known, workers, precision, fragments)
    group = _find_group(known, placement.here())
    added = known.nbytes / fragments * known.add_per_byte
    started = 2 * (workers - 1) * group.latency + added
    if network is None:
        crowd = max(1.0, workers / known.cores)
        return crowd * (started + sent * group.per_byte)
    here = min(network.per_host, workers)
    leaving = (workers - here) / (workers - 1) if workers > here else 0.0
    inside = sent * (1 - leaving) * group.per_byte
    return started + inside + 2 * network.latency + sent * leaving * here / network.bandwidth


def estimate_agreement(known: Calibration, placement: Placement) -> float:
    """Return the seconds in which the workers agree whether to go on."""
    if placement.workers == 1:
        return 0.0
    if placement.network is None:
        sizes = [float(g.workers) for g in known.groups]
        agreed = [g.agree for g in known.groups]
        if placement.growth == "usual" or placement.workers <= sizes[-1]:
            return interpolate(placement.workers, sizes, agreed, beyond=True)
        return agreed[-1] * compute_factor(placement.growth, placement.workers, sizes[-1])
    return 2 * math.ceil(math.log2(placement.workers)) * placement.network.latency


def estimate_compressed(
    known: Calibration, placement: Placement, compress: str
) -> tuple[float, tuple[str, ...]]:
    """Return the seconds of one compressed sum of the model's vector, and what that rests on."""
    if compress.startswith("powersgd"):
        raise ConfigError(
            f"compress is {compress!r}, whose bytes depend on the shapes of the model's layers; a "
            "calibration holds their sizes only: predict another compression, or measure"
        )
    if placement.workers == 1:
        return 0.0, ()
    sent = compressed_cost(compress, [(known.parameters,)], placement.workers)
    notes = (
        f"compress {compress}: {sent.bytes_each:,} bytes per worker and step; without the time to "
        "compress, which is not measured",
    )
    group = _find_group(known, placement.here())
    add = known.nbytes * known.add_per_byte
    if placement.network is None:
        crowd = max(1.0, placement.workers / known.cores)
        messages = sent.messages_each * group.latency + sent.bytes_each * group.per_byte
        return crowd * (messages + add), notes
    wire = sent.bytes_each * min(placement.network.per_host, placement.workers)
    return (
        sent.steps * placement.network.latency
        + sent.messages_each * group.latency
        + wire / placement.network.bandwidth
        + add
    ), notes


def _find_group(known: Calibration, size: int) -> Group:
    return min(known.groups, key=lambda g: abs(g.workers - size))
