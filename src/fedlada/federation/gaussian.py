"""Gaussian noise for private sums: counter-based and the same in every engine, or from the operating system."""

from __future__ import annotations

import math
import os
from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor

from fedlada.federation.randomness import GOLDEN, bits, mixed


def from_seed(seed: int, round: int) -> Callable[[str, Tensor], Tensor]:
    """A round's standard normal noise by vector name; anyone who knows the seed can reproduce it."""

    def normal(name: str, like: Tensor) -> Tensor:
        pairs = (like.numel() + 1) // 2
        keys = bits(seed, f"noise of {name}", round).random_raw(4).astype(np.int64).tolist()
        place = torch.arange(1, pairs + 1, device=like.device) * GOLDEN
        radius, angle = (mixed(mixed(place + first) ^ second) for first, second in (keys[:2], keys[2:]))
        return _box_muller(radius, angle, like)

    return normal


def from_system(_name: str, like: Tensor) -> Tensor:
    """Standard normal noise that cannot be reproduced, from the operating system's secure generator."""
    pairs = (like.numel() + 1) // 2
    words = torch.frombuffer(bytearray(os.urandom(16 * pairs)), dtype=torch.int64)
    return _box_muller(words[:pairs], words[pairs:], like) if pairs else torch.zeros_like(like)


def _box_muller(radius: Tensor, angle: Tensor, like: Tensor) -> Tensor:
    """Two normal numbers from two 64-bit words; 53 bits reach 8.6 standard deviations."""
    length = torch.sqrt(-2 * torch.log((_top(radius) + 1) * 2.0**-53))
    turn = _top(angle) * (2 * math.pi * 2.0**-53)
    numbers = torch.cat([length * torch.cos(turn), length * torch.sin(turn)])[: like.numel()]
    return numbers.to(like).reshape(like.shape)


def _top(words: Tensor) -> Tensor:
    """The upper 53 bits as a float64."""
    return (words >> 11).bitwise_and_(2**53 - 1).double()
