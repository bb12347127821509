"""Deterministic results on a GPU."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch


@contextmanager
def same_bits_every_time(device: torch.device) -> Iterator[None]:
    """Restrict cuDNN to deterministic algorithms; this library's own kernels are deterministic."""
    if device.type != "cuda":
        yield
        return
    before = torch.backends.cudnn.deterministic
    torch.backends.cudnn.deterministic = True
    try:
        yield
    finally:
        torch.backends.cudnn.deterministic = before


@contextmanager
def deterministic_algorithms() -> Iterator[None]:
    """Keep torch, and the code that its compiler makes, from sums by atomic additions, whose order varies."""
    before = torch.are_deterministic_algorithms_enabled()
    if before and not torch.is_deterministic_algorithms_warn_only_enabled():  # a user's own, stricter choice
        yield
        return
    only_warned = torch.is_deterministic_algorithms_warn_only_enabled()
    memory: Any = torch.utils.deterministic
    filled = memory.fill_uninitialized_memory
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # what has no deterministic form is no worse than without this
        torch.use_deterministic_algorithms(True, warn_only=True)
        memory.fill_uninitialized_memory = False  # costs time and changes no result
        try:
            yield
        finally:
            torch.use_deterministic_algorithms(before, warn_only=only_warned)
            memory.fill_uninitialized_memory = filled
