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
    before = torch.get_rng_state()
    with python_randomness_restored() as drawn:
        try:
            yield lambda: drawn() or not torch.equal(before, torch.get_rng_state())
        finally:
            torch.set_rng_state(before)


@contextmanager
def python_randomness_restored() -> Iterator[Callable[[], bool]]:
    """Restore the global generators of Python and NumPy; yields a function that reports whether one was used."""
    before = _python_states()
    numpy = sys.modules.get("numpy")  # a process that has not imported NumPy cannot have used it
    try:
        yield lambda: pickle.dumps(before) != pickle.dumps(_python_states())
    finally:
        random.setstate(before[0])
        if numpy is not None:
            numpy.random.set_state(before[1])


def _python_states() -> tuple[Any, Any]:
    numpy = sys.modules.get("numpy")
    return random.getstate(), None if numpy is None else numpy.random.get_state(legacy=False)
