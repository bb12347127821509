"""Dropout masks as one kernel: what `fedlada.engines.masks` computes, without its steps in memory."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

BLOCK = 1024


@triton.jit(do_not_specialize=("size", "limit"))
def _keep(elements, low, high, kept, size, limit, BLOCK: tl.constexpr):
    client = tl.program_id(1)
    place = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = place < size
    x = (tl.load(elements + place, mask=inside, other=0) ^ tl.load(low + client)) * 0x7FEB352D
    x = x ^ ((x >> 15) & 0x1FFFF)
    x = (x + tl.load(high + client)) * -2073254261
    tl.store(kept + client.to(tl.int64) * size + place, (x >= limit).to(tl.int8), mask=inside)


def keep(elements: Tensor, low: Tensor, high: Tensor, limit: int) -> Tensor:
    """Masks `[C, ...]` of keys `[C]`."""
    elements, size = elements.contiguous(), elements.numel()
    kept = torch.empty((len(low), *elements.shape), dtype=torch.int8, device=elements.device)
    grid = (triton.cdiv(size, BLOCK), len(low))
    _keep[grid](elements, low.contiguous(), high.contiguous(), kept, size, limit, BLOCK=BLOCK)
    return kept.view(torch.bool)
