"""The forms of a batch: one tensor, or tuples and mappings of such forms, nested to any depth.

Features and targets each have such a form. A model is called with one tensor as `model(x)`, with a
tuple as `model(*x)`, with a dictionary or another mapping as `model(**x)`. Data without targets has
its features as targets: they are the same object.

`torch.utils._pytree` would take lists as parts and other mappings than dictionaries as leaves, and
the launcher, which stores arrays in these forms, would have to import torch.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, TypeAlias

Tree: TypeAlias = Any
"""One array or tensor, or a tuple or a mapping of trees."""

Form: TypeAlias = Any
"""None for one tensor, the length of a tuple of tensors, the names of a dictionary of tensors.

A tuple with other parts than tensors is `{"tuple": [form, …]}`, such a dictionary
`{"dict": {name: form}}`: a form is written as JSON.
"""

_MANY = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)


def map_tensors(function: Callable[[Any], Any], tree: Tree) -> Tree:
    """Apply `function` to every tensor; a mapping becomes a dictionary.

    >>> map_tensors(len, ("a", "bcd")), map_tensors(len, {"k": ("ab", "c")}), map_tensors(len, "a")
    ((1, 3), {'k': (2, 1)}, 1)
    """
    if isinstance(tree, Mapping):
        return {name: map_tensors(function, part) for name, part in tree.items()}
    if isinstance(tree, tuple):
        return tuple(map_tensors(function, part) for part in tree)
    return function(tree)


def leaves(tree: Tree) -> list[Any]:
    """Return the tensors, in order.

    >>> leaves(("a", {"k": "b", "l": ("c", "d")}))
    ['a', 'b', 'c', 'd']
    """
    if isinstance(tree, Mapping):
        return [leaf for part in tree.values() for leaf in leaves(part)]
    return [leaf for part in tree for leaf in leaves(part)] if isinstance(tree, tuple) else [tree]


def names(name: str, tree: Tree) -> list[str]:
    """Return a name for each tensor, for messages: the path to it.

    >>> names("x", ("a", {"k": "b"})), names("y", "a")
    (['x[0]', "x[1]['k']"], ['y'])
    """
    if isinstance(tree, Mapping):
        return [one for key, part in tree.items() for one in names(f"{name}[{key!r}]", part)]
    if isinstance(tree, tuple):
        return [one for i, part in enumerate(tree) for one in names(f"{name}[{i}]", part)]
    return [name]


def form(tree: Tree) -> Form:
    """Return the form of `tree`.

    >>> form("a"), form(("a", "b")), form({"k": "a"})
    (None, 2, ['k'])
    >>> form(("a", {"k": "b"}))
    {'tuple': [None, ['k']]}
    """
    if isinstance(tree, Mapping):
        named = {name: form(part) for name, part in tree.items()}
        flat = all(part is None for part in named.values())
        return list(named) if flat else {"dict": named}
    if isinstance(tree, tuple):
        parts = [form(part) for part in tree]
        return len(parts) if all(part is None for part in parts) else {"tuple": parts}
    return None


def unflatten(form: Form, leaves: Sequence[Any]) -> Tree:
    """Return these tensors as a tree of that form.

    >>> unflatten({"tuple": [None, ["k"]]}, ["a", "b"])
    ('a', {'k': 'b'})
    """
    left = iter(leaves)
    tree = _build(form, left)
    assert next(left, None) is None, "more tensors than the form has"
    return tree


def _build(form: Form, leaves: Iterator[Any]) -> Tree:
    if form is None:
        return next(leaves)
    if isinstance(form, int):
        return tuple(next(leaves) for _ in range(form))
    if isinstance(form, list):
        return {name: next(leaves) for name in form}
    if "tuple" in form:
        return tuple(_build(part, leaves) for part in form["tuple"])
    return {name: _build(part, leaves) for name, part in form["dict"].items()}


def describe(form: Form) -> str:
    """Return a form in the user's notation.

    >>> describe(2), describe(["k"]), describe({"tuple": [None, ["k"]]})
    ('(array, array)', "{'k': array}", "(array, {'k': array})")
    """
    if form is None:
        return "array"
    if isinstance(form, int):
        return f"({', '.join(['array'] * form)})"
    if isinstance(form, list):
        form = {"dict": dict.fromkeys(form)}
    if "tuple" in form:
        return f"({', '.join(map(describe, form['tuple']))})"
    return "{" + ", ".join(f"{n!r}: {describe(part)}" for n, part in form["dict"].items()) + "}"


def count_leaves(form: Form) -> int:
    """Return the number of tensors of a form.

    >>> count_leaves(None), count_leaves(2), count_leaves({"tuple": [None, ["k", "l"]]})
    (1, 2, 3)
    """
    if form is None or isinstance(form, int):
        return 1 if form is None else form
    if isinstance(form, list):
        return len(form)
    parts = form["tuple"] if "tuple" in form else form["dict"].values()
    return sum(map(count_leaves, parts))


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
