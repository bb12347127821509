"""Deterministic results on a GPU."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

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
