"""Privacy accounting for noisy sums, with Google's dp-accounting (the extra `privacy`)."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cache, lru_cache, partial
from typing import Any

from fedlada.federation.cohorts import Bernoulli, Cohorts, Everyone, FixedSize
from fedlada.methods.combine import Private
from fedlada.methods.extras import missing

INTERVAL = 1e-3
"""Discretisation of the privacy loss, rounded up. It is coarser for noise below a tenth of the clip."""
BLOCK = 64
"""Rounds composed one by one in a block: each stays cheap, and a resumed run computes the same bits."""
CLOSE = 1e-3
"""Fraction of epsilon that a solution may leave unspent."""
LEAST = 0.05
"""A smaller noise multiplier protects nobody, and its epsilon is not computed."""
MOST = 2.0**20
"""No larger noise multiplier is tried."""


@dataclass(frozen=True)
class Sampling:
    """The sampling of a round's clients, as needed for privacy accounting."""

    cohort: float
    """The expected number of clients in a round."""
    clients: int
    by_coins: bool
    """Whether clients are drawn independently (Poisson sampling), or a fixed number without replacement."""

    @property
    def is_everyone(self) -> bool:
        """Whether every round has all clients."""
        return self.cohort >= self.clients

    @property
    def words(self) -> str:
        """The adjacency relation, the sampling and the accountant, as text."""
        if self.is_everyone or self.by_coins:
            way = "every round has all clients" if self.is_everyone else "a coin for each client"
            return f"adding or removing one client; {way}; PLD accountant"
        return "replacing one client by any other; a fixed number of clients without replacement; PLD accountant"


def sampling_of(private: Private, cohorts: Cohorts, num_clients: int) -> Sampling:
    """The sampling for which the privacy of a run is accounted."""
    if private.noise_cohort is not None:
        population = private.noise_population or num_clients
        if private.noise_cohort > population:
            raise ValueError(f"noise_cohort is {private.noise_cohort}, but noise_population only {population}")
        return Sampling(private.noise_cohort, population, by_coins=True)
    return Sampling(expected_cohort(cohorts, num_clients), num_clients, by_coins=not isinstance(cohorts, FixedSize))


def expected_cohort(cohorts: Cohorts, num_clients: int) -> float:
    """The expected number of clients in a round; refuses cohorts that are not drawn at random."""
    if isinstance(cohorts, Everyone):
        return float(num_clients)
    if isinstance(cohorts, FixedSize):
        return float(cohorts.size)
    if isinstance(cohorts, Bernoulli):
        if cohorts.probability == 0:
            raise ValueError("Private needs clients: the probability of the cohorts is 0")
        return cohorts.probability * num_clients
    raise ValueError(
        f"the privacy of {type(cohorts).__name__} cohorts is not known: take FixedSize, Bernoulli or Everyone"
    )


class Accountant:
    """Computes the epsilon of rounds that each release one noisy sum."""

    def __init__(self, sampling: Sampling, noise_multiplier: float, delta: float) -> None:
        self.sampling, self.noise_multiplier, self.delta = sampling, noise_multiplier, delta
        self.one_round = _loss_of_one_round(sampling, noise_multiplier) if noise_multiplier >= LEAST else None
        self._known: dict[int, float] = {0: 0.0}
        self._loss: Any = None
        self._rounds = 0
        """Number of rounds composed in `_loss`."""

    def epsilon(self, rounds: int) -> float:
        """Epsilon spent by this many rounds; infinite with almost no noise."""
        if self.one_round is None:
            return math.inf
        if rounds not in self._known:
            begin = rounds // BLOCK * BLOCK
            if not begin <= self._rounds <= rounds or self._rounds == 0:
                self._loss, self._rounds = self.one_round.self_compose(begin) if begin else None, begin
                self._known[begin] = self._spent() if begin else 0.0
            while self._rounds < rounds:
                self._loss = self.one_round if self._loss is None else self._loss.compose(self.one_round)
                self._rounds += 1
                self._known[self._rounds] = self._spent()
        return self._known[rounds]

    def _spent(self) -> float:
        return float(self._loss.get_epsilon_for_delta(self.delta))


@lru_cache(maxsize=4)
def accountant(sampling: Sampling, noise_multiplier: float, delta: float) -> Accountant:
    """An accountant that several runs of this process may share."""
    return Accountant(sampling, noise_multiplier, delta)


@lru_cache(maxsize=64)
def least_noise(sampling: Sampling, rounds: int, epsilon: float, delta: float) -> float:
    """The smallest noise multiplier, slightly rounded up, for which these rounds spend at most epsilon."""

    def spent(noise_multiplier: float, coarser: int = 1) -> float:
        loss = _loss_of_one_round(sampling, noise_multiplier, coarser)
        return float(loss.self_compose(rounds).get_epsilon_for_delta(delta))

    # Each step takes a tenth of the time in a coarser discretisation, which spends a little more.
    guess = _solved(cache(partial(spent, coarser=10)), epsilon, guess=1.0, factor=2.0)
    if guess > MOST:
        raise ValueError(f"no noise is enough for epsilon {epsilon:g} and delta {delta:g} in {rounds} rounds")
    high = _solved(cache(spent), epsilon, guess=guess, factor=1.02)
    digits = 4 - math.floor(math.log10(high))
    found: float = math.ceil(high * 10**digits) / 10**digits
    while (
        accountant(sampling, found, delta).epsilon(rounds) > epsilon
    ):  # another order of summation changes the last bit
        found *= 1 + CLOSE / 100
    return found


def _solved(spent: Callable[[float], float], epsilon: float, guess: float, factor: float) -> float:
    """A noise multiplier that spends at most epsilon and almost all of it; above `MOST` if none does."""
    high = guess
    while spent(high) > epsilon:
        high *= factor
        if high > MOST:
            return high
    enough = epsilon * (1 - CLOSE)
    low = high
    while spent(low) < enough and low > LEAST:
        high, low = low, low / factor
    most, least = spent(low), spent(high)
    if enough <= most <= epsilon:
        return low
    # The curve is almost linear in logarithms: a few secant steps suffice, with bisection if they stay on one side.
    for number in range(40):
        if most <= epsilon or least >= enough:
            break
        aim = math.log(most / (epsilon * (1 - CLOSE / 2))) / math.log(most / least)
        middle = low * (high / low) ** (0.5 if number % 3 == 2 else aim)
        now = spent(middle)
        low, most, high, least = (low, most, middle, now) if now <= epsilon else (middle, now, high, least)
    return high


def with_noise(private: Private, cohorts: Cohorts, num_clients: int, rounds: int) -> Private:
    """The same combiner with the noise that spends its epsilon over these rounds, unless its noise is given."""
    if private.noise_multiplier is not None:
        return private
    assert private.epsilon is not None
    sampling = sampling_of(private, cohorts, num_clients)
    return replace(private, noise_multiplier=least_noise(sampling, rounds, private.epsilon, private.delta))


def _loss_of_one_round(sampling: Sampling, noise_multiplier: float, coarser: int = 1) -> Any:
    """The distribution of one round's privacy loss."""
    try:
        from dp_accounting import NeighboringRelation
        from dp_accounting.pld import privacy_loss_distribution as losses
    except ImportError:
        raise missing("Private needs dp-accounting", "privacy") from None
    interval = coarser * max(INTERVAL, 1e-5 / noise_multiplier**2)
    if sampling.is_everyone or sampling.by_coins:
        return losses.from_gaussian_mechanism(
            standard_deviation=noise_multiplier,
            sampling_prob=min(1.0, sampling.cohort / sampling.clients),
            value_discretization_interval=interval,
            neighboring_relation=NeighboringRelation.ADD_OR_REMOVE_ONE,
        )
    # A fixed number without replacement: replacing one client moves the sum by up to twice the clip.
    return losses.from_truncated_subsampled_gaussian_mechanism(
        dataset_size=sampling.clients,
        sampling_probability=1.0,
        truncated_batch_size=int(sampling.cohort),
        noise_multiplier=noise_multiplier,
        value_discretization_interval=interval,
        neighboring_relation=NeighboringRelation.REPLACE_ONE,
    )
