"""Client-level differential privacy: clip each upload, add noise once to the sum."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import ClassVar

import torch
from torch import Tensor

from fedlada.methods.combine.combiner import Combiner, Coming, Norms
from fedlada.methods.state import Upload, map_tensors, named_tensors
from fedlada.methods.validation import count, positive

MOST_NOISE = 1e9
"""Largest noise multiplier: nothing is left of the uploads long before."""
LARGEST_DEVIATION = 1e30
"""Of the noise: float32 holds it, and its sum over rounds."""


@dataclass(frozen=True)
class Private(Combiner):
    """(sum_i min(1, `clip` / ||u_i||) u_i + noise) / n, where u_i is all that client i sends and n is public.

    The norm goes over the delta and every extra vector together. Each coordinate's noise is normal with a standard
    deviation of `noise_multiplier` * `clip`; n is the expected number of clients in a round, not the number that took
    part. All clients have equal weight.

    Give `noise_multiplier`, or `epsilon` and `delta`: a run then solves for the noise that spends `epsilon` over its
    rounds. With both, the run stops before it would spend more than `epsilon`.
    """

    clip: float
    """Norm to which uploads are clipped."""
    noise_multiplier: float | None = field(default=None, kw_only=True)
    epsilon: float | None = field(default=None, kw_only=True)
    """Privacy budget of the run."""
    delta: float = field(default=1e-6, kw_only=True)
    """The probability with which `epsilon` may not hold; take far less than one over the number of clients."""
    scales: Mapping[str, float] = field(default_factory=dict, kw_only=True)
    """Factors on vectors before clipping and noise, undone afterwards: `{"v": 100.0}`; 1 by default.

    They set each vector's share of `clip`. They must not depend on data.
    """
    noise_cohort: int | None = field(default=None, kw_only=True)
    """For simulations only: noise as for a cohort of this size. The simulated run itself is less private."""
    noise_population: int | None = field(default=None, kw_only=True)
    """With `noise_cohort`: number of clients it is drawn from by Poisson sampling; by default all clients."""

    def __post_init__(self) -> None:
        positive("clip", self.clip)
        if self.noise_multiplier is None and self.epsilon is None:
            raise ValueError("Private needs noise_multiplier, or epsilon to solve for it")
        for name in ("noise_multiplier", "epsilon"):
            if getattr(self, name) is not None:
                positive(name, getattr(self, name))
        if (self.noise_multiplier or 0) > MOST_NOISE:
            raise ValueError(f"noise_multiplier must be at most {MOST_NOISE:g}, got {self.noise_multiplier}")
        if (self.noise_multiplier or 1) * self.clip > LARGEST_DEVIATION:
            raise ValueError(f"clip is too large for noise in its proportion: got {self.clip}")
        positive("delta", self.delta)
        if not 1e-12 <= self.delta < 1:
            raise ValueError(f"delta must be in [1e-12, 1), as less cannot be accounted for, got {self.delta}")
        for name, scale in self.scales.items():
            positive(f"scales[{name!r}]", scale)
        for name in ("noise_cohort", "noise_population"):
            if getattr(self, name) is not None:
                count(name, getattr(self, name))
        if self.noise_population is not None and self.noise_cohort is None:
            raise ValueError("noise_population belongs to noise_cohort: give both or neither")

    def for_round(self, earlier: Sequence[Norms], coming: Coming | None = None) -> Combiner:
        return self if coming is None else _Release(self, coming)

    def combine(self, uploads: Iterable[Upload], weights: Sequence[float] | None = None) -> Upload:
        raise ValueError("Private draws its noise per round: use simulate or server_app, or call for_round first")

    def scale_of(self, name: str) -> float:
        """The factor on the vector of that name; `scales` may name it with or without its position in the chain."""
        return float(self.scales.get(name, self.scales.get(name.rpartition(".")[2], 1.0)))


@dataclass(frozen=True)
class _Release(Combiner):
    """The noisy sum that one round releases."""

    streams: ClassVar[bool] = True

    private: Private
    coming: Coming

    def combine(self, uploads: Iterable[Upload], weights: Sequence[float] | None = None) -> Upload:
        total: Upload | None = None
        for upload in uploads:
            clipped = self._clipped(upload)
            if total is None:
                total = clipped
                continue
            for (_, so_far), (_, vector) in zip(named_tensors(total), named_tensors(clipped), strict=True):
                so_far.add_(vector)
        if weights is not None and len(set(weights)) > 1:
            raise ValueError("Private weights every client equally: use weights='uniform'")
        if total is None:
            raise ValueError("Private needs the shape of an upload: for an empty round, give an upload of zeros")
        released = iter([self._released(name, vector) for name, vector in named_tensors(total)])
        return map_tensors(lambda _: next(released), total)

    def _clipped(self, upload: Upload) -> Upload:
        """A scaled copy of an upload, clipped to norm `clip`."""
        scaled = [(vector, self.private.scale_of(name)) for name, vector in named_tensors(upload)]
        norms = [scale * torch.linalg.vector_norm(vector, dtype=torch.float64) for vector, scale in scaled]
        # No GPU synchronisation here. A norm of zero gives infinity, which is clamped to one. In float64, because
        # scaling can overflow the vector's own dtype, and a tiny factor can underflow it.
        factor = (self.private.clip / torch.linalg.vector_norm(torch.stack(norms))).clamp(max=1.0)
        order = iter([(vector.double() * (scale * factor)).to(vector.dtype) for vector, scale in scaled])
        return map_tensors(lambda _: next(order), upload)

    def _released(self, name: str, total: Tensor) -> Tensor:
        """The noisy mean of one vector; positive vectors are clamped to the standard deviation of the noise."""
        private, expected, scale = self.private, self.coming.expected, self.private.scale_of(name)
        assert private.noise_multiplier is not None, "a run solves for the noise before its first round"
        deviation = private.noise_multiplier * private.clip
        if private.noise_cohort is not None:
            deviation *= expected / private.noise_cohort
        mean = total.add_(self.coming.normal(name, total), alpha=deviation).div_(expected * scale)
        # A value below its noise is indistinguishable from zero, and a method that divides by it would diverge.
        return mean.clamp_(min=deviation / (expected * scale)) if name in self.coming.positive else mean
