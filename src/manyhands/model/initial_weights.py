"""Reads the shapes of a safetensors file, which a run starts from, by its header."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from manyhands.errors import ConfigError

_LONGEST = 100 << 20  # bytes of a header, as safetensors itself allows
_SHOWN = 3  # names that a message lists


def read_shapes(path: Path) -> dict[str, tuple[int, ...]]:
    """Return the shapes of a file's tensors by name.

    Raises:
        ConfigError: If there is no such file, torch.save wrote it (unpickling runs its code), or it
            is not a complete safetensors file.
    """
    if not path.is_file():
        raise ConfigError(f"init is {str(path)!r}; there is no such file")
    size = path.stat().st_size
    with path.open("rb") as file:
        head = file.read(9)
        # The length of a safetensors header may begin like either; its JSON follows it.
        if head[:2] in (b"PK", b"\x80\x02") and head[8:] != b"{":
            raise ConfigError(
                f"init is {str(path)!r}, a file of torch.save; expected safetensors: "
                "safetensors.torch.save_file(model.state_dict(), path)"
            )
        length = int.from_bytes(head[:8], "little")
        if len(head) < 9 or head[8:] != b"{" or length > min(_LONGEST, size - 8):
            raise _damaged(path, "it has no complete header")
        file.seek(8)
        text = file.read(length)
    try:
        entries = json.loads(text)
        tensors = {name: about for name, about in entries.items() if name != "__metadata__"}
        ends = [int(about["data_offsets"][1]) for about in tensors.values()]
        shapes = {name: tuple(map(int, about["shape"])) for name, about in tensors.items()}
    except (ValueError, TypeError, KeyError, IndexError, AttributeError, RecursionError):
        raise _damaged(path, "its header cannot be understood") from None
    missing = max(ends, default=0) - (size - 8 - length)
    if missing:
        problem = (
            f"{missing:,} bytes are missing" if missing > 0 else "it goes on behind its tensors"
        )
        raise _damaged(path, problem)
    return shapes


def _damaged(path: Path, why: str) -> ConfigError:
    return ConfigError(
        f"init is {str(path)!r}, which is not a complete safetensors file: {why}; write it again"
    )


def check_shapes(path: Path, expected: Mapping[str, Any]) -> None:
    """Refuse weights that do not fit a model with these shapes, by name."""
    shapes = read_shapes(path)
    absent = [name for name in expected if name not in shapes]
    extra = [name for name in shapes if name not in expected]
    other = [name for name in expected if name in shapes and shapes[name] != expected[name]]
    parts = [f"it lacks {_list_names(absent)}"] if absent else []
    parts += [f"it has {_list_names(extra)}, which the model does not"] if extra else []
    parts += [
        f"{name} has the shape {shapes[name]}, and in the model {expected[name]}"
        for name in other[:_SHOWN]
    ]
    if parts:
        raise ConfigError(
            f"init is {str(path)!r}, which does not fit the model: {'; '.join(parts)}; expected "
            "the state_dict of the same model"
        )


def _list_names(names: list[str]) -> str:
    more = f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
    return ", ".join(names[:_SHOWN]) + more
