"""Each client's own test samples: a share of what it holds, that nobody trains on."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from fedlada.federation.randomness import Ints, bits, permutation


def hold_out(clients: Sequence[Ints], share: float, seed: int) -> tuple[list[Ints], list[Ints]]:
    """The sample numbers that each client trains on, and those that it is tested on.

    A client of one sample trains on it and is not tested. A sample that several clients hold and that one of them is
    tested on is trained on by none.
    """
    tests = [_drawn(np.unique(own), share, seed, client) for client, own in enumerate(clients)]
    gone = np.unique(np.concatenate(tests))
    return [own[~np.isin(own, gone)] for own in clients], tests


def _drawn(own: Ints, share: float, seed: int, client: int) -> Ints:
    number = min(max(1, round(share * len(own))), len(own) - 1)
    order = permutation(bits(seed, "client test", 0, client), len(own))
    return np.sort(own[order[: max(0, number)]])
