"""Noise for stochastic rounding: an integer hash of key and position, the same bits on every device."""

from __future__ import annotations

import torch
from torch import Tensor

from fedlada.federation.randomness import bits


def _signed(value: int) -> int:
    """A 32-bit word as torch's int32 holds it."""
    return value - 2**32 if value >= 2**31 else value


# Odd 32-bit multipliers: the golden ratio's, and those of MurmurHash3's finalizer.
GOLDEN, FIRST, SECOND = (_signed(value) for value in (0x9E3779B1, 0x85EBCA6B, 0xC2B2AE35))


def key(seed: int, purpose: str, round: int, client: int) -> int:
    """The 64-bit key of one vector of one message."""
    return int(bits(seed, purpose, round, client).random_raw())


def uniform_noise(key: int, size: int, device: torch.device) -> Tensor:
    """`size` float32 numbers in [0, 1), multiples of 2^-24, for the positions 0, 1, ... of a vector."""
    low, high = _signed(key & 0xFFFFFFFF), _signed(key >> 32 & 0xFFFFFFFF)
    word = torch.arange(size, dtype=torch.int32, device=device).mul_(GOLDEN).add_(low)
    # int32 wraps around and its shift extends the sign: the masks clear the bits shifted in.
    word ^= (word >> 16).bitwise_and_(0xFFFF)
    word.mul_(FIRST).bitwise_xor_(high)
    word ^= (word >> 13).bitwise_and_(0x7FFFF)
    word.mul_(SECOND)
    word ^= (word >> 16).bitwise_and_(0xFFFF)
    return (word >> 8).bitwise_and_(0xFFFFFF).float().mul_(2.0**-24)
