"""Client sampling: which clients take part in a round, and which of them fail."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from operator import index
from typing import ClassVar

import numpy as np
import torch

from fedlada.federation.randomness import Words, bits, uniform, words
from fedlada.methods.validation import count
from fedlada.methods.validation import probability as check_probability


class Cohorts(ABC):
    """Samples the clients of a round. A class of your own overrides `draw`."""

    @abstractmethod
    def draw(self, num_clients: int, seed: int, round: int) -> Sequence[int]:
        """The clients selected for this round: indices below `num_clients`, each once, in any order."""

    def of_round(self, num_clients: int, seed: int, round: int) -> list[int]:
        """The clients of a round in the order of their indices, checked: `draw` may be a user's own."""
        return _checked(self.draw(num_clients, seed, round), num_clients, round)

    def check(self, num_clients: int) -> None:
        """Refuse impossible cohorts before the first round."""
        self.of_round(num_clients, 0, 1)


def _checked(drawn: object, num_clients: int, round: int) -> list[int]:
    try:
        own: list[object] = list(drawn)  # type: ignore[call-overload]
        if any(isinstance(one, bool | np.bool_) or getattr(one, "dtype", None) == torch.bool for one in own):
            raise TypeError
        cohort = sorted(map(index, own))  # type: ignore[arg-type]
    except TypeError:
        raise ValueError(f"the cohort of round {round} must be a list of clients' indices, got {drawn!r}") from None
    if cohort and not 0 <= cohort[0] <= cohort[-1] < num_clients:
        raise ValueError(f"the cohort of round {round} names clients outside 0..{num_clients - 1}: {cohort}")
    if twice := [one for one, other in pairwise(cohort) if one == other]:
        raise ValueError(f"the cohort of round {round} names client {twice[0]} more than once: {cohort}")
    return cohort


@dataclass(frozen=True)
class Everyone(Cohorts):
    """All clients in every round."""

    is_pure: ClassVar[bool] = True

    def draw(self, num_clients: int, seed: int, round: int) -> list[int]:
        return list(range(num_clients))


def smallest(numbers: Words, size: int) -> list[int]:
    """The places of the smallest numbers, in ascending order; the first of equals. Without a sort of all numbers."""
    limit = np.partition(numbers, size - 1)[size - 1]
    below = np.flatnonzero(numbers < limit)
    equal = np.flatnonzero(numbers == limit)[: size - len(below)]
    return sorted([*below.tolist(), *equal.tolist()])


@dataclass(frozen=True)
class FixedSize(Cohorts):
    """A fixed number of clients, drawn uniformly without replacement."""

    is_pure: ClassVar[bool] = True

    size: int

    def __post_init__(self) -> None:
        count("cohort_size", self.size)

    def check(self, num_clients: int) -> None:
        # Nothing is drawn: before the data are read, the number of clients may be any.
        if self.size > num_clients:
            raise ValueError(f"cohort_size is {self.size}, but there are only {num_clients} clients")

    def draw(self, num_clients: int, seed: int, round: int) -> list[int]:
        self.check(num_clients)
        return smallest(words(bits(seed, "cohort", round), num_clients), self.size)


@dataclass(frozen=True)
class Bernoulli(Cohorts):
    """Independent sampling of each client, as in the authors' simulator: the size varies and may be zero."""

    is_pure: ClassVar[bool] = True

    probability: float

    def __post_init__(self) -> None:
        check_probability("probability", self.probability)

    def draw(self, num_clients: int, seed: int, round: int) -> list[int]:
        return np.flatnonzero(uniform(bits(seed, "cohort", round), num_clients) < self.probability).tolist()


@dataclass(frozen=True)
class Scheduled(Cohorts):
    """A given list of cohorts, one per round; after the last it starts again."""

    is_pure: ClassVar[bool] = True

    rounds: Sequence[Sequence[int]]

    def __post_init__(self) -> None:
        if len(self.rounds) == 0:
            raise ValueError("the schedule of cohorts is empty")

    def draw(self, num_clients: int, seed: int, round: int) -> Sequence[int]:
        return self.rounds[(round - 1) % len(self.rounds)]

    def check(self, num_clients: int) -> None:
        for round in range(1, len(self.rounds) + 1):
            self.of_round(num_clients, 0, round)


@dataclass(frozen=True, kw_only=True)
class Unreliable:
    """Simulated failures: dropouts and stragglers."""

    is_pure: ClassVar[bool] = True

    dropout: float = 0.0
    """Probability that a client's answer is lost."""
    stragglers: float = 0.0
    """Probability that a client stops early, after a uniform share of its steps (at least one)."""

    def __post_init__(self) -> None:
        check_probability("dropout", self.dropout)
        check_probability("stragglers", self.stragglers)

    def answers(self, seed: int, round: int, client: int) -> bool:
        """Whether this client's answer arrives."""
        return self.dropout == 0 or bool(uniform(bits(seed, "dropout", round, client), 1)[0] >= self.dropout)

    def steps_done(self, num_steps: int, seed: int, round: int, client: int) -> int:
        """How many of its steps this client takes."""
        if self.stragglers == 0:
            return num_steps
        late, share = uniform(bits(seed, "stragglers", round, client), 2)
        return max(1, math.floor(share * num_steps)) if late < self.stragglers and num_steps else num_steps
