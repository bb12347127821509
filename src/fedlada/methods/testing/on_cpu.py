"""Where checks compute."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext

import torch


def on_cpu() -> AbstractContextManager[object]:
    """New tensors lie on the CPU; where they do so already nothing is set, which would slow every operation down."""
    is_default = torch.empty(0).device.type == "cpu"
    return nullcontext() if is_default else torch.device("cpu")
