"""Weights of clients in the mean: by a name, or one number per client."""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Iterable, Mapping, Sequence

from fedlada.methods.validation import finite, not_negative, one_of

NAMES = ("uniform", "examples")
Weights = str | Sequence[float]
"""A user's weights: one of these names, or p_i of each client."""


def check_weights(weights: Weights, num_clients: int) -> str | tuple[float, ...]:
    """The name, or each client's weight as a share of the largest, so that only ratios matter."""
    if isinstance(weights, str):
        one_of("weights", weights, NAMES)
        return weights
    if isinstance(weights, Mapping) or not isinstance(weights, Iterable):
        raise ValueError(f"weights must be 'uniform', 'examples' or a list of one number per client, got {weights!r}")
    given = weights.tolist() if hasattr(weights, "tolist") else list(weights)
    if len(given) != num_clients:
        raise ValueError(f"weights must have one number for each of {num_clients} clients, got {len(given)}")
    for client, weight in enumerate(given):
        finite(f"weights[{client}]", weight)
        not_negative(f"weights[{client}]", weight)
    largest = max(map(float, given))
    if largest == 0:
        raise ValueError("weights are zero for every client: at least one must be positive")
    return tuple(float(weight) / largest for weight in given)


def describe_weights(weights: str | Sequence[float]) -> str:
    """The name, or a digest of the numbers, which may be many."""
    if isinstance(weights, str):
        return weights
    return f"given, {hashlib.sha256(struct.pack(f'<{len(weights)}d', *weights)).hexdigest()[:16]}"
