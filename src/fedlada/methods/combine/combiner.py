"""A combiner: many uploads in, one upload out."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from fedlada.methods.state import Upload

Norms = Mapping[str, Sequence[float]]
"""The norm of each vector of the uploads of a round, by the vector's name: one number a client."""


@dataclass(frozen=True)
class Coming:
    """A round before it is run, as far as a combiner may know it."""

    expected: float
    """Clients that a round has on average."""
    normal: Callable[[str, Tensor], Tensor]
    """Standard normal numbers of this round for the vector of that name, in its shape, precision and place."""
    positive: frozenset[str] = frozenset()
    """Names of the vectors that hold positive numbers alone, as `extra.0.v`."""


class Combiner(ABC):
    """Turns the uploads of a cohort into the one that the server steps with. Subclasses are frozen dataclasses."""

    is_linear: ClassVar[bool] = False
    """Whether weighted combinations of shares of the cohort combine to that of the whole, as means do: several
    processes then send one upload each instead of all."""
    measures_norms: ClassVar[bool] = False
    """Whether the norms of a round's uploads are to be measured and stored with it."""

    @abstractmethod
    def combine(self, uploads: Iterable[Upload], weights: Sequence[float] | None = None) -> Upload:
        """One upload from those of the clients, in the order of their numbers, their vectors in the model's order.

        Uploads may come from a generator, and each is valid until the next is asked for. `weights` may grow while
        uploads are taken: the weight of an upload is there when the upload is.
        """

    def check(self, cohort_size: int) -> None:  # noqa: B027
        """Refuse cohorts that are too small by plan; a round in which clients are lost or refused must go on."""

    def for_round(self, earlier: Sequence[Norms], coming: Coming | None = None) -> Combiner:
        """The combiner of the coming round, from the norms of earlier ones where they are measured."""
        return self

    def outliers(self, norms: Norms) -> list[int]:
        """The places in a round's uploads of those that were not taken as they came."""
        return []
