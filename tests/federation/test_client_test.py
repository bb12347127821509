"""Each client's held-out samples: its own, of the seed's choice, trained on by nobody."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from fedlada.data import IID, Dirichlet
from fedlada.federation.client_test import hold_out

CLIENTS = IID(num_clients=7, size_spread=0.9).assign(np.zeros(200), 0)


@given(st.floats(0.01, 0.99), st.integers(0, 5))
def test_every_sample_is_on_one_side(share, seed):
    train, test = hold_out(CLIENTS, share, seed)
    for own, kept, held in zip(CLIENTS, train, test, strict=True):
        assert np.array_equal(np.sort(np.concatenate([kept, held])), own)
        assert len(kept) >= 1
        assert len(held) == min(max(1, round(share * len(own))), len(own) - 1)


def test_the_seed_and_the_client_decide():
    one, again, other = (hold_out(CLIENTS, 0.3, seed)[1] for seed in (4, 4, 5))
    assert all(map(np.array_equal, one, again))
    assert not any(map(np.array_equal, one, other))
    alone = hold_out(CLIENTS[:2], 0.3, 4)[1]
    assert all(map(np.array_equal, one, alone))  # whoever else is there
    first, second = hold_out([np.arange(50), np.arange(50, 100)], 0.3, 4)[1]
    assert not np.array_equal(first, second - 50)


def test_a_client_of_one_sample_trains_on_it():
    train, test = hold_out([np.array([3]), np.array([4, 5]), np.array([], dtype=np.int64)], 0.9, 0)
    assert (train[0].tolist(), test[0].tolist()) == ([3], [])
    assert len(train[1]) == len(test[1]) == 1
    assert len(train[2]) == len(test[2]) == 0


def test_a_sample_that_several_hold_is_trained_on_by_none():
    labels = np.arange(60) % 3
    clients = Dirichlet(num_clients=6, concentration=0.1, refill=True).assign(labels, 0)
    assert len(np.unique(np.concatenate(clients))) < sum(map(len, clients))  # some repeat
    train, test = hold_out(clients, 0.2, 0)
    assert not np.intersect1d(np.concatenate(train), np.concatenate(test)).size
    assert all(len(np.unique(own)) == len(own) > 0 for own in test)
