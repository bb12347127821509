"""8-bit logarithmic quantization of positive numbers, for second moments."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from fedlada.messages.codec import Codec, Encoded, Form, in_blocks, num_blocks
from fedlada.messages.noise import uniform_noise

BLOCK = 256
LAST = 255
LARGEST = 0x7F7FFFFF
"""The bits of the largest float32."""
SMALLEST = 2.0**-149


@dataclass(frozen=True)
class Logarithmic(Codec):
    """256 levels for each block, from its smallest to its largest number, about evenly spaced in the logarithm.

    The bits of a positive float32, read as an integer, grow like its logarithm; levels are evenly spaced in them, so
    that all arithmetic is in integers and gives the same bits on every device. A number between two levels is rounded
    stochastically, without bias. The smallest number of a block is exact and a lower bound, so nothing positive becomes
    zero. No number exceeds the largest by more than 2^-15 of it.
    """

    name: str = "log8"
    keeps_positive: ClassVar[bool] = True
    needs_positive: ClassVar[bool] = True
    range: ClassVar[str] = "positive numbers"

    def encode(self, vector: Tensor, key: int) -> Encoded:
        size = vector.numel()
        numbers = vector.float()
        fits = ((numbers > 0) & numbers.isfinite()).all()
        # Invalid numbers are replaced by valid ones until `fits` is read.
        words = in_blocks(numbers.clamp(min=SMALLEST).view(torch.int32), BLOCK, fill=-1)
        words = torch.where(words < 0, words[:, :1], words)  # the last block is padded with its own first number
        lowest = words.amin(dim=1)
        steps = (words.amax(dim=1) - lowest + LAST - 1) // LAST
        codes = (words - lowest.unsqueeze(1)) // steps.clamp(min=1).unsqueeze(1)
        below = _levels(lowest, steps, codes)
        above = _levels(lowest, steps, codes + 1)
        x = words.view(torch.float32)
        share = ((x - below) / (above - below)).flatten()[:size]  # NaN if all numbers of the block are equal
        up = uniform_noise(key, size, vector.device) < share
        rounded = (codes.flatten()[:size] + up).clamp_(max=LAST).to(torch.uint8)
        return Encoded(self.name, size, {"codes": rounded, "lowest": lowest, "steps": steps}, fits)

    def decode(self, encoded: Encoded) -> Tensor:
        codes = in_blocks(encoded.parts["codes"].to(torch.int32), BLOCK)
        return _levels(encoded.parts["lowest"], encoded.parts["steps"], codes).flatten()[: encoded.size]

    def form(self, size: int) -> dict[str, Form]:
        blocks = num_blocks(size, BLOCK)
        return {"codes": (torch.uint8, size), "lowest": (torch.int32, blocks), "steps": (torch.int32, blocks)}

    def check(self, encoded: Encoded) -> bool:
        lowest, steps = (encoded.parts[name].to(torch.int64) for name in ("lowest", "steps"))
        # The last level may be up to LAST past the block's largest number.
        return bool((lowest > 0).all() and (steps >= 0).all() and (lowest + LAST * steps < LARGEST + LAST).all())


def _levels(lowest: Tensor, steps: Tensor, codes: Tensor) -> Tensor:
    return (lowest.unsqueeze(1) + codes * steps.unsqueeze(1)).clamp_(max=LARGEST).view(torch.float32)


LOG8 = Logarithmic()
