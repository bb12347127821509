"""The number of samples that each client gets."""

from __future__ import annotations

import numpy as np

from fedlada.federation.randomness import Ints
from fedlada.methods.validation import not_negative

LARGEST_SPREAD = 100
"""Of the sizes: one client then has almost all samples anyway."""


def check_enough(num_samples: int, num_clients: int) -> None:
    """Refuse more clients than samples, before anything of the size of either is made."""
    if num_samples < num_clients:
        raise ValueError(f"{num_samples} samples cannot be divided among {num_clients} clients")


def check_spread(spread: float) -> None:
    """Refuse a spread with which sizes cannot be drawn."""
    not_negative("size_spread", spread)
    if spread > LARGEST_SPREAD:
        raise ValueError(f"size_spread must be at most {LARGEST_SPREAD}, as sizes overflow beyond, got {spread}")


def client_sizes(num_samples: int, num_clients: int, spread: float, random: np.random.Generator) -> Ints:
    """Client sizes that sum to the number of samples, at least one each."""
    check_enough(num_samples, num_clients)
    shares = np.exp(spread * random.standard_normal(num_clients))
    # One sample is reserved for each; the rest go by share, rounding by largest remainder.
    exact = shares / shares.sum() * (num_samples - num_clients)
    sizes: Ints = np.floor(exact).astype(np.int64)
    rest = num_samples - num_clients - int(sizes.sum())
    sizes[np.argsort(sizes - exact, kind="stable")[:rest]] += 1
    sizes += 1
    return sizes
