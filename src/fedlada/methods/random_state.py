"""The usual sources of random numbers: Python's, NumPy's and torch's."""

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
    """Put all sources back as they were; yields what tells whether any was drawn from."""
    before = _states()
    numpy = sys.modules.get("numpy")  # who has not imported it does not draw from it
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
