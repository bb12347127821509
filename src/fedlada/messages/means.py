"""One number for a whole block: second moments, of which a client needs the scale more than the detail."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from fedlada.messages.codec import Codec, Encoded, Form, in_blocks, num_blocks
from fedlada.messages.plain import SMALLEST


@dataclass(frozen=True)
class BlockMeans(Codec):
    """Every number of a block becomes the block's mean, in bfloat16; blocks have a power of two of numbers."""

    block: int
    keeps_positive: ClassVar[bool] = True
    needs_positive: ClassVar[bool] = True
    range: ClassVar[str] = "positive numbers whose sums are finite"

    def __post_init__(self) -> None:
        if self.block < 2 or self.block & (self.block - 1):
            raise ValueError(f"messages: mean{self.block} must have blocks of a power of two, such as mean64")

    def encode(self, vector: Tensor, key: int) -> Encoded:
        size = vector.numel()
        rows = in_blocks(vector.float(), self.block)
        fits = (vector > 0).all()
        # Halves are added to each other: the same sums in the same order, so the same bits, on every device.
        while rows.shape[1] > 1:
            rows = rows[:, : rows.shape[1] // 2] + rows[:, rows.shape[1] // 2 :]
        means = (rows.flatten() / self._counts(size, vector.device)).clamp(min=SMALLEST).to(torch.bfloat16)
        return Encoded(self.name, size, {"means": means}, fits & means.isfinite().all())

    def decode(self, encoded: Encoded) -> Tensor:
        return encoded.parts["means"].float().repeat_interleave(self.block)[: encoded.size]

    def form(self, size: int) -> dict[str, Form]:
        return {"means": (torch.bfloat16, num_blocks(size, self.block))}

    def check(self, encoded: Encoded) -> bool:
        means = encoded.parts["means"].float()
        return bool((means > 0).all() and means.isfinite().all())

    def _counts(self, size: int, device: torch.device) -> Tensor:
        """How many numbers each block has: the last may have fewer."""
        counts = torch.full((num_blocks(size, self.block),), float(self.block), device=device)
        if size % self.block:
            counts[-1] = size % self.block
        return counts
