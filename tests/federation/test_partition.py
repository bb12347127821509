"""Partitions: complete, repeatable, skewed as asked, and always at an end."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from fedlada.data import IID, ByKey, Dirichlet, Given, Pachinko, Pathological

LABELS = np.random.default_rng(0).integers(0, 10, 2000)


def used(clients):
    return np.sort(np.concatenate(clients))


@pytest.mark.parametrize(
    "partition",
    [
        IID(num_clients=7),
        IID(num_clients=7, size_spread=1.5),
        Dirichlet(num_clients=7, concentration=0.1),
        Dirichlet(num_clients=7, concentration=0.1, size_spread=1.0),
        Pathological(num_clients=7, classes_per_client=3),
        Pachinko(num_clients=7, groups=[0, 0, 0, 1, 1, 1, 2, 2, 2, 2]),
        ByKey(keys=[f"user {i % 13}" for i in range(2000)]),
    ],
    ids=lambda p: repr(p)[:60],
)
def test_every_sample_exactly_once_and_repeatable(partition):
    clients = partition.assign(LABELS, seed=3)
    assert used(clients).tolist() == list(range(2000))
    again = partition.assign(LABELS, seed=3)
    assert all((a == b).all() for a, b in zip(clients, again, strict=True))


@pytest.mark.parametrize("kind", [IID, Dirichlet])
def test_another_seed_gives_another_partition(kind):
    first, second = (kind(num_clients=4).assign(LABELS, seed) for seed in (0, 1))
    assert any(len(a) != len(b) or (a != b).any() for a, b in zip(first, second, strict=True))


@pytest.mark.parametrize("refill", [False, True])
def test_dirichlet_sizes_are_balanced_or_log_normal(refill):
    sizes = [len(c) for c in Dirichlet(num_clients=30, concentration=0.1, refill=refill).assign(LABELS, 0)]
    assert max(sizes) - min(sizes) <= 1
    spread = Dirichlet(num_clients=30, concentration=0.1, refill=refill, size_spread=1.0).assign(LABELS, 0)
    sizes = np.array([len(c) for c in spread])
    assert sizes.sum() == 2000
    assert sizes.min() >= 1
    assert 0.5 < np.log(sizes).std() < 1.5


def test_concentration_decides_the_skew():
    def classes_that_hold_most(concentration):
        clients = Dirichlet(num_clients=20, concentration=concentration).assign(LABELS, 0)
        shares = [np.sort(np.bincount(LABELS[own], minlength=10))[::-1].cumsum() / len(own) for own in clients]
        return np.mean([np.searchsorted(share, 0.8) + 1 for share in shares])

    assert classes_that_hold_most(0.05) < 3 < classes_that_hold_most(1.0) < classes_that_hold_most(1000.0)


def test_pachinko_clients_differ_in_groups_and_not_within_them():
    labels = np.arange(100).repeat(100)
    partition = Pachinko(num_clients=100, groups=np.arange(100) % 20, concentration=0.1, fine_concentration=1e4)
    shares = []
    for own in partition.assign(labels, 0)[:30]:
        counts = np.bincount(labels[own], minlength=100).reshape(5, 20)  # classes of a group, groups
        most = counts.sum(axis=0).argmax()
        shares.append(counts[:, most] / counts[:, most].sum())
        assert counts.sum(axis=0).max() > 20  # even would be 5
    assert np.abs(np.mean(shares, axis=0) - 0.2).max() < 0.05
    even = Pachinko(num_clients=100, groups=np.arange(100) % 20, concentration=1e4, fine_concentration=1e4)
    # Not of the last clients, who take what is left.
    assert np.median([np.bincount(labels[own] % 20, minlength=20).max() for own in even.assign(labels, 0)]) < 15


def test_a_group_that_has_run_out_leaves_its_share_to_the_others():
    labels = np.array([0] * 5 + [1] * 5 + [2] * 90)
    clients = Pachinko(num_clients=4, groups=[0, 0, 1], concentration=1e6).assign(labels, 0)
    assert [len(own) for own in clients] == [25] * 4
    assert used(clients).tolist() == list(range(100))
    with pytest.raises(ValueError, match="groups are given for 2 classes, but the data has 3"):
        Pachinko(num_clients=4, groups=[0, 1]).assign(labels, 0)


def test_refilled_pools_follow_the_mixes_exactly():
    """As in the authors' simulator: equal sizes, repeats across clients, some samples never used, none twice a client
    before its class has been gone through."""
    clients = Dirichlet(num_clients=20, concentration=0.3, refill=True).assign(LABELS, 0)
    everything = np.concatenate(clients)
    assert len(everything) == 2000
    assert 0 < len(np.unique(everything)) < 2000


def test_ends_within_seconds_at_the_extremes():
    """500 clients, 200 classes, concentration 0.05, and a concentration at which draws underflow."""
    labels = np.repeat(np.arange(200), 500)
    for partition in (
        Dirichlet(num_clients=500, concentration=0.05),
        Dirichlet(num_clients=500, concentration=0.05, refill=True),
        Dirichlet(num_clients=500, concentration=1e-9),
        Pathological(num_clients=500, classes_per_client=3),
    ):
        assert sum(len(own) for own in partition.assign(labels, 0)) == len(labels)


@settings(max_examples=40)
@given(
    num_clients=st.integers(1, 40),
    classes=st.integers(1, 10),
    num_classes=st.integers(1, 10),
    seed=st.integers(0, 50),
)
def test_pathological_clients_have_exactly_n_classes(num_clients, classes, num_classes, seed):
    labels = np.arange(1000) % num_classes
    partition = Pathological(num_clients=num_clients, classes_per_client=classes)
    if classes > num_classes or num_clients * classes < num_classes:
        with pytest.raises(ValueError, match=r"classes"):
            partition.assign(labels, seed)
        return
    clients = partition.assign(labels, seed)
    assert all(len(np.unique(labels[own])) == classes for own in clients)
    assert used(clients).tolist() == list(range(1000))


def test_by_key_and_given():
    clients = ByKey(keys=["b", "a", "b", "c"]).assign(np.zeros(4), 0)
    assert [own.tolist() for own in clients] == [[1], [0, 2], [3]]
    assert [own.tolist() for own in Given(indices=[[3, 1], [], [0]]).assign(np.zeros(4), 0)] == [[1, 3], [], [0]]


@pytest.mark.parametrize(
    ("partition", "sentence"),
    [
        (IID(num_clients=2001), "2000 samples cannot be divided among 2001 clients"),
        (Pathological(num_clients=10**26), "2000 samples cannot be divided among 1000"),
        (Pathological(num_clients=3, classes_per_client=11), "the data has only 10 classes"),
        (ByKey(keys=[1, 2]), "2 keys for 2000 samples"),
        (ByKey(keys=["x", "y"] * 1000, names=["a"]), "1 names for 2 clients: one for each distinct key is needed"),
        (ByKey(keys=np.array([1, "b"] * 1000, dtype=object)), "the keys are of several types: make all of them texts"),
        (Given(indices=[[0, 2000]]), "client 0 has sample indices outside 0..1999"),
        (Given(indices=[]), "there are no clients"),
    ],
)
def test_what_does_not_fit_is_refused(partition, sentence):
    with pytest.raises(ValueError, match=sentence):
        partition.assign(LABELS, 0)


@pytest.mark.parametrize(
    "keys",
    [
        ["a", None],
        ["a", float("nan")],
        [0.5, float("nan")],
        np.array([0.5, np.nan]),
        np.array(["2020-01-01", "NaT"], dtype="datetime64[D]"),
        pd.Series(["a", None]),
        pd.Series(["a", None], dtype="string"),
        pd.Series(["a", None], dtype="category"),
        pd.Series([1, None], dtype="Int64"),
        pd.Series([pd.Timestamp("2020-01-01"), None]),
    ],
)
def test_a_missing_key_is_no_client(keys):
    with pytest.raises(ValueError, match=r"the key of sample 1 is missing \(\S+\): give it one, or leave"):
        ByKey(keys=keys).assign(np.zeros(2), 0)


@pytest.mark.parametrize("clients", [LABELS, torch.from_numpy(LABELS), LABELS.tolist(), [f"user {i}" for i in LABELS]])
def test_one_client_for_each_sample_is_a_key(clients):
    with pytest.raises(ValueError, match=r"number or name for each sample is given as fedlada\.data\.ByKey\("):
        Given(indices=clients).assign(LABELS, 0)


def test_labels_must_be_one_per_sample():
    with pytest.raises(ValueError, match="one label per sample"):
        Dirichlet(num_clients=2).assign(np.zeros((10, 3), dtype=int), 0)
