"""Combiners as users write them, which read all weights before the first upload."""

from __future__ import annotations

from dataclasses import dataclass

from fedlada import Combiner, Upload
from fedlada.methods.state import map_tensors, named_tensors


@dataclass(frozen=True)
class TotalFirst(Combiner):
    """The weighted mean."""

    def combine(self, uploads, weights=None):
        total = sum(weights)
        uploads = list(uploads)
        parts = [[w / total * v for _, v in named_tensors(u)] for u, w in zip(uploads, weights, strict=True)]
        sums = iter([sum(vectors) for vectors in zip(*parts, strict=True)])
        return map_tensors(lambda _: next(sums), Upload(uploads[0].delta, uploads[0].extra))


@dataclass(frozen=True)
class LinearTotalFirst(Combiner):
    """The same, declared linear."""

    is_linear = True

    def combine(self, uploads, weights=None):
        return TotalFirst().combine(uploads, weights)
