"""A codec: how one vector of a message becomes parts that travel, and back."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

Form = tuple[torch.dtype, int]
"""The type and the length of one part."""


@dataclass(frozen=True)
class Encoded:
    """A vector as it travels."""

    codec: str
    size: int
    """How many numbers the vector has."""
    parts: Mapping[str, Tensor]
    fits: Tensor | None = None
    """A 0-dim bool that is false where the numbers do not fit the code; asked for late, so that a GPU need not wait."""

    @property
    def num_bytes(self) -> int:
        """The size of all parts."""
        return sum(part.numel() * part.element_size() for part in self.parts.values())


@dataclass(frozen=True)
class Codec(ABC):
    """Encodes vectors of finite numbers. The same numbers and key give the same bits on every device."""

    name: str

    is_exact: ClassVar[bool] = False
    keeps_positive: ClassVar[bool] = False
    """Whether a positive number can never come out as zero: what second moments need, which are divided by."""
    has_memory: ClassVar[bool] = False
    """Whether a sender adds what was lost to what it sends next (error feedback)."""
    needs_positive: ClassVar[bool] = False
    range: ClassVar[str] = "finite numbers"

    @abstractmethod
    def encode(self, vector: Tensor, key: int) -> Encoded:
        """The vector `[P]`; `key` is where random numbers come from."""

    @abstractmethod
    def decode(self, encoded: Encoded) -> Tensor:
        """The vector that the receiver has, in float32 (or wider where that was sent)."""

    @abstractmethod
    def form(self, size: int) -> dict[str, Form]:
        """The parts that a vector of this size has."""

    def check(self, encoded: Encoded) -> bool:
        """Whether parts of the right form are also such as this codec writes (they may come from anybody)."""
        return True


def in_blocks(vector: Tensor, block: int, fill: float = 0.0) -> Tensor:
    """The vector as rows of `block` numbers; what is missing at the end is `fill`."""
    missing = -vector.numel() % block
    if missing:
        vector = torch.cat([vector, vector.new_full((missing,), fill)])
    return vector.view(-1, block)


def num_blocks(size: int, block: int) -> int:
    """How many rows that makes."""
    return -(-size // block)
