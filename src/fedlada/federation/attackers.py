"""The malicious clients of a run."""

from __future__ import annotations

from fedlada.federation.randomness import bits, permutation


def attackers(num_clients: int, share: float, seed: int) -> frozenset[int]:
    """That share of the clients, at least one: the same in every round of a run and on every machine."""
    number = max(1, round(share * num_clients))
    return frozenset(permutation(bits(seed, "attackers"), num_clients)[:number].tolist())
