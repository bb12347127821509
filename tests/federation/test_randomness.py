"""Random numbers depend on their key alone."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from fedlada.federation.randomness import bits, generator, permutation, seed_generators, torch_seed, uniform


@given(seed=st.integers(-(2**63), 2**64), round=st.integers(0, 2**40), client=st.integers(0, 2**40))
def test_the_same_key_gives_the_same_numbers(seed, round, client):
    first = bits(seed, "batches", round, client).random_raw(5)
    bits(seed, "other", round, client).random_raw(100)
    assert (bits(seed, "batches", round, client).random_raw(5) == first).all()


@pytest.mark.parametrize("other", [(1, "a", 2, 3), (0, "b", 2, 3), (0, "a", 3, 3), (0, "a", 2, 4), (0, "a", 3, 2)])
def test_each_part_of_the_key_matters(other):
    assert bits(0, "a", 2, 3).random_raw() != bits(*other).random_raw()


def test_values_are_fixed_for_ever():
    """A change here changes every result that anyone has stored."""
    assert permutation(bits(0, "cohort", 1), 8).tolist() == [1, 3, 7, 4, 5, 6, 0, 2]
    assert torch_seed(7, "model", 3, 2) == 2902720309380885913
    assert uniform(bits(0, "dropout", 1, 2), 2).tolist() == [0.6719863527218871, 0.5132460082061866]


def test_permutations_are_uniform():
    """Each of the 6 orders of 3 about equally often (chi-square with 5 degrees of freedom, far beyond 1e-6)."""
    orders = [tuple(permutation(bits(0, "x", round), 3).tolist()) for round in range(3000)]
    counts = np.unique(orders, axis=0, return_counts=True)[1]
    assert len(counts) == 6
    assert ((counts - 500) ** 2 / 500).sum() < 40


def test_generator_draws_from_the_same_stream():
    assert generator(1, "a").integers(0, 100, 5).tolist() == generator(1, "a").integers(0, 100, 5).tolist()


def test_uniform_is_in_range():
    values = uniform(bits(0, "u"), 10_000)
    assert 0 <= values.min() < 0.01
    assert 0.99 < values.max() < 1


DEVICES = ["cpu", pytest.param("cuda", marks=pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU"))]


@pytest.mark.parametrize("device", DEVICES)
def test_seeding_a_device_is_torchs_own_seeding(device):
    drawn = []
    for seed in (lambda: torch.manual_seed(5), lambda: seed_generators(5, torch.device(device))):
        with torch.random.fork_rng():
            seed()
            drawn.append([torch.rand(3), torch.rand(3, device=device)])
    assert all(map(torch.equal, *drawn))


def test_seeding_a_device_leaves_others_alone():
    """What torch notes for a GPU that is not in use would be its seed as soon as it is."""
    if torch.cuda.is_available():
        torch.cuda.init()
        before = torch.cuda.get_rng_state()
        seed_generators(5, torch.device("cpu"))
        assert torch.equal(before, torch.cuda.get_rng_state())
    else:
        before = torch.cuda._lazy_seed_tracker.get_calls()
        seed_generators(5, torch.device("cpu"))
        assert torch.cuda._lazy_seed_tracker.get_calls() == before
