"""Filters for torch warnings that a user cannot act on."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import nn


@contextmanager
def quiet_vmap() -> Iterator[None]:
    """Silence warnings about functions that vmap runs client by client."""
    torch._C._functorch._set_vmap_fallback_warning_enabled(False)  # type: ignore[attr-defined]
    try:
        yield
    finally:
        torch._C._functorch._set_vmap_fallback_warning_enabled(True)  # type: ignore[attr-defined]


@contextmanager
def quiet_recurrent(module: nn.Module) -> Iterator[None]:
    """Silence the warning about recurrent weights that are not contiguous for cuDNN: they are views of one vector."""
    if not any(isinstance(one, nn.RNNBase) for one in module.modules()):
        yield
        return
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=r"RNN module weights are not part of single contiguous chunk")
        yield
