"""The choice of CPU kernels for small models."""

from __future__ import annotations

import platform
from collections.abc import Iterator
from contextlib import contextmanager

import torch

SMALL_MODEL = 1_000_000


@contextmanager
def fast_cpu_kernels(device: torch.device, num_params: int) -> Iterator[None]:
    """Use torch's native kernels instead of oneDNN's where those are slow: small models on ARM processors.

    There a call of oneDNN has a high fixed cost, which is much of a small model's step: a loop over a 10,026-parameter
    CNN takes two thirds of the time without it (`benchmarks/results/simulators_arm_202611.md`). On x86-64 that holds
    for the smallest images alone (`simulators_x86_202611.md`). The rule uses nothing that varies between two runs,
    because kernels affect the last bits of a result.
    """
    applies = device.type == "cpu" and platform.machine() in ("aarch64", "arm64") and num_params < SMALL_MODEL
    if not applies or not torch.backends.mkldnn.enabled:
        yield
        return
    torch.backends.mkldnn.enabled = False  # type: ignore[assignment]
    try:
        yield
    finally:
        torch.backends.mkldnn.enabled = True  # type: ignore[assignment]
