"""The forms of a batch: one tensor, a tuple of tensors, or a mapping of them.

Features and targets each have such a form. A model is called with one tensor as `model(x)`, with a
tuple as `model(*x)`, with a dictionary or another mapping as `model(**x)`. Data without targets has
its features as targets: they are the same object.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias

Tree: TypeAlias = Any
"""One array or tensor, a tuple of them, or a mapping of them by name."""

Form: TypeAlias = int | list[str] | None
"""None for one tensor, the length of a tuple, the names of a dictionary."""

_MANY = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)


def map_tensors(function: Callable[[Any], Any], tree: Tree) -> Tree:
    """Apply `function` to every tensor; a mapping becomes a dictionary.

    >>> map_tensors(len, ("a", "bcd")), map_tensors(len, {"k": "ab"}), map_tensors(len, "a")
    ((1, 3), {'k': 2}, 1)
    """
    if isinstance(tree, Mapping):
        return {name: function(leaf) for name, leaf in tree.items()}
    return tuple(map(function, tree)) if isinstance(tree, tuple) else function(tree)


def leaves(tree: Tree) -> list[Any]:
    """Return the tensors, in order."""
    if isinstance(tree, Mapping):
        return list(tree.values())
    return list(tree) if isinstance(tree, tuple) else [tree]


def form(tree: Tree) -> Form:
    """Return the form of `tree`.

    >>> form("a"), form(("a", "b")), form({"k": "a"})
    (None, 2, ['k'])
    """
    if isinstance(tree, Mapping):
        return list(tree)
    return len(tree) if isinstance(tree, tuple) else None


def unflatten(form: Form, leaves: Sequence[Any]) -> Tree:
    """Return these tensors as a tree of that form."""
    if isinstance(form, list):
        return dict(zip(form, leaves, strict=True))
    return leaves[0] if form is None else tuple(leaves)


def count_examples(tree: Tree) -> int:
    """Return the number of examples."""
    return len(leaves(tree)[0])


def take_examples(x: Tree, y: Tree, part: slice) -> tuple[Tree, Tree]:
    """Return some examples of features and targets."""
    some = map_tensors(lambda leaf: leaf[part], x)
    return some, some if y is x else map_tensors(lambda leaf: leaf[part], y)


def join_batch(x: Tree, y: Tree) -> Tree:
    """Return a batch in the user's form: features and targets, or features alone."""
    return x if y is x else (x, y)


def call_model(model: Callable[..., Any], x: Tree) -> Any:
    """Return the model's output for the features."""
    if isinstance(x, Mapping):
        return model(**x)
    return model(*x) if isinstance(x, tuple) else model(x)


def takes_model(function: Callable[..., Any]) -> bool:
    """Return whether a loss or metric is a function of (model, batch), not (output, target).

    It is where its first parameter is called `model`, or its second `batch`.

    >>> takes_model(lambda model, batch: 0), takes_model(lambda output, target: 0)
    (True, False)
    """
    try:
        names = list(inspect.signature(function).parameters)[:2]
    except (TypeError, ValueError):  # what is written in C does not tell
        return False
    return names[:1] == ["model"] or names[1:] == ["batch"]


def signature_mismatch(function: Callable[..., Any], count: int) -> str:
    """Describe the parameters of a function that `count` arguments cannot call; "" if they can.

    Returns:
        "needs (a, b)" or "takes (a)"; an empty text where it can be called so, or does not tell.

    >>> signature_mismatch(lambda a, b, c=0: 0, 1), signature_mismatch(lambda a: 0, 2)
    ('needs (a, b)', 'takes (a)')
    """
    module = hasattr(function, "forward") and not inspect.isclass(function)
    called: Any = function
    if module:  # whose __call__ takes anything
        called = called.forward
    try:
        parameters = inspect.signature(called).parameters.values()
        inspect.signature(called).bind(*range(count))
    except ValueError:  # what is written in C does not tell
        return ""
    except TypeError:
        needed = [p.name for p in parameters if p.default is p.empty and p.kind not in _MANY]
        known = needed if len(needed) > count else [p.name for p in parameters]
        return f"{'needs' if len(needed) > count else 'takes'} ({', '.join(known)})"
    return ""
