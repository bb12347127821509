"""What a round costs does not grow with the number of clients that do not take part in it: calls and bytes, counted."""

from __future__ import annotations

import hashlib
import tracemalloc

import numpy as np
import pytest
import torch

import fedlada
from fedlada.federation import randomness
from fedlada.federation.plan import Plan
from fedlada.runs.config import clients_digest
from tasks import blobs, small_net


def simulate(num_clients, cohort_size, **settings):
    train = blobs(num_samples=2 * num_clients)
    partition = fedlada.data.IID(num_clients=num_clients)
    settings = {"method": fedlada.recipes.fedavg(), "rounds": 4, "lr": 0.1, "device": "cpu", **settings}
    return fedlada.simulate(small_net().double(), train, partition=partition, cohort_size=cohort_size, **settings)


@pytest.fixture
def count(monkeypatch):
    """Count the calls of a function, which still runs."""

    def counted(owner, name):
        calls, real = [], getattr(owner, name)
        monkeypatch.setattr(owner, name, lambda *args: calls.append(args) or real(*args))
        return calls

    return counted


def test_the_weights_of_all_clients_are_added_once(count):
    calls = count(Plan, "weight")
    simulate(300, 3, weights="examples", rounds=4)
    assert len(calls) == 300 + 4 * 3


def test_clients_are_seeded_without_the_devices_that_are_not_there(count):
    everywhere, here = count(torch, "manual_seed"), count(randomness, "bits")
    simulate(20, 2)
    few = len(everywhere), len(here)
    simulate(20, 10)
    assert len(everywhere) == 2 * few[0]
    assert len(here) > 2 * few[1]  # more clients drew more


def test_only_clients_that_took_part_have_a_state():
    result = simulate(500, 4, method=fedlada.recipes.scaffold(), rounds=3)
    took_part = {client for row in result.history for client in row["clients"]}
    assert set(result.kept) == took_part
    assert len(took_part) <= 12


def test_a_digest_of_the_clients_needs_the_memory_of_one():
    clients = [np.arange(100) for _ in range(2000)]
    whole = b"".join(len(own).to_bytes(8, "little") + own.tobytes() for own in clients)
    tracemalloc.start()
    found = clients_digest(clients)
    most = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert found == hashlib.sha256(whole).hexdigest()
    assert most < len(whole) / 50


def test_a_partition_by_class_makes_no_array_for_each_client_and_class():
    labels = np.random.default_rng(0).integers(0, 10, 20_000)
    partition = fedlada.data.Dirichlet(num_clients=5000, concentration=100.0)
    tracemalloc.start()
    clients = partition.assign(labels, 0)
    most = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert most < 25 * sum(own.nbytes for own in clients)
