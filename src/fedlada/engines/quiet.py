"""Filters for torch warnings that a user cannot act on."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn

_warn_of_vmap: Any = getattr(getattr(torch._C, "_functorch", None), "_set_vmap_fallback_warning_enabled", bool)
"""Switches the warnings on and off; in a torch without this name nothing does."""


@contextmanager
def quiet_vmap() -> Iterator[None]:
    """Silence warnings about functions that vmap runs client by client."""
    _warn_of_vmap(False)
    try:
        yield
    finally:
        _warn_of_vmap(True)


@contextmanager
def quiet_recurrent(module: nn.Module) -> Iterator[None]:
    """Silence the warning about recurrent weights that are not contiguous for cuDNN: they are views of one vector."""
    if not any(isinstance(one, nn.RNNBase) for one in module.modules()):
        yield
        return
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=r"RNN module weights are not part of single contiguous chunk")
        yield
