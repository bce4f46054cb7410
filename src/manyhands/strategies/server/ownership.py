"""Which part of the parameters each master owns, and an optimizer that steps that part alone."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from manyhands.strategies.linear_partition import linear_partition

if TYPE_CHECKING:
    from torch import Tensor

    from manyhands.strategies.server.state import Span
    from manyhands.worker.worker import Worker


def owned_spans(worker: Worker, masters: int) -> list[Span]:
    """Return each master's span of the vector: as first divided, or as taken over since."""
    if taken := getattr(worker.state, "spans", None):
        return list(taken)
    layers = worker.replica.layers
    parts = linear_partition([layer.stop - layer.start for layer in layers], masters)
    return [(layers[first].start, layers[last - 1].stop) for first, last in parts]


def layer_cuts(worker: Worker, span: Span) -> list[int]:
    """Return where within a span a new layer begins."""
    starts = [layer.start for layer in worker.replica.layers]
    return [start - span[0] for start in starts if span[0] < start < span[1]]


def layer_names(worker: Worker, span: Span) -> list[str]:
    """Return the names of the layers within a span."""
    return [layer.name for layer in worker.replica.layers if span[0] <= layer.start < span[1]]


def restrict_optimizer(worker: Worker, span: Span) -> None:
    """Let the optimizer step only what lies within `span` of the vector."""
    for group in worker.optimizer.param_groups:
        group["whole"] = group["params"]
        group["params"] = _within(worker, group["whole"], span)


def extend_optimizer(worker: Worker, span: Span) -> None:
    """Let the optimizer also step what lies within `span`, for which it has no state yet."""
    for group in worker.optimizer.param_groups:
        group["params"] = [*group["params"], *_within(worker, group["whole"], span)]


def _within(worker: Worker, params: list[Any], span: Span) -> list[Tensor]:
    """Return what lies within `span` of parameters that are views of the vector."""
    start, stop = span
    tensors: list[Tensor] = []
    for p in params:
        first, last = p.storage_offset(), p.storage_offset() + p.numel()
        if start <= first and last <= stop:
            tensors.append(p)
        elif first < stop and start < last:  # a part of the flat vector
            tensors.append(worker.replica.slice(max(start, first), min(stop, last)))
    return tensors
