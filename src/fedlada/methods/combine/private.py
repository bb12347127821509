"""Differential privacy of whole clients: clip what each sends, add noise once to the sum."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from fedlada.methods.combine.combiner import Combiner, Coming, Norms
from fedlada.methods.state import Upload, map_tensors, named_tensors
from fedlada.methods.validation import count, positive


@dataclass(frozen=True)
class Private(Combiner):
    """(sum_i min(1, `clip` / ||u_i||) u_i + noise) / n, where u_i is all that client i sends and n is public.

    The norm goes over the delta and every extra vector together. Each coordinate's noise is normal with a standard
    deviation of `noise_multiplier` * `clip`; n is the number of clients that a round has on average, not the number
    that came. Clients count alike.

    Give `noise_multiplier`, or `epsilon` and `delta`: a run then solves for the noise that spends `epsilon` over its
    rounds. With both, the run stops before it would spend more than `epsilon`.
    """

    clip: float
    """The longest upload that counts whole."""
    noise_multiplier: float | None = field(default=None, kw_only=True)
    epsilon: float | None = field(default=None, kw_only=True)
    """The most that the run may spend."""
    delta: float = field(default=1e-6, kw_only=True)
    """The probability with which `epsilon` may not hold; take far less than one over the number of clients."""
    scales: Mapping[str, float] = field(default_factory=dict, kw_only=True)
    """Factors on vectors before they are clipped and get noise, undone behind it: `{"v": 100.0}`; 1 where not named.

    They say how much of `clip` each vector may use. They must not depend on data.
    """
    noise_cohort: int | None = field(default=None, kw_only=True)
    """A device of simulations, no privacy of the run itself: noise as if so many clients took part in a round."""
    noise_population: int | None = field(default=None, kw_only=True)
    """With `noise_cohort`: out of so many clients, each drawn by a coin; by default as many as there are."""

    def __post_init__(self) -> None:
        positive("clip", self.clip)
        if self.noise_multiplier is None and self.epsilon is None:
            raise ValueError("Private needs noise_multiplier, or epsilon to solve for it")
        for name in ("noise_multiplier", "epsilon"):
            if getattr(self, name) is not None:
                positive(name, getattr(self, name))
        positive("delta", self.delta)
        if self.delta >= 1:
            raise ValueError(f"delta must be in (0, 1), got {self.delta}")
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
        raise ValueError("Private draws its noise in a round: take simulate or server_app, or call for_round first")

    def scale_of(self, name: str) -> float:
        """The factor on the vector of that name, which `scales` may have without its place."""
        return float(self.scales.get(name, self.scales.get(name.rpartition(".")[2], 1.0)))


@dataclass(frozen=True)
class _Release(Combiner):
    """The one noisy sum of a round."""

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
            raise ValueError("Private counts every client alike: take weights='uniform' with it")
        if total is None:
            raise ValueError("Private needs the shape of an upload: where nobody came, give one of zeros")
        released = iter([self._released(name, vector) for name, vector in named_tensors(total)])
        return map_tensors(lambda _: next(released), total)

    def _clipped(self, upload: Upload) -> Upload:
        """An upload in its scales, its norm at most `clip`; a copy."""
        scaled = [(vector, self.private.scale_of(name)) for name, vector in named_tensors(upload)]
        norms = [scale * torch.linalg.vector_norm(vector, dtype=torch.float64) for vector, scale in scaled]
        # Nothing waits for a GPU here. A norm of zero gives infinity, which is cut to one. In float64, because a scaled
        # vector may be too large for its own numbers, and a tiny factor too small.
        factor = (self.private.clip / torch.linalg.vector_norm(torch.stack(norms))).clamp(max=1.0)
        order = iter([(vector.double() * (scale * factor)).to(vector.dtype) for vector, scale in scaled])
        return map_tensors(lambda _: next(order), upload)

    def _released(self, name: str, total: Tensor) -> Tensor:
        """The noisy mean of one vector; what must be positive is at least the deviation of its noise."""
        private, expected, scale = self.private, self.coming.expected, self.private.scale_of(name)
        assert private.noise_multiplier is not None, "a run solves for the noise before its first round"
        deviation = private.noise_multiplier * private.clip
        if private.noise_cohort is not None:
            deviation *= expected / private.noise_cohort
        mean = total.add_(self.coming.normal(name, total), alpha=deviation).div_(expected * scale)
        # A value below its noise cannot be told from zero, and a method that divides by it would explode.
        return mean.clamp_(min=deviation / (expected * scale)) if name in self.coming.positive else mean
