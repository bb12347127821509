"""Block-wise quantization to 8- or 4-bit integers, with unbiased stochastic rounding."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from fedlada.messages.codec import Codec, Encoded, Form, in_blocks, num_blocks
from fedlada.messages.noise import uniform_noise

LARGEST = 3.3e38
"""Above it a level could exceed float32's range."""


@dataclass(frozen=True)
class Blockwise(Codec):
    """x becomes scale * q with an integer q in [-levels, levels]; the scale is the block's largest |x| over `levels`.

    q is x / scale rounded up with the probability of its fraction, so E[scale * q] = x; the error is below the scale.
    (The scale is a bfloat16, rounded up: at most 2^-7 larger.)
    """

    levels: int
    block: int
    range: ClassVar[str] = "numbers up to 3.3e38"

    def encode(self, vector: Tensor, key: int) -> Encoded:
        size = vector.numel()
        rows = in_blocks(vector.float(), self.block)
        # Divide by a tensor: for a Python number a GPU multiplies by the reciprocal, which differs in the last bit.
        largest = rows.abs().amax(dim=1)
        scales = _bfloat16_above(largest / rows.new_full((1,), self.levels))
        divisors = scales.float().unsqueeze(1)
        # A block whose scale is zero, or underflows to zero, is sent as zeros.
        scaled = torch.where(divisors > 0, rows / divisors, 0.0).flatten()[:size]
        scaled += uniform_noise(key, size, vector.device)
        codes = scaled.floor_().clamp_(-self.levels, self.levels).to(torch.int8)
        return Encoded(self.name, size, {"codes": self._packed(codes), "scales": scales}, (largest < LARGEST).all())

    def decode(self, encoded: Encoded) -> Tensor:
        codes = self._unpacked(encoded.parts["codes"], encoded.size)
        rows = in_blocks(codes.float(), self.block)
        return (rows * encoded.parts["scales"].float().unsqueeze(1)).flatten()[: encoded.size]

    def form(self, size: int) -> dict[str, Form]:
        codes = (torch.int8, size) if self.levels > 7 else (torch.uint8, -(-size // 2))
        return {"codes": codes, "scales": (torch.bfloat16, num_blocks(size, self.block))}

    def check(self, encoded: Encoded) -> bool:
        scales = encoded.parts["scales"].float()
        codes = self._unpacked(encoded.parts["codes"], encoded.size)
        return bool(
            (scales >= 0).all() and scales.isfinite().all() and (codes.to(torch.int16).abs() <= self.levels).all()
        )

    def _packed(self, codes: Tensor) -> Tensor:
        if self.levels > 7:
            return codes
        pairs = in_blocks((codes + 8).to(torch.uint8), 2, fill=8)
        return pairs[:, 0] | (pairs[:, 1] << 4)

    def _unpacked(self, codes: Tensor, size: int) -> Tensor:
        if self.levels > 7:
            return codes
        return torch.stack([codes & 15, codes >> 4], dim=1).flatten()[:size].to(torch.int8) - 8


def _bfloat16_above(scales: Tensor) -> Tensor:
    """The next bfloat16 at or above x, so that no number exceeds `levels` scales."""
    up = (scales.view(torch.int32) + 0xFFFF) >> 16
    return up.to(torch.int16).view(torch.bfloat16)


INT8 = Blockwise("int8", levels=127, block=256)
INT4 = Blockwise("int4", levels=7, block=64)
