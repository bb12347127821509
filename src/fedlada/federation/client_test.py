"""Per-client test sets: a share of each client's samples, which no client trains on."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from fedlada.federation.randomness import Ints, bits, permutation


def hold_out(clients: Sequence[Ints], share: float, seed: int) -> tuple[list[Ints], list[Ints]]:
    """Each client's sample indices for training and for testing.

    A client with one sample trains on it and is not tested. A sample that several clients share is trained on by none
    of them if one is tested on it.
    """
    tests = [_drawn(np.unique(own), share, seed, client) for client, own in enumerate(clients)]
    gone = np.zeros(1 + max((int(own.max()) for own in clients if len(own)), default=0), dtype=bool)
    gone[np.concatenate(tests)] = True
    return [own[~gone[own]] for own in clients], tests


def _drawn(own: Ints, share: float, seed: int, client: int) -> Ints:
    number = min(max(1, round(share * len(own))), len(own) - 1)
    order = permutation(bits(seed, "client test", 0, client), len(own))
    return np.sort(own[order[: max(0, number)]])
