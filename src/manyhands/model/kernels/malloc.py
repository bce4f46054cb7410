"""Makes the C library keep freed memory, which the next step needs again."""

from __future__ import annotations

import ctypes

_TRIM, _MMAP = -1, -3  # mallopt's names for what follows
_KEPT = 512 << 20  # bytes that may lie free at the heap's end
_LARGE = 32 << 20  # bytes from which on an allocation has a mapping of its own


def keep_freed() -> bool:
    """Make the C library keep freed memory; return whether it can.

    By default glibc gives the free end of its heap back to the system when it has a few megabytes,
    and large blocks at once. The next step's first touch of every page is then a fault, and there
    are many in a step. Other C libraries are left alone.
    """
    try:
        libc = ctypes.CDLL(None)
        libc.gnu_get_libc_version  # noqa: B018 — only glibc has it
    except (OSError, AttributeError, TypeError):
        return False
    return bool(libc.mallopt(_TRIM, _KEPT)) and bool(libc.mallopt(_MMAP, _LARGE))
