"""A model as a vector: trainable parameters and gradients are views of two flat tensors."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor, nn

from manyhands.data import batch_tree
from manyhands.errors import ConfigError
from manyhands.model import outputs
from manyhands.model.kernels.autograd import backward, gradients
from manyhands.model.layers import find_layers

if TYPE_CHECKING:
    from manyhands.data.batch_tree import Tree
    from manyhands.model.batchnorm import SharedStatistics
    from manyhands.model.dropout import Masks, Rows
    from manyhands.model.early_gradients import EarlyGradients
    from manyhands.model.metrics import Metric

_LARGE = 1 << 18  # numbers in the vector from which on passes over it cost more than calls
_BLOCK = 1 << 17  # numbers that an update finds in a core's cache again, with gradient and momentum

_NOTHING = nullcontext()

LossFunction = Callable[..., Tensor]  # of (output, target), or of (model, batch)


class Loss(NamedTuple):
    """The result of a batch: mean loss, correct predictions, examples."""

    mean: float
    correct: int
    examples: int


def _no_autograd(module: nn.Module) -> AbstractContextManager[object]:
    """Return a context without gradients; after inference mode TorchScript cannot train."""
    scripted = any(isinstance(part, torch.jit.ScriptModule) for part in module.modules())
    return torch.no_grad() if scripted else torch.inference_mode()


class Replica:
    """One copy of the model, as a flat vector with a function for its gradient.

    The module's trainable parameters are views of `params`, their gradients views of `grad`: one
    collective moves all of them. Frozen parameters stay outside; tied ones appear once.

    Attributes:
        watched: Whether somebody reads `grad` while the backward pass is still filling it.
        masks: Dropout masks for training; None where the model has no dropout.
        norms: BatchNorm layers that use all workers' examples; None where each uses its own.

    Guarantees:
        - `params` and `grad` are never copied: writing to them is writing to the module.
        - An empty batch gives a zero gradient.
    """

    watched = False
    masks: Masks | None = None
    norms: SharedStatistics | None = None

    def __init__(self, module: nn.Module, loss: LossFunction, *, classifies: bool = True) -> None:
        self.module = self.judged = module  # what is trained here; what is judged and saved
        self.loss = loss
        self.of_model = batch_tree.takes_model(loss)
        self.own_loss = loss is outputs.model_loss
        self.known_loss = outputs.is_known_loss(loss)
        self.classifies = classifies
        self.pieces = 1  # how many parts of a batch are computed one after the other
        self.autocast = False  # compute in bfloat16 what torch.autocast does
        self.prepare: Callable[[Tensor], Tensor] | None = None  # a layout for the activations
        self.activations: int | None = None  # bytes that autograd keeps of a batch, once known
        self.forward: Callable[..., Any] = module
        self.named = [(n, p) for n, p in module.named_parameters() if p.requires_grad]
        if not self.named:
            raise ConfigError("the model has no trainable parameters; expected at least one")
        dtypes = {p.dtype for _, p in self.named}
        if len(dtypes) > 1:
            raise ConfigError(
                f"the model's parameters have types {sorted(map(str, dtypes))}; expected one"
            )
        dim = sum(p.numel() for _, p in self.named)
        device = self.named[0][1].device
        self.params = torch.empty(dim, dtype=dtypes.pop(), device=device)  # (dim,)
        self.grad = torch.zeros_like(self.params)  # (dim,)
        self._attach()
        self.layers = find_layers(self.named)

    def _attach(self) -> None:
        """Make every parameter and its gradient a view of the two vectors."""
        self._grads: list[Tensor] = []
        with torch.no_grad():
            start = 0
            for _, p in self.named:
                stop = start + p.numel()
                view = self.params[start:stop].view(p.shape)
                view.copy_(p)
                p.data = view
                p.grad = self.grad[start:stop].view(p.shape)
                self._grads.append(p.grad)
                start = stop

    @property
    def dim(self) -> int:
        """The number of trainable parameters."""
        return self.params.numel()

    def gradient(
        self, x: Tree, y: Tree, weight: float = 1.0, by: EarlyGradients | None = None
    ) -> Loss:
        """Fill `grad` with the gradient of the batch's mean loss, times `weight`, maybe `by` it."""
        examples, pieces = batch_tree.count_examples(x), self.pieces
        mean, right = 0.0, 0
        at_once = pieces == 1 and not self.watched
        shared = self.norms is not None and self.norms.active
        # Workers that exchange in their backward passes need gradients of one loss, all workers'.
        early, weight = (weight, 1.0) if shared else (1.0, weight)
        filled = self.watched  # with zeros, to which backward adds
        if filled:
            self.grad.zero_()
        for i in range(pieces):
            part = slice(i * examples // pieces, (i + 1) * examples // pieces)
            count = part.stop - part.start
            if count == 0:
                if shared:
                    self._pass_none(x, y)
                continue
            some = batch_tree.take_examples(x, y, part) if pieces > 1 else (x, y)
            with self.masked(part if pieces > 1 else None):
                loss, output = self.objective(self.forward, *some)
            weighted = loss if count == examples else loss * (count / examples)
            begin = weighted if early == 1.0 else weighted * early
            if filled:
                with self.recomputing():
                    backward(begin)
            else:
                self._fill(begin, weight if at_once else 1.0, by if at_once else None)
                filled = True
            mean += weighted.item()
            right += self.correct(output, some[1])
        if not filled:
            self.grad.zero_()
        elif not at_once and weight != 1.0:
            self.grad.mul_(weight)
        return Loss(mean, right, examples)

    def _pass_none(self, x: Tree, y: Tree) -> None:
        """Take part, without examples, in the exchanges of a gradient's computation.

        An example of zeros passes through the model, and counts for nothing.
        """
        assert self.norms is not None

        def one(leaf: Tensor) -> Tensor:
            return leaf.new_zeros(1, *leaf.shape[1:])

        zeros = batch_tree.map_tensors(one, x)
        for _, p in self.named:
            p.grad = None
        with self.norms.absent():
            backward(
                self.objective(
                    self.forward, zeros, zeros if y is x else batch_tree.map_tensors(one, y)
                )[0]
            )
        for (_, p), view in zip(self.named, self._grads, strict=True):
            p.grad = view

    def _fill(self, loss: Tensor, weight: float, by: EarlyGradients | None) -> None:
        """Fill `grad` with the gradient of `loss`, times `weight`.

        Backward leaves its own tensors with parameters that have no gradient yet; with one, even of
        zeros, it would add. What it left is moved into the vector: once through the memory.
        """
        for _, p in self.named:
            p.grad = None
        with self.recomputing():
            if not by:
                backward(loss)
            else:
                by.fill(lambda: backward(loss), weight)
                for (_, p), view in zip(self.named, self._grads, strict=True):
                    p.grad = view
                return
        large = self.grad.numel() >= _LARGE
        moved: tuple[list[Tensor], list[Tensor]] = ([], [])
        for (_, p), view in zip(self.named, self._grads, strict=True):
            gradient, p.grad = p.grad, view
            if gradient is None:
                view.zero_()
            elif gradient.layout != torch.strided:
                view.copy_(gradient.to_dense())
                if large:
                    view.mul_(weight)
            elif large:
                torch.mul(gradient, weight, out=view)
            else:
                moved[0].append(view)
                moved[1].append(gradient)
        if moved[0]:
            torch._foreach_copy_(*moved)
        if not large and weight != 1.0:
            self.grad.mul_(weight)

    def write_gradient(self, x: Tree, y: Tree) -> tuple[Tensor, Tensor | None]:
        """Fill `grad` in as few kernels as possible; return mean loss and correct predictions.

        `gradient` moves them one by one; here all are written at once. Nothing waits for the
        device. The count is None where the task has no right and wrong.
        """
        with self.masked():
            loss, output = self.objective(self.forward, x, y)
        named = [p for _, p in self.named]
        with self.recomputing():
            computed = gradients(loss, torch.ones_like(loss), named, unused=True)
        pairs = zip(named, computed, strict=True)
        parts = [torch.zeros_like(p) if g is None else g for p, g in pairs]
        torch.cat([part.reshape(-1) for part in parts], out=self.grad)
        return loss.detach(), self._right(output, y) if self.classifies else None

    def masked(self, rows: Rows = None) -> AbstractContextManager[object]:
        """Let dropout use `masks` in one forward pass, of the whole batch or some of its rows."""
        return self.masks.forward(rows) if self.masks else _NOTHING

    def recomputing(self) -> AbstractContextManager[object]:
        """Use the masks of the forward pass in what its backward pass recomputes."""
        return self.masks if self.masks and self.masks.conceals else _NOTHING

    def objective(self, model: Callable[..., Any], x: Tree, y: Tree) -> tuple[Tensor, Any]:
        """Return a batch's mean loss, and the model's output where the loss needs it."""
        ready = batch_tree.map_tensors(self.prepare, x) if self.prepare else x
        with (
            torch.autocast(self.params.device.type, torch.bfloat16)
            if self.autocast
            else nullcontext()
        ):
            if self.of_model and not self.own_loss:
                return self.loss(model, ready if y is x else (ready, y)), None
            output = batch_tree.call_model(model, ready)
            if self.own_loss:
                return outputs.loss_in(output), outputs.scores(output)
            output = outputs.scores(output) if self.known_loss else output
            return self.loss(output, y), output

    def evaluate(
        self, batches: Iterable[tuple[Tree, Tree]], metrics: Sequence[Metric] = ()
    ) -> tuple[float, int]:
        """Return the summed loss and the count, in eval mode; `metrics` get every batch."""
        total, count = 0.0, 0
        for metric in metrics:
            metric.begin()
        self.judged.eval()
        with _no_autograd(self.judged):
            for x, y in batches:
                loss, output = self.objective(self.judged, x, y)
                total += loss.item() * batch_tree.count_examples(x)
                count += batch_tree.count_examples(x)
                if output is None and any(not metric.of_model for metric in metrics):
                    output = batch_tree.call_model(self.judged, x)
                target = outputs.labels(y) if self.own_loss else y
                for metric in metrics:
                    metric.add(self.judged, x, y if metric.of_model else target, output)
        self.judged.train()
        return total, count

    def correct(self, output: Any, y: Tree) -> int:
        """Return the number of correct predictions; 0 without classes."""
        if not self.classifies:
            return 0
        return int(self._right(output, y))

    def _right(self, output: Tensor, y: Tensor) -> Tensor:
        label = y.argmax(1) if y.dim() == output.dim() else y  # of soft ones the largest
        return (output.detach().argmax(1) == label).sum()

    @contextmanager
    def holding(self, params: Tensor) -> Iterator[None]:
        """Use other parameters inside, then restore the own ones."""
        if params.data_ptr() == self.params.data_ptr():
            yield
            return
        own = self.params
        self.move(params)
        try:
            yield
        finally:
            self.move(own)

    def move(self, params: Tensor) -> None:
        """Move the parameters to another vector; nothing is copied.

        Slices that were handed out before stay where they are.
        """
        start = 0
        for _, p in self.named:
            p.data = params[start : start + p.numel()].view(p.shape)
            start += p.numel()
        self.params = params

    @contextmanager
    def undisturbed(self) -> Iterator[None]:
        """Restore parameters, buffers and random state after trials inside."""
        exchanging, params = self.norms.off() if self.norms else _NOTHING, self.params.clone()
        random = torch.get_rng_state()
        gpu = torch.cuda.get_rng_state(self.params.device) if self.params.is_cuda else None
        buffers = [b.clone() for b in self.module.buffers()]
        try:
            with exchanging:
                yield
        finally:
            with torch.no_grad():
                self.params.copy_(params)
                for buffer, saved in zip(self.module.buffers(), buffers, strict=True):
                    buffer.copy_(saved)
            self.grad.zero_()
            for (_, p), view in zip(self.named, self._grads, strict=True):
                p.grad = view  # a backward pass that failed has left it without
            torch.set_rng_state(random)
            if gpu is not None:
                torch.cuda.set_rng_state(gpu, self.params.device)

    def kept(self, compute: Callable[[Tree], Any], x: Tree) -> tuple[int, Any]:
        """Return the bytes that autograd keeps between the two passes, and the output.

        Args:
            compute: The forward pass.
            x: A batch.
        """
        kept: dict[int, int] = {}
        mine = {p.data_ptr() for _, p in self.named}

        def pack(tensor: Tensor) -> Tensor:
            if tensor.data_ptr() not in mine:
                kept[tensor.untyped_storage().data_ptr()] = tensor.untyped_storage().nbytes()
            return tensor.detach()  # a layer's own output would hold the layer for good

        with self.undisturbed(), torch.autograd.graph.saved_tensors_hooks(pack, lambda t: t):
            output = compute(x)
        return sum(kept.values()), output

    def segments(
        self, x: Tree, y: Tree, decays: Callable[[str], bool] = lambda name: True
    ) -> tuple[list[nn.Parameter], list[nn.Parameter]]:
        """Return the vector's slices with weight decay, and those without.

        A parameter that no loss reaches has no gradient in plain PyTorch, so weight decay passes it
        by; in one vector it would have a gradient of zero, and decay. `decays` says of a
        parameter's name whether it is to decay.
        """
        names = [name for name, _ in self.named]
        pairs = zip(names, self.reached(x, y), strict=True)
        reached = [used and decays(name) for name, used in pairs]
        used: list[nn.Parameter] = []
        unused: list[nn.Parameter] = []
        start = first = 0
        for i, (_, p) in enumerate(self.named):
            start += p.numel()
            if i + 1 == len(self.named) or reached[i + 1] != reached[i]:
                (used if reached[i] else unused).extend(self.slices(first, start))
                first = start
        return used, unused

    def reached(self, x: Tree, y: Tree) -> list[bool]:
        """Return for each trainable parameter whether the loss of one batch depends on it."""
        with self.undisturbed():
            for _, p in self.named:
                p.grad = None
            self.objective(self.module, x, y)[0].backward()  # type: ignore[no-untyped-call]
            reached = [p.grad is not None for _, p in self.named]
            self._attach()
        return reached

    def slices(self, start: int, stop: int) -> list[nn.Parameter]:
        """Return a part of the vector as parameters for an optimizer, at least one.

        An optimizer goes over each of them several times: on a CPU they are cut so that all but the
        first time it finds them in the cache. It works number by number: the bits stay the same.
        """
        width = max(1, stop - start) if self.params.is_cuda else _BLOCK
        starts = range(start, max(stop, start + 1), width)
        return [self.slice(first, min(first + width, stop)) for first in starts]

    def slice(self, start: int, stop: int) -> nn.Parameter:
        """Return a slice of the vector as a parameter for an optimizer, gradient included.

        Nothing is ever computed with it, so autograd need not be told to look away meanwhile.
        """
        part = nn.Parameter(self.params[start:stop], requires_grad=False)
        part.grad = self.grad[start:stop]
        return part

    def shared_buffers(self) -> list[tuple[Tensor, bool]]:
        """Return the buffers to average (BatchNorm's statistics …), and whether they are ours."""
        return [(b, True) for b in self.module.buffers() if b.is_floating_point()]
