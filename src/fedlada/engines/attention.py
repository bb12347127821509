"""Attention written out: for dropout from a counter, and for vmap, which has no rule for torch's fused kernels."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

Drop = Callable[[Tensor], Tensor]


def attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None = None,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
    drop: Drop | None = None,
) -> Tensor:
    """Compute what `F.scaled_dot_product_attention` computes; `drop` is applied to the weights."""
    if enable_gqa:
        key, value = (one.repeat_interleave(query.shape[-3] // one.shape[-3], dim=-3) for one in (key, value))
    scores = (query * (query.shape[-1] ** -0.5 if scale is None else scale)) @ key.transpose(-2, -1)
    if is_causal:
        allowed = torch.ones(scores.shape[-2:], dtype=torch.bool, device=scores.device).tril()
        scores = scores.masked_fill(~allowed, -torch.inf)
    weights = scores.softmax(dim=-1) if attn_mask is None else _masked_softmax(scores, attn_mask)
    return (weights if drop is None else drop(weights)) @ value


def _masked_softmax(scores: Tensor, mask: Tensor) -> Tensor:
    """The attention weights; zero in a fully masked row, as in torch."""
    scores = scores.masked_fill(~mask, -torch.inf) if mask.dtype == torch.bool else scores + mask
    sees_nothing = (scores == -torch.inf).all(dim=-1, keepdim=True)
    return scores.masked_fill(sees_nothing, 0.0).softmax(dim=-1).masked_fill(sees_nothing, 0.0)
