"""Memory that is freed stays with the process while a CPU trains.

The C library gives a large freed block back to the system, and the next one of its size begins with a page fault for
each of its pages. A step makes and frees vectors of the model's size: with a large model most of its time goes there.
Torch's builds for ARM have an allocator of their own, which keeps freed memory by itself.
"""

from __future__ import annotations

import ctypes
import os
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any

import torch

TRIM_THRESHOLD, MMAP_THRESHOLD, MMAP_MAX = -1, -3, -4
"""Options of glibc's `mallopt`."""
KEPT = 2**31 - 1
"""Free bytes at the end of the heap beyond which memory goes back all the same."""
USUAL = {MMAP_MAX: 65536, MMAP_THRESHOLD: 32 * 2**20, TRIM_THRESHOLD: 64 * 2**20}
"""Values at which glibc arrives by itself in a process that has freed large blocks; its start cannot be restored."""
SETTINGS = ("MALLOC_MMAP_MAX_", "MALLOC_MMAP_THRESHOLD_", "MALLOC_TRIM_THRESHOLD_", "GLIBC_TUNABLES")
"""Variables with which a user decides; then nothing is changed."""

_lock = threading.Lock()
_users = 0
"""Runs of this process that are inside."""


@contextmanager
def freed_memory_kept(device: torch.device) -> Iterator[None]:
    """Keep freed memory inside, and give it back at the end; with another C library than glibc nothing changes."""
    library = _glibc()
    if device.type != "cpu" or library is None or any(name in os.environ for name in SETTINGS):
        yield
        return
    _enter(library)
    try:
        yield
    finally:
        _leave(library)


def _enter(library: Any) -> None:
    global _users
    with _lock:
        _users += 1
        if _users == 1:
            library.mallopt(MMAP_MAX, 0)
            library.mallopt(TRIM_THRESHOLD, KEPT)


def _leave(library: Any) -> None:
    global _users
    with _lock:
        _users -= 1
        if _users == 0:
            for option, value in USUAL.items():
                library.mallopt(option, value)
            library.malloc_trim(0)


@cache
def _glibc() -> Any:
    if sys.platform != "linux":
        return None
    library = ctypes.CDLL(None)
    known = all(hasattr(library, name) for name in ("gnu_get_libc_version", "mallopt", "malloc_trim"))
    return library if known else None
