"""The interface of a combiner: many uploads in, one upload out."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from fedlada.methods.state import Upload

Norms = Mapping[str, Sequence[float]]
"""The norm of each vector of the uploads of a round, by the vector's name: one number per client."""


@dataclass(frozen=True)
class Coming:
    """Facts about the coming round that a combiner may use."""

    expected: float
    """The expected number of clients in a round."""
    normal: Callable[[str, Tensor], Tensor]
    """Draws this round's standard normal noise for the vector of that name, in its shape, dtype and device."""
    positive: frozenset[str] = frozenset()
    """Names of the vectors that must stay positive, such as `extra.0.v`."""


class Combiner(ABC):
    """Combines the uploads of a cohort into the one that the server steps with. Subclasses are frozen dataclasses."""

    is_linear: ClassVar[bool] = False
    """Whether weighted combinations of shares of the cohort combine to that of the whole, as means do: several
    processes then send one upload each instead of all."""
    streams: ClassVar[bool] = False
    """Declares that `combine` takes each upload before its weight, and copies what it keeps of it.

    Engines then hold one upload at a time; the uploads come from a generator, and `weights` grows with them. Subclasses
    do not inherit the declaration."""
    weights_equally: ClassVar[bool] = False
    """Whether unequal weights are refused."""
    measures_norms: ClassVar[bool] = False
    """Whether the norms of a round's uploads must be measured and stored."""

    @abstractmethod
    def combine(self, uploads: Iterable[Upload], weights: Sequence[float] | None = None) -> Upload:
        """One upload from those of the clients, in the order of their numbers, their vectors in the model's order.

        Each upload has its weight in `weights`, which need not add up to one. Without `weights` all count the same.
        """

    @classmethod
    def declares(cls, what: str) -> bool:
        """Whether this very class declares `is_linear` or `streams`: a subclass may combine in another way."""
        return bool(vars(cls).get(what, False))

    def check(self, cohort_size: int) -> None:  # noqa: B027
        """Refuse planned cohorts that are too small. A round that loses clients must still be combined."""

    def for_round(self, earlier: Sequence[Norms], coming: Coming | None = None) -> Combiner:
        """The combiner of the coming round, given the norms of earlier rounds if they are measured."""
        return self

    def outliers(self, norms: Norms) -> list[int]:
        """Indices of the uploads that were clipped, trimmed or left out in a round."""
        return []
