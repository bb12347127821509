"""Attention written out: for dropout from a counter, and for vmap, which has no rule for torch's fused kernels."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar

import torch
from torch import Tensor
from torch.nn.modules import transformer

from fedlada.engines.tracing import ForAllThreads

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


@contextmanager
def masks_as_given() -> Iterator[None]:
    """Let torch's encoders use the mask that they are given, in this thread.

    Otherwise they look whether it is the causal one, which waits for the GPU, and a CUDA graph cannot wait.
    """
    if not hasattr(transformer, "_detect_is_causal_mask"):  # another torch
        yield
        return
    token = _AS_GIVEN.set(True)
    try:
        with _MASKS.used():
            yield
    finally:
        _AS_GIVEN.reset(token)


@contextmanager
def _not_looked_at() -> Iterator[None]:
    own = transformer._detect_is_causal_mask

    def is_causal(mask: Tensor | None, is_causal: bool | None = None, size: int | None = None) -> bool:
        return is_causal is True if _AS_GIVEN.get() else own(mask, is_causal, size)

    transformer._detect_is_causal_mask = is_causal
    try:
        yield
    finally:
        transformer._detect_is_causal_mask = own


_AS_GIVEN = ContextVar("masks_as_given", default=False)
_MASKS = ForAllThreads(_not_looked_at)


def _masked_softmax(scores: Tensor, mask: Tensor) -> Tensor:
    """The attention weights; zero in a fully masked row, as in torch."""
    scores = scores.masked_fill(~mask, -torch.inf) if mask.dtype == torch.bool else scores + mask
    sees_nothing = (scores == -torch.inf).all(dim=-1, keepdim=True)
    return scores.masked_fill(sees_nothing, 0.0).softmax(dim=-1).masked_fill(sees_nothing, 0.0)
