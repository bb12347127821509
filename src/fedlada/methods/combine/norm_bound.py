"""Norm bounding: clip each client's upload before the mean."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import ClassVar

import torch
from torch import Tensor

from fedlada.methods.combine.combiner import Combiner, Coming, Norms
from fedlada.methods.combine.mean import average
from fedlada.methods.state import Upload, map_tensors, named_tensors
from fedlada.methods.validation import positive

WINDOW = 10
"""Past rounds whose norms set the bound."""


@dataclass(frozen=True, kw_only=True)
class NormBound(Combiner):
    """The mean of uploads whose vectors are scaled down to a bound where their norm exceeds it.

    Without `max_norm` each vector's bound is `factor` times the median of its norms in the last rounds (in the first
    round, of that round). The median is the lower of two middle values, so that one of two clients cannot raise it.
    While at most half of the clients are malicious, they cannot raise it far. Half of them can lower it, by sending
    next to nothing, and so slow the training down; zeros do not count.

    A first round with a single client has no other norm to compare with: that client is not bounded. `max_norm` is a
    bound known beforehand, the same for every vector and round; it covers the first round and cohorts of one.
    """

    streams: ClassVar[bool] = True
    measures_norms: ClassVar[bool] = True

    max_norm: float | None = None
    factor: float = 4.0

    def __post_init__(self) -> None:
        if self.max_norm is not None:
            positive("max_norm", self.max_norm)
        positive("factor", self.factor)

    def for_round(self, earlier: Sequence[Norms], coming: Coming | None = None) -> Combiner:
        if self.max_norm is not None or not any(earlier):
            return self
        seen: dict[str, list[Sequence[float]]] = {}
        for norms in earlier:
            for name, own in norms.items():  # a vector may be sent every few rounds
                seen.setdefault(name, []).append(own)
        return _Bounded(self._learned({name: [*chain(*own[-WINDOW:])] for name, own in seen.items()}))

    def combine(self, uploads: Iterable[Upload], weights: Sequence[float] | None = None) -> Upload:
        if self.max_norm is not None:
            return _Bounded({}, self.max_norm).combine(uploads, weights)
        every = [map_tensors(torch.clone, upload) for upload in uploads]
        return _Bounded(self._learned(norms_of(every))).combine(every, weights)

    def outliers(self, norms: Norms) -> list[int]:
        bounded = _Bounded(self._learned(norms)) if self.max_norm is None else _Bounded({}, self.max_norm)
        return bounded.outliers(norms)

    def _learned(self, norms: Norms) -> dict[str, float]:
        # Zeros, which any node may send, say nothing about the size of an update.
        positive_norms = {name: [one for one in own if one > 0] for name, own in norms.items()}
        return {name: self.factor * statistics.median_low(own) for name, own in positive_norms.items() if own}


@dataclass(frozen=True)
class _Bounded(Combiner):
    """The mean under known bounds, accumulated one upload at a time."""

    streams: ClassVar[bool] = True

    bounds: Mapping[str, float]
    for_all: float = math.inf

    def combine(self, uploads: Iterable[Upload], weights: Sequence[float] | None = None) -> Upload:
        def bounded() -> Iterator[Upload]:
            for upload in uploads:
                scaled = iter([self._scaled(name, vector) for name, vector in named_tensors(upload)])
                yield map_tensors(lambda _, scaled=scaled: next(scaled), upload)  # type: ignore[misc]

        return average(bounded(), weights)

    def outliers(self, norms: Norms) -> list[int]:
        return sorted({place for name, own in norms.items() for place, one in enumerate(own) if one > self._of(name)})

    def _scaled(self, name: str, vector: Tensor) -> Tensor:
        norm = float(torch.linalg.vector_norm(vector, dtype=torch.float64))
        return vector * (self._of(name) / norm) if norm > self._of(name) else vector

    def _of(self, name: str) -> float:
        return self.bounds.get(name, self.for_all)


def norms_of(uploads: Iterable[Upload]) -> dict[str, list[float]]:
    """The norm of each vector of each upload."""
    found: dict[str, list[float]] = {}
    for upload in uploads:
        for name, vector in named_tensors(upload):
            found.setdefault(name, []).append(float(torch.linalg.vector_norm(vector, dtype=torch.float64)))
    return found
