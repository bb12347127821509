"""Privacy accounting for noisy sums, with Google's dp-accounting (the extra `privacy`)."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cache, cached_property, lru_cache, partial
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
        if self.is_everyone:
            return "adding or removing one client; every round has all clients; exact for Gaussian noise"
        if self.by_coins:
            return "adding or removing one client; a coin for each client; PLD accountant"
        return "replacing one client by any other; a fixed number of clients without replacement; PLD accountant"

    @property
    def moves_by(self) -> float:
        """The distance, in clips, by which one client can move the sum of a round in which it takes part."""
        return 1.0 if self.is_everyone or self.by_coins else 2.0


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
    if type(cohorts) in (Everyone, FixedSize, Bernoulli):  # a subclass may draw in any way
        if isinstance(cohorts, FixedSize):
            return float(cohorts.size)
        if not isinstance(cohorts, Bernoulli):
            return float(num_clients)
        if cohorts.probability == 0:
            raise ValueError("Private needs clients: the probability of the cohorts is 0")
        return cohorts.probability * num_clients
    raise ValueError(
        f"the privacy of {type(cohorts).__name__} cohorts is not known: take FixedSize, Bernoulli or Everyone"
    )


class Accountant:
    """Computes the epsilon of rounds that each release one noisy sum: the smaller of two upper bounds.

    One counts on the sampling of clients, by the composed distribution of the privacy loss. The other is exact for
    Gaussian noise and a client that takes part in every round.
    """

    def __init__(self, sampling: Sampling, noise_multiplier: float, delta: float) -> None:
        self.sampling, self.noise_multiplier, self.delta = sampling, noise_multiplier, delta
        self._known: dict[int, float] = {}
        self._loss: Any = None
        self._rounds = 0
        """Number of rounds composed in `_loss`."""

    def epsilon(self, rounds: int) -> float:
        """Epsilon spent by this many rounds; infinite with almost no noise."""
        if rounds == 0:
            return 0.0
        if self.noise_multiplier < LEAST:
            return math.inf
        if _is_never_drawn(self.sampling, self.delta, rounds):
            return 0.0
        exact = _without_sampling(self.sampling, self.noise_multiplier, self.delta, rounds)
        return exact if self.sampling.is_everyone else min(exact, self._composed(rounds))

    @cached_property
    def _one_round(self) -> Any:
        return _loss_of_one_round(self.sampling, self.noise_multiplier)

    def _composed(self, rounds: int) -> float:
        if rounds not in self._known:
            begin = rounds // BLOCK * BLOCK
            if not begin <= self._rounds <= rounds or self._rounds == 0:
                self._loss, self._rounds = self._one_round.self_compose(begin) if begin else None, begin
                if begin:
                    self._known[begin] = self._spent()
            while self._rounds < rounds:
                self._loss = self._one_round if self._loss is None else self._loss.compose(self._one_round)
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

    # Without sampling this noise is enough; sampling can only lower it.
    most: float = sampling.moves_by * math.sqrt(rounds) * _library().get_sigma_gaussian(epsilon, delta)
    high = max(most, LEAST)
    if _is_never_drawn(sampling, delta, rounds):
        high = LEAST
    elif not sampling.is_everyone and most > LEAST:

        def spent(noise_multiplier: float, coarser: int = 1) -> float:
            loss = _loss_of_one_round(sampling, noise_multiplier, coarser)
            return float(loss.self_compose(rounds).get_epsilon_for_delta(delta))

        # Each step takes a tenth of the time in a coarser discretisation, which spends a little more.
        guess = _solved(cache(partial(spent, coarser=10)), epsilon, guess=min(1.0, most), factor=2.0, most=most)
        high = _solved(cache(spent), epsilon, guess=guess, factor=1.02, most=most)
    digits = 4 - math.floor(math.log10(high))
    found: float = math.ceil(high * 10**digits) / 10**digits
    while (
        accountant(sampling, found, delta).epsilon(rounds) > epsilon
    ):  # another order of summation changes the last bit
        found *= 1 + CLOSE / 100
    return found


def _solved(spent: Callable[[float], float], epsilon: float, guess: float, factor: float, most: float) -> float:
    """A noise multiplier up to `most` that spends at most epsilon and almost all of it; `most` if there is none."""
    high = guess
    while spent(high) > epsilon:
        if high >= most:
            return most
        high = min(high * factor, most)
    enough = epsilon * (1 - CLOSE)
    low = high
    while spent(low) < enough and low > LEAST:
        high, low = low, max(low / factor, LEAST)
    over, under = spent(low), spent(high)
    if enough <= over <= epsilon:
        return low
    # The curve is almost linear in logarithms: a few secant steps suffice, with bisection if they stay on one side.
    for number in range(40):
        if over <= epsilon or under >= enough:
            break
        bisects = number % 3 == 2 or under <= 0
        aim = 0.5 if bisects else math.log(over / (epsilon * (1 - CLOSE / 2))) / math.log(over / under)
        middle = low * (high / low) ** aim
        now = spent(middle)
        low, over, high, under = (low, over, middle, now) if now <= epsilon else (middle, now, high, under)
    return low if over <= epsilon else high


def with_noise(private: Private, cohorts: Cohorts, num_clients: int, rounds: int) -> Private:
    """The same combiner with the noise that spends its epsilon over these rounds, unless its noise is given."""
    if private.noise_multiplier is not None:
        return private
    assert private.epsilon is not None
    sampling = sampling_of(private, cohorts, num_clients)
    return replace(private, noise_multiplier=least_noise(sampling, rounds, private.epsilon, private.delta))


def _is_never_drawn(sampling: Sampling, delta: float, rounds: int) -> bool:
    """Whether a client takes part in any of these rounds with a probability of at most delta."""
    return sampling.by_coins and rounds * sampling.cohort <= delta * sampling.clients


def _library() -> Any:
    try:
        import dp_accounting
        import dp_accounting.pld
    except ImportError:
        raise missing("Private needs dp-accounting", "privacy") from None
    return dp_accounting


def _without_sampling(sampling: Sampling, noise_multiplier: float, delta: float, rounds: int) -> float:
    """The exact epsilon for a client that takes part in every round, to 1e-12 and rounded up."""
    deviation = noise_multiplier / (sampling.moves_by * math.sqrt(rounds))
    return float(_library().get_epsilon_gaussian(deviation, delta)) * (1 + 1e-9)


def _loss_of_one_round(sampling: Sampling, noise_multiplier: float, coarser: int = 1) -> Any:
    """The distribution of one round's privacy loss."""
    library = _library()
    losses, relations = library.pld.privacy_loss_distribution, library.NeighboringRelation
    interval = coarser * max(INTERVAL, 1e-5 / noise_multiplier**2)
    if sampling.by_coins:
        return losses.from_gaussian_mechanism(
            standard_deviation=noise_multiplier,
            sampling_prob=sampling.cohort / sampling.clients,
            value_discretization_interval=interval,
            neighboring_relation=relations.ADD_OR_REMOVE_ONE,
        )
    # A fixed number without replacement: replacing one client moves the sum by up to twice the clip.
    return losses.from_truncated_subsampled_gaussian_mechanism(
        dataset_size=sampling.clients,
        sampling_probability=1.0,
        truncated_batch_size=int(sampling.cohort),
        noise_multiplier=noise_multiplier,
        value_discretization_interval=interval,
        neighboring_relation=relations.REPLACE_ONE,
    )
