"""A held-out test set for data without one."""

from __future__ import annotations

import numpy as np

from fedlada.federation.randomness import Ints, bits, permutation


def held_out(num_samples: int, purpose: str, *, share: float = 1 / 6, seed: int = 0) -> tuple[Ints, Ints]:
    """Indices of the training and the test samples, fixed by `purpose` and `seed` alone."""
    order = permutation(bits(seed, purpose), num_samples)
    num_test = max(1, round(share * num_samples))
    return order[num_test:], order[:num_test]


def held_out_ends(client: Ints, share: float, *, overlap: int, every: int = 1) -> tuple[Ints, Ints]:
    """Indices of the training and the held-out windows: the last ones of each client, whose windows are in order.

    The `overlap` windows before them share characters with them and are in neither part. Every `every`-th is held out.
    """
    rest, held = [], []
    for number in np.unique(client):
        own = np.flatnonzero(client == number)
        cut = len(own) - max(1, round(share * len(own)))
        rest.append(own[: max(0, cut - overlap)])
        held.append(own[cut::every])
    return np.concatenate(rest), np.concatenate(held)
