"""The global random generators of Python, NumPy and torch."""

from __future__ import annotations

import pickle
import random
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch


@contextmanager
def randomness_restored() -> Iterator[Callable[[], bool]]:
    """Restore all global generators on exit; yields a function that reports whether any was used."""
    before = _states()
    numpy = sys.modules.get("numpy")  # a process that has not imported NumPy cannot have used it
    try:
        yield lambda: pickle.dumps(before) != pickle.dumps(_states())
    finally:
        random.setstate(before[0])
        if numpy is not None:
            numpy.random.set_state(before[1])
        torch.set_rng_state(torch.tensor(list(before[2]), dtype=torch.uint8))


def _states() -> tuple[Any, Any, bytes]:
    numpy = sys.modules.get("numpy")
    of_numpy = None if numpy is None else numpy.random.get_state(legacy=False)
    return random.getstate(), of_numpy, bytes(torch.get_rng_state().tolist())
