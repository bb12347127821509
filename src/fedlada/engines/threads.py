"""The number of CPU threads a run computes with."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch

from fedlada.methods.validation import count

MOST_THREADS = 1024


def check_threads(threads: int) -> int:
    """The number of threads, checked."""
    count("threads", threads)
    if threads > MOST_THREADS:
        raise ValueError(f"threads must be at most {MOST_THREADS}, got {threads}")
    return int(threads)


@contextmanager
def cpu_threads(device: torch.device, threads: int) -> Iterator[None]:
    """Compute with exactly this many torch threads, whatever the environment says; a GPU's host threads are left alone.

    torch splits a sum among its threads, so their number affects the last bits of a result. It is therefore a setting
    of the run and never depends on the machine's cores, on `OMP_NUM_THREADS` or on how many runs share a machine.
    """
    before = torch.get_num_threads()
    if device.type != "cpu" or threads == before:
        yield
        return
    torch.set_num_threads(threads)
    try:
        yield
    finally:
        torch.set_num_threads(before)
