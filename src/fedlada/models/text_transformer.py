"""A small transformer that classifies texts."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn


class Block(nn.Module):
    """Pre-norm attention and a two-layer MLP, each with a residual connection."""

    def __init__(self, width: int, num_heads: int, causal: bool = False) -> None:
        super().__init__()
        self.num_heads, self.causal = num_heads, causal
        self.norm1 = nn.LayerNorm(width)
        self.qkv = nn.Linear(width, 3 * width)
        self.out = nn.Linear(width, width)
        self.norm2 = nn.LayerNorm(width)
        self.net = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))

    def forward(self, x: Tensor) -> Tensor:
        """Self-attention over all positions, or over those up to each position's own, then the MLP."""
        heads = self.qkv(self.norm1(x)).unflatten(-1, (3, self.num_heads, -1)).transpose(-4, -2)
        query, key, value = heads.unbind(-3)
        # Written out, so that it can be vectorised over clients: torch.func has no rule for the fused kernel.
        scores = query @ key.transpose(-2, -1) / query.shape[-1] ** 0.5
        if self.causal:
            later = torch.ones(scores.shape[-2:], dtype=torch.bool, device=scores.device).triu(1)
            scores = scores.masked_fill(later, -torch.inf)
        mixed = scores.softmax(dim=-1) @ value
        x = x + self.out(mixed.transpose(-3, -2).flatten(-2))
        result: Tensor = x + self.net(self.norm2(x))
        return result


class TextTransformer(nn.Module):
    """See `text_transformer`."""

    def __init__(
        self, num_classes: int, length: int, vocabulary: int, width: int, depth: int, num_heads: int, causal: bool
    ) -> None:
        super().__init__()
        self.symbols = nn.Embedding(vocabulary, width)
        self.places = nn.Parameter(torch.randn(length, width) * 0.02)
        self.blocks = nn.Sequential(*(Block(width, num_heads, causal) for _ in range(depth)))
        self.norm = nn.LayerNorm(width)
        self.classify = nn.Linear(width, num_classes)

    def forward(self, x: Tensor) -> Tensor:
        """The logits, from the last position."""
        x = self.blocks(self.symbols(x) + self.places)
        scores: Tensor = self.classify(self.norm(x[..., -1, :]))
        return scores


def text_transformer(
    num_classes: int = 128,
    *,
    input_shape: Sequence[int] = (32,),
    vocabulary: int = 128,
    width: int = 64,
    depth: int = 2,
    num_heads: int = 4,
    causal: bool = False,
) -> TextTransformer:
    """A transformer over token indices below `vocabulary`, such as characters.

    With `causal` a position attends to itself and to those before it, as in a language model.
    """
    if len(input_shape) != 1:
        raise ValueError(f"text_transformer needs sequences of one length, got inputs of shape {tuple(input_shape)}")
    if width % num_heads:
        raise ValueError(f"width must be a multiple of num_heads, got {width} and {num_heads}")
    return TextTransformer(num_classes, input_shape[0], vocabulary, width, depth, num_heads, causal)
