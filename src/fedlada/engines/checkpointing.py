"""Activation checkpointing, whose recomputation in the backward pass bypasses modes."""

from __future__ import annotations

import inspect
from typing import Any

import torch
from torch.utils.checkpoint import CheckpointFunction

_hooks: Any = getattr(torch._C._autograd, "_top_saved_tensors_default_hooks", None)
"""The functions that save tensors for the backward pass; a checkpoint sets them."""


def is_checkpointed() -> bool:
    """Whether this is inside a part of a model that will be computed again: it must then be left to torch."""
    if torch.is_grad_enabled() and _hooks is not None:
        return _hooks(True) is not None
    # The older kind runs without gradients at first, as a frozen part of a model may do too.
    frame = inspect.currentframe()
    while frame is not None and frame.f_code is not CheckpointFunction.forward.__code__:
        frame = frame.f_back
    return frame is not None
