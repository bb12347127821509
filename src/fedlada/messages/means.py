"""One mean per block, for second moments: a client needs their scale more than their detail."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from fedlada.messages.codec import Codec, Encoded, Form, in_blocks, num_blocks
from fedlada.messages.plain import SMALLEST


@dataclass(frozen=True)
class BlockMeans(Codec):
    """Every number of a block becomes the block's mean, in bfloat16; the block size is a power of two."""

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
        # Pairwise sums of halves: the same order of summation, so the same bits, on every device.
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
        """The length of each block; the last may be shorter."""
        counts = torch.full((num_blocks(size, self.block),), float(self.block), device=device)
        if size % self.block:
            counts[-1] = size % self.block
        return counts
