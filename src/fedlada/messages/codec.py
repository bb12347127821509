"""The interface of a codec, which encodes one vector of a message and decodes it."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

Form = tuple[torch.dtype, int]
"""The dtype and the length of one part."""


@dataclass(frozen=True)
class Encoded:
    """An encoded vector."""

    codec: str
    size: int
    """Length of the vector."""
    parts: Mapping[str, Tensor]
    fits: Tensor | None = None
    """A 0-dim bool, false if the numbers do not fit the codec; read late, to avoid a GPU synchronisation."""

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
    """Whether positive numbers never decode to zero, as second moments require: they are divided by."""
    has_memory: ClassVar[bool] = False
    """Whether a sender adds the compression error to its next message (error feedback)."""
    needs_positive: ClassVar[bool] = False
    range: ClassVar[str] = "finite numbers"

    @abstractmethod
    def encode(self, vector: Tensor, key: int) -> Encoded:
        """Encode the vector `[P]`; `key` seeds the stochastic rounding."""

    @abstractmethod
    def decode(self, encoded: Encoded) -> Tensor:
        """Decode the vector, in float32 (or float64 if that was sent)."""

    @abstractmethod
    def form(self, size: int) -> dict[str, Form]:
        """The parts of an encoded vector of this size."""

    def check(self, encoded: Encoded) -> bool:
        """Whether parts of the right form hold valid codes; they may come from an untrusted sender."""
        return True


def in_blocks(vector: Tensor, block: int, fill: float = 0.0) -> Tensor:
    """The vector as rows of `block` numbers, padded at the end with `fill`."""
    missing = -vector.numel() % block
    if missing:
        vector = torch.cat([vector, vector.new_full((missing,), fill)])
    return vector.view(-1, block)


def num_blocks(size: int, block: int) -> int:
    """Number of blocks."""
    return -(-size // block)
