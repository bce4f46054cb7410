"""Chooses a run's loss, metrics and target from the options and the data.

Whole numbers as targets are classes: cross-entropy and accuracy. Floats are to be met: mean squared
error. Without targets the features are to be met. Anything else is for the user to say.
"""

from __future__ import annotations

import copy
import re
import traceback
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from manyhands.data import batch_tree
from manyhands.data.batch_tree import leaves
from manyhands.errors import ConfigError, DataError
from manyhands.launch.atomic_files import PACKAGE
from manyhands.model import outputs
from manyhands.model.metrics import Metric, build, is_applicable
from manyhands.model.zoo import LOSSES, OWN_LOSS
from manyhands.worker.stopping import Aim

if TYPE_CHECKING:
    from manyhands.config.run import RunConfig
    from manyhands.data import Stored
    from manyhands.data.batch_tree import Tree
    from manyhands.model.replica import LossFunction, Replica
    from manyhands.training.job import Job, TrainingRequest

_SMALL = 5_000_000  # parameters, or numbers of a batch, with which a pass is tried beforehand
_SHAPES = re.compile(r"shape|size|dimension|channel|dtype|scalar type", re.IGNORECASE)
_MEETING = ("mse", "mae", "bce")  # losses of outputs that have the targets' shape


def make_loss(job: TrainingRequest, own: str | None, data: Stored) -> LossFunction:
    """Return the loss: the user's, the model's own, or what fits the targets."""
    if job.loss:
        return job.loss  # type: ignore[no-any-return]
    name = job.config.loss or own
    if name is None and not data.about.labelled and outputs.has_labels(data.train.x):
        return outputs.model_loss
    return LOSSES[name or _default_loss(data)]


def planned_loss(asked: TrainingRequest, data: Stored) -> LossFunction:
    """Return the loss that the workers will use, as far as known before they start."""
    own = OWN_LOSS[asked.model] if isinstance(asked.model, str) and data.classes else None
    return make_loss(asked, own, data)


def loss_name(loss: Any) -> str:
    """Return the name of a loss: the option's for bundled losses, else its own.

    >>> loss_name(LOSSES["nll"]), loss_name(torch.nn.L1Loss())
    ('nll', 'L1Loss')
    """
    known = [name for name, function in LOSSES.items() if function is loss]
    return known[0] if known else str(getattr(loss, "__name__", type(loss).__name__))


def _default_loss(data: Stored) -> str:
    if data.classes:
        return "cross-entropy"
    target = data.train.y
    if data.about.lazy and isinstance(target, Tensor) and not target.is_floating_point():
        return "cross-entropy"
    images = not data.about.labelled and getattr(target, "dtype", None) == torch.uint8
    if not isinstance(target, Tensor) or not (target.is_floating_point() or images):
        raise ConfigError(
            "no loss is given, and there is no one target of classes or floats to choose it by; "
            "expected loss, a function of (output, target) or of (model, batch)"
        )
    return "mse"


def make_metrics(
    job: Job, replica: Replica, data: Stored, batch: tuple[Tree, Tree]
) -> tuple[Metric, ...]:
    """Return the metrics of a run, tried on a batch.

    Raises:
        ConfigError: If the loss is no number, or a metric makes no sense for model and data.
    """
    x, y = batch
    with replica.undisturbed():
        replica.module.eval()
        try:
            value, output = replica.objective(replica.module, x, y)
            if output is None and not all(map(_takes_model, job.metrics)):
                output = batch_tree.call_model(replica.module, x)
        except (RuntimeError, TypeError, ValueError, IndexError) as error:
            if not _raised_by_torch(error):
                raise  # the user's own, with its traceback
            _explain_output(replica, x, data)
            raise ConfigError(
                _first_batch_error(error, batch, data.classes, replica.loss)
            ) from error
        replica.module.train()
    if not replica.of_model:
        check_output(output, x, replica.loss, data)
    _check_loss_value(replica.loss, value, output, y)
    metrics, classes = job.metrics, data.classes
    if replica.own_loss or data.about.lazy:
        y = outputs.labels(y) if replica.own_loss else y
        classes = classes or _count_scores(output, y)
    if not metrics and (replica.own_loss or not replica.of_model):
        metrics = _default_metrics(replica.loss, output, y, classes)
    built = tuple(build(each, output, y, classes) for each in metrics)
    labelled = data.train.labelled and not replica.of_model
    replica.classifies = labelled and any(metric.name == "accuracy" for metric in built)
    return built


def try_shapes(
    module: nn.Module, data: Stored, rows: int, asked: TrainingRequest | None = None
) -> None:
    """Refuse a model that cannot take the data's shape, where that is cheap to try.

    It sees `rows` examples of zeros and never a record, in a copy, without its randomness. Only
    what PyTorch says of shapes and types counts: zeros may be refused for what they are. Where
    `asked` is given, the loss and the named metrics are tried on the outputs.

    Raises:
        ConfigError: If a layer or the loss cannot take what reaches it.
    """
    batch = data.zeros(rows)
    try:
        if not _is_cheap_to_try(module, batch[0]):
            return
        with torch.no_grad(), torch.random.fork_rng([]):
            output = batch_tree.call_model(
                copy.deepcopy(module).to(data.train.dtype).eval(), batch[0]
            )
    except RuntimeError as error:
        if _raised_by_torch(error) and _SHAPES.search(str(error)):
            raise ConfigError(_first_batch_error(error, batch, data.classes)) from error
        return
    except Exception:  # the workers will tell, if it is not the zeros' fault
        return
    if asked is not None:
        _try_loss(asked, data, output, batch)


def check_output(output: Any, x: Tree, loss: LossFunction, data: Stored) -> None:
    """Refuse outputs that a PyTorch loss cannot take: several tensors, or too few scores.

    Raises:
        ConfigError: With what to return instead.
        DataError: With the first row whose label has no score.
    """
    if not outputs.is_known_loss(loss):
        return  # the user's own knows what to do with it
    output = outputs.scores(output)
    if not isinstance(output, Tensor):
        raise ConfigError(_several_outputs_hint(output, x, loss))
    kinds = (nn.CrossEntropyLoss, nn.NLLLoss)
    scoring = isinstance(loss, kinds) or loss in (LOSSES["cross-entropy"], LOSSES["nll"])
    if scoring and data.classes and output.dim() > 1:
        _check_labels(output.shape[1], data, getattr(loss, "ignore_index", -100))


def _count_scores(output: Any, y: Tree) -> int | None:
    """Return the number of classes that a model gives scores for, if its labels are classes."""
    if not isinstance(output, Tensor) or not isinstance(y, Tensor) or y.is_floating_point():
        return None
    return output.shape[1] if output.dim() == y.dim() + 1 else None


def _several_outputs_hint(output: Any, x: Tree, loss: LossFunction) -> str:
    """Return advice for a model with several outputs, none of them called `logits`."""
    kind, call = type(output).__name__, "x"
    if batch_tree.form(x) is not None:
        call = "**x" if isinstance(x, dict) else "*x"
    named = ", ".join(map(str, output)) if isinstance(output, Mapping) else ""
    field = "prediction" if hasattr(output, "prediction") else ""
    one = f" (.{field})" if field else ""
    taken = f".{field}" if field else "[0]"
    return (
        f"the model returns a {kind}{f' of {named}' if named else ''}: return one tensor{one}, or "
        f"give a loss of (model, batch): def loss(model, batch): x, y = batch; return "
        f"{loss_name(loss).replace('-', '_')}(model({call}){taken}, y)"
    )


def _check_labels(scores: int, data: Stored, ignored: int) -> None:
    """Refuse a label without a score in the model's output; name its row."""
    if scores >= (data.classes or 0) or data.about.streamed or data.about.lazy:
        return
    sets = (("train", data.train), ("validation", data.validation), ("test", data.test))
    for part, split in sets:
        y = None if split is None else split.y
        outside = (y >= scores) & (y != ignored) if isinstance(y, Tensor) else None
        if y is None or outside is None or not outside.any():
            continue
        row = int(outside.reshape(len(y), -1).any(1).int().argmax())
        label, most = int(y[row][outside[row]].flatten()[0]), int(y.max())
        from_one = ", unless classes are counted from 1: then subtract it, here they begin at 0"
        raise DataError(
            f"{data.name}: {part}: row {data.original_row(part, row)} has label {label}, but the "
            f"model gives {scores} scores; labels go up to {most}, so the model must give "
            f"{most + 1} scores{from_one if int(y.min()) == 1 else ''}"
        )


def _explain_output(replica: Replica, x: Tree, data: Stored) -> None:
    """Explain a failed first batch by the model's output, where it tells."""
    if replica.of_model:
        return
    try:
        output = batch_tree.call_model(replica.module, x)
    except Exception:  # that was the failure
        return
    check_output(output, x, replica.loss, data)


def _try_loss(asked: TrainingRequest, data: Stored, output: Any, batch: tuple[Tree, Tree]) -> None:
    """Refuse a loss, metrics and a target that do not fit outputs for zeros."""
    chosen = planned_loss(asked, data)
    if not outputs.is_known_loss(chosen):
        return  # the user's own code runs in the workers, whose crash ends no notebook
    check_output(output, batch[0], chosen, data)
    output = outputs.scores(output)
    try:
        with torch.no_grad(), torch.random.fork_rng([]), warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of shapes, which are checked below
            value = chosen(output, batch[1])
    except (RuntimeError, ValueError) as error:
        if _SHAPES.search(str(error)):
            raise ConfigError(_first_batch_error(error, batch, data.classes, chosen)) from error
        return
    except Exception:  # likewise
        return
    _check_loss_value(chosen, value, output, batch[1])
    if all(isinstance(each, str) for each in asked.metrics):
        metrics = asked.metrics or _default_metrics(chosen, output, batch[1], data.classes)
        make_aim(
            asked.config, tuple(build(each, output, batch[1], data.classes) for each in metrics)
        )


def _is_cheap_to_try(module: nn.Module, x: Tree) -> bool:
    """Return whether passing these features through a copy of the model is fast here."""
    parameters = [*module.parameters()]
    numbers = sum(leaf.numel() for leaf in leaves(x))
    small = numbers <= _SMALL and sum(p.numel() for p in parameters) <= _SMALL
    return small and all(p.device.type == "cpu" for p in parameters)


def _takes_model(metric: Any) -> bool:
    return callable(metric) and batch_tree.takes_model(metric)


_TORCH = str(Path(torch.__file__).parent)


def _raised_by_torch(error: Exception) -> bool:
    """Return whether PyTorch itself raised the error."""
    return traceback.extract_tb(error.__traceback__)[-1].filename.startswith(_TORCH)


def _first_batch_error(
    error: Exception,
    batch: tuple[Tree, Tree],
    classes: int | None,
    loss: LossFunction | None = None,
) -> str:
    """Return the error for a failed first batch: what, where, and the batch's shapes."""
    x, y = batch
    frames = traceback.extract_tb(error.__traceback__)
    places = [f for f in frames if not f.filename.startswith((str(PACKAGE), _TORCH))]
    where = f" ({places[-1].filename}, line {places[-1].lineno})" if places else ""
    first = (str(error).splitlines() or [""])[0]
    shapes = f"features {_describe_tensors(x)}" + (
        "" if y is x else f", targets {_describe_tensors(y)}"
    )
    hint = ""
    if "out of bounds" in first and classes:
        hint = f"; there are {classes} classes, so the model must give {classes} scores"
    elif "dtype to be Long" in first:
        hint = "; classes are whole numbers: give y.long(), or astype(int)"
    elif y is not x and classes and loss in [LOSSES[name] for name in _MEETING]:
        hint = f"; the targets are classes, and loss is {loss_name(loss)!r}: give cross-entropy"
    elif y is not x and loss in [LOSSES[name] for name in _MEETING]:
        hint = "; such targets are met by outputs of their shape: give whole numbers for classes"
    elif any(not (leaf.is_floating_point() or leaf.dtype == torch.uint8) for leaf in leaves(x)):
        hint = "; whole numbers reach the model as they are, for embeddings: give floats otherwise"
    return (
        f"model and loss do not fit the data: {type(error).__name__}: {first}{where}; a worker's "
        f"part of a batch has {shapes}{hint}"
    )


def _describe_tensors(tree: Tree) -> str:
    """Return the types and shapes of a batch's tensors."""
    parts = [
        f"{str(leaf.dtype).removeprefix('torch.')} {tuple(leaf.shape)}" for leaf in leaves(tree)
    ]
    plain = batch_tree.form(tree) is None or isinstance(tree, tuple)
    names = [""] * len(parts) if plain else batch_tree.names("", tree)
    return ", ".join(f"{name} {one}".strip() for name, one in zip(names, parts, strict=True))


def _default_metrics(
    loss: LossFunction, output: Any, y: Tree, classes: int | None
) -> tuple[str, ...]:
    """Return the metrics of a run without a `metric` option; none that makes no sense."""
    name = "f1" if loss is LOSSES["bce"] else "accuracy"
    return (name,) if is_applicable(name, output, y, classes) else ()


def _check_loss_value(loss: LossFunction, value: Any, output: Any, y: Tree) -> None:
    """Refuse a loss that is not a number, or that would broadcast its arguments."""
    if not isinstance(value, Tensor) or value.dim():
        shape = f"a shape of {tuple(value.shape)}" if isinstance(value, Tensor) else repr(value)
        raise ConfigError(
            f"loss gave {shape}; expected a tensor of one number, the mean over the batch"
        )
    for name in _MEETING:
        if loss is LOSSES[name] and output.shape != y.shape:
            one = output.dim() == y.dim() + 1 and output.shape[1] == 1
            remedy = "squeeze(1) in the model, or targets[:, None]" if one else "equal shapes"
            raise ConfigError(
                f"loss is {name!r}, but the model gives {tuple(output.shape)} for targets of shape "
                f"{tuple(y.shape)}; expected {remedy}, or another loss (whole numbers are classes)"
            )


def make_aim(config: RunConfig, metrics: tuple[Metric, ...]) -> Aim:
    """Return the condition that ends the run early.

    Raises:
        ConfigError: If there is a target but nothing that could reach it.
    """
    target = config.target_accuracy if config.target is None else config.target
    first = metrics[0] if metrics else None
    option = "target" if config.target is not None else "target_accuracy"
    fits = first is not None and (option == "target" or first.name == "accuracy")
    if target is not None and not fits:
        judge = first.name if first else "its loss"
        raise ConfigError(
            f"{option} is {target}, but the model is judged by {judge}; give metric, and target"
        )
    return Aim(
        metric=first.name if first else None,
        higher=first.higher if first else True,
        chosen=config.metric is not None,
        target=target,
        reason=option,
        patience=config.patience,
    )
