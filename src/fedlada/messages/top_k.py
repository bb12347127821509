"""Top-k sparsification with error feedback."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from fedlada.messages.codec import Codec, Encoded, Form, in_blocks


@dataclass(frozen=True)
class TopK(Codec):
    """The `share` of the numbers with the largest magnitude, in bfloat16, with their positions; the others are zero.

    The engine adds the client's residual before encoding and keeps the new one, rounding errors included.
    """

    share: float
    has_memory: ClassVar[bool] = True
    range: ClassVar[str] = "numbers up to 3.38e38"

    def count(self, size: int) -> int:
        """Number of entries sent; at least one."""
        return max(1, min(size, round(self.share * size)))

    def encode(self, vector: Tensor, key: int) -> Encoded:
        size, k = vector.numel(), self.count(vector.numel())
        numbers = vector.float()
        chosen = _largest(numbers.abs(), k)
        order = torch.cumsum(chosen, 0, dtype=torch.int32) - 1
        # Unused slots write to an extra last position that is cut off, so that no length depends on the data.
        target = torch.where(chosen, order, k).to(torch.int64)
        values = numbers.new_empty(k + 1).scatter_(0, target, numbers)[:k].to(torch.bfloat16)
        if self._as_bits(size):
            where = _packed_bits(chosen)
        else:
            positions = torch.arange(size, dtype=torch.int32, device=vector.device)
            where = positions.new_empty(k + 1).scatter_(0, target, positions)[:k]
        return Encoded(self.name, size, {"values": values, "where": where}, values.isfinite().all())

    def decode(self, encoded: Encoded) -> Tensor:
        values, where = encoded.parts["values"].float(), encoded.parts["where"]
        if not self._as_bits(encoded.size):
            return values.new_zeros(encoded.size).scatter_(0, where.to(torch.int64), values)
        chosen = _unpacked_bits(where, encoded.size)
        order = (torch.cumsum(chosen, 0, dtype=torch.int32) - 1).clamp_(0, len(values) - 1)
        return torch.where(chosen, values[order.to(torch.int64)], 0.0)

    def form(self, size: int) -> dict[str, Form]:
        k = self.count(size)
        where = (torch.uint8, -(-size // 8)) if self._as_bits(size) else (torch.int32, k)
        return {"values": (torch.bfloat16, k), "where": where}

    def check(self, encoded: Encoded) -> bool:
        values, where = encoded.parts["values"], encoded.parts["where"]
        if self._as_bits(encoded.size):
            right = int(_unpacked_bits(where, 8 * len(where)).sum()) == len(values)
            right &= not bool(_unpacked_bits(where, 8 * len(where))[encoded.size :].any())
        else:
            right = bool((where >= 0).all() and (where < encoded.size).all() and (where.diff() > 0).all())
        return right and bool(values.isfinite().all())

    def _as_bits(self, size: int) -> bool:
        """Whether a bitmap of the vector is shorter than a list of positions."""
        return size <= 32 * self.count(size)


def _largest(magnitudes: Tensor, k: int) -> Tensor:
    """A mask of the k largest; ties go to the first. (`topk` breaks ties arbitrarily.)"""
    least = torch.topk(magnitudes, k, sorted=True).values[-1]
    above = magnitudes > least
    equal = magnitudes == least
    missing = k - above.sum()
    return above | (equal & (torch.cumsum(equal, 0, dtype=torch.int32) <= missing))


def _packed_bits(chosen: Tensor) -> Tensor:
    rows = in_blocks(chosen.to(torch.uint8), 8)
    return (rows << torch.arange(8, dtype=torch.uint8, device=chosen.device)).sum(dim=1, dtype=torch.uint8)


def _unpacked_bits(packed: Tensor, size: int) -> Tensor:
    shifts = torch.arange(8, dtype=torch.uint8, device=packed.device)
    return (packed.unsqueeze(1) >> shifts & 1).bool().flatten()[:size]
