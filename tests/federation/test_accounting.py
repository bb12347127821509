"""Epsilon is dp-accounting's own, and pfl's for its published setting; the noise is normal."""

from __future__ import annotations

import pytest
import torch
from fedlada.cohorts import Bernoulli, Everyone, FixedSize, Scheduled
from fedlada.combine import Private

from fedlada.federation.accounting import BLOCK, INTERVAL, Accountant, Sampling, least_noise, sampling_of, with_noise
from fedlada.federation.gaussian import from_seed, from_system

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def library():
    """Takes a second to import: here and not where all tests are collected."""
    import dp_accounting
    import dp_accounting.pld
    import dp_accounting.rdp

    return dp_accounting


@pytest.fixture(scope="module")
def by_events(library):
    """Through the library's own accountant, which composes all rounds at once."""

    def epsilon(event, rounds, delta, relation=library.NeighboringRelation.ADD_OR_REMOVE_ONE):
        return library.pld.PLDAccountant(relation, INTERVAL).compose(event, rounds).get_epsilon(delta)

    return epsilon


class ClientZero(Bernoulli):
    """A subclass may draw in any way."""

    def draw(self, num_clients, seed, round):
        return [0]


class FirstTwo(FixedSize):
    def draw(self, num_clients, seed, round):
        return [0, 1]


@pytest.mark.parametrize("rounds", [1, 40, BLOCK, 100])
def test_poisson_sampling_equals_the_library(rounds, library, by_events):
    ours = Accountant(Sampling(50, 1000, by_coins=True), 1.2, 1e-5).epsilon(rounds)
    theirs = by_events(library.PoissonSampledDpEvent(0.05, library.GaussianDpEvent(1.2)), rounds, 1e-5)
    assert ours == pytest.approx(theirs, abs=1e-6)


def test_full_participation_equals_the_library(library, by_events):
    ours = Accountant(Sampling(10, 10, by_coins=False), 4.0, 1e-5).epsilon(20)
    assert ours == pytest.approx(
        by_events(library.GaussianDpEvent(4.0), 20, 1e-5), rel=1e-3
    )  # theirs is one mechanism, ours twenty


def test_a_fixed_size_equals_the_library_and_replaces_a_client(library, by_events):
    replaced = library.NeighboringRelation.REPLACE_ONE
    ours = Accountant(Sampling(10, 100, by_coins=False), 6.0, 1e-5).epsilon(30)
    event = library.TruncatedSubsampledGaussianDpEvent(100, 1.0, 10, 6.0)
    assert ours == pytest.approx(by_events(event, 30, 1e-5, replaced), abs=1e-6)
    # Another proof, by Rényi divergences with twice the clip as the sensitivity, must not say less by far.
    event = library.SampledWithoutReplacementDpEvent(100, 10, library.GaussianDpEvent(6.0 / 2))
    other = library.rdp.RdpAccountant(neighboring_relation=replaced).compose(event, 30).get_epsilon(1e-5)
    assert 0.5 * other < ours < other
    coins = Accountant(Sampling(10, 100, by_coins=True), 6.0, 1e-5).epsilon(30)
    assert ours > 2 * coins  # who is replaced moves the sum by twice the clip


@pytest.mark.slow
def test_the_noise_of_the_published_setting_of_pfl(library):
    """Clip 0.4, epsilon 2, delta 1e-6, 1500 rounds of 1000 clients out of a million: pfl's search, to its tolerance."""
    private = Private(0.4, epsilon=2.0, delta=1e-6, noise_cohort=1000, noise_population=10**6)
    found = with_noise(private, FixedSize(50), 1000, 1500).noise_multiplier
    assert found == pytest.approx(0.616145, rel=1e-3)  # what its PLDPrivacyAccountant finds, at an interval of 1e-4
    theirs = library.pld.privacy_loss_distribution.from_gaussian_mechanism(
        standard_deviation=found, sensitivity=1, sampling_prob=1000 / 1e6, value_discretization_interval=1e-3
    )
    assert 1.995 < theirs.self_compose(1500).get_epsilon_for_delta(1e-6) <= 2.0


def test_rounds_cost_the_same_in_any_order():
    sampling = Sampling(5, 20, by_coins=True)
    forwards, resumed = Accountant(sampling, 4.0, 1e-4), Accountant(sampling, 4.0, 1e-4)
    in_order = [forwards.epsilon(round) for round in range(1, 2 * BLOCK + 4)]
    assert resumed.epsilon(BLOCK + 10) == in_order[BLOCK + 9]  # to the bit: a row of a resumed run
    assert resumed.epsilon(3) == in_order[2]
    assert in_order == sorted(in_order)


@pytest.mark.slow
@pytest.mark.parametrize("sampling", [Sampling(10, 200, True), Sampling(10, 50, False), Sampling(8, 8, True)])
def test_the_solved_noise_spends_the_target_and_hardly_less(sampling):
    noise = least_noise(sampling, 5, 1.5, 1e-3)
    assert 1.5 * 0.995 < Accountant(sampling, noise, 1e-3).epsilon(5) <= 1.5


@pytest.mark.parametrize("size", [3, 8])
def test_a_fixed_size_needs_no_more_noise_than_without_sampling(size):
    """Who is replaced moves each sum by at most twice the clip: exact for Gaussian noise."""
    noise = least_noise(Sampling(size, 10, by_coins=False), 50, 8.0, 1e-4)
    everybody = least_noise(Sampling(10, 10, by_coins=True), 50, 8.0, 1e-4)
    if size == 3:
        assert noise < 1.3 * everybody
    else:
        assert noise == pytest.approx(2 * everybody, rel=1e-4)


@pytest.mark.parametrize(
    ("sampling", "rounds", "epsilon", "delta"),
    [
        (Sampling(1, 10**6, True), 1, 1.0, 1e-6),  # nobody takes part with a probability of more than delta
        (Sampling(10, 1000, True), 100, 0.001, 1e-6),
        (Sampling(10, 10, True), 10**4, 0.001, 1e-12),
        (Sampling(10, 1000, True), 100, 1.0, 1e-12),
    ],
)
def test_noise_is_found_at_the_edges(sampling, rounds, epsilon, delta):
    noise = least_noise(sampling, rounds, epsilon, delta)
    assert 0.05 <= noise < 1e9
    assert Accountant(sampling, noise, delta).epsilon(rounds) <= epsilon


def test_what_is_sampled_how():
    plain, imagined = Private(1.0, noise_multiplier=1.0), Private(1.0, noise_multiplier=1.0, noise_cohort=10)
    assert sampling_of(plain, FixedSize(5), 20) == Sampling(5.0, 20, by_coins=False)
    assert sampling_of(plain, Bernoulli(0.25), 20) == Sampling(5.0, 20, by_coins=True)
    assert sampling_of(plain, Everyone(), 20).is_everyone
    assert sampling_of(imagined, FixedSize(5), 20) == Sampling(10, 20, by_coins=True)
    for cohorts in (ClientZero(0.01), FirstTwo(2)):
        with pytest.raises(ValueError, match=f"privacy of {type(cohorts).__name__} cohorts is not known"):
            sampling_of(plain, cohorts, 20)
    with pytest.raises(ValueError, match="privacy of Scheduled cohorts is not known: take FixedSize"):
        sampling_of(plain, Scheduled([[0], [1]]), 20)
    with pytest.raises(ValueError, match="noise_cohort is 10, but noise_population only 8"):
        sampling_of(imagined, FixedSize(5), 8)


@pytest.mark.parametrize("source", [from_seed(7, 3), from_system], ids=["seed", "system"])
def test_the_noise_is_standard_normal(source):
    from scipy import stats

    numbers = source("delta", torch.empty(200_001, dtype=torch.float64)).numpy()
    assert stats.kstest(numbers, "norm").pvalue > 1e-4
    assert abs(numbers.std() - 1) < 0.01
    assert abs(stats.kurtosis(numbers)) < 0.1
    assert abs((numbers[:100_000] * numbers[100_000:200_000]).mean()) < 0.02  # both halves come from the same words
    assert abs((numbers[:-1] * numbers[1:]).mean()) < 0.02


def test_noise_depends_on_the_whole_key_alone():
    like = torch.empty(64)
    first = from_seed(1, 1)("delta", like)
    assert torch.equal(first, from_seed(1, 1)("delta", torch.empty(64)))
    for other in (from_seed(2, 1)("delta", like), from_seed(1, 2)("delta", like), from_seed(1, 1)("extra.0.v", like)):
        assert not torch.equal(first, other)
    assert not torch.equal(from_system("delta", like), from_system("delta", like))
