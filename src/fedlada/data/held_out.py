"""A held-out test set for data without one."""

from __future__ import annotations

from fedlada.federation.randomness import Ints, bits, permutation


def held_out(num_samples: int, purpose: str, *, share: float = 1 / 6, seed: int = 0) -> tuple[Ints, Ints]:
    """Indices of the training and the test samples, fixed by `purpose` and `seed` alone."""
    order = permutation(bits(seed, purpose), num_samples)
    num_test = max(1, round(share * num_samples))
    return order[num_test:], order[:num_test]
