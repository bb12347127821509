"""A small federation over Flower inside one process, and the simulation that it must equal."""

from __future__ import annotations

import numpy as np
import torch
from fedlada.combine import Mean

import fedlada
from fedlada.data import IID
from fedlada.flower import InProcessGrid, MethodStrategy, Replies, client_app
from tasks import blobs, small_net

X, Y = blobs(num_samples=90)
CLIENTS = IID(num_clients=5, size_spread=0.8).assign(Y, 3)
SETTINGS = {"cohort_size": 3, "batch_size": 6, "local_epochs": 1, "lr": 0.05, "lr_decay": 0.9, "seed": 11}
SETTINGS |= {"combiner": "mean"}  # on both sides, where nothing else is asked for
QUICK = Replies(time_limit=0.3, patience=0.6)


def load(context):
    own = CLIENTS[context.node_config["partition-id"]]
    return X[own], Y[own]


def grid_of(method, memory=None, fault=None, num_nodes=5, **arguments):
    app = client_app(small_net(), load, method=method, memory=memory, **arguments)
    return InProcessGrid(app, num_nodes, fault=fault)


def settings_of(method, changes):
    """For a method with a combiner of its own without another."""
    settings = {**SETTINGS, **changes}
    if isinstance(method, fedlada.FederatedMethod) and not isinstance(method.combiner, Mean):
        del settings["combiner"]
    return settings


def strategy_of(method, **changes):
    settings = {"num_clients": len(CLIENTS), **settings_of(method, changes)}
    return MethodStrategy(small_net(), method, test=(X, Y), **settings)


def simulate(method, rounds, **changes):
    """The same in one process, sequentially."""
    data = {"train": (X, Y), "test": (X, Y), "partition": CLIENTS, **settings_of(method, changes)}
    return fedlada.simulate(small_net(), method=method, rounds=rounds, engine="sequential", **data)


def replayed(history, method, **changes):
    """A simulation of the very cohorts that a federation had."""
    cohorts = fedlada.cohorts.Scheduled([row["clients"] for row in history])
    return simulate(method, len(history), cohorts=cohorts, cohort_size=None, **changes)


def plain(rows):
    """What of the rows does not depend on the clock or the coding of messages."""
    changing = (
        "seconds",
        "attempt",
        "bytes_up",
        "bytes_down",
        "bytes_by_vector",
        "bytes_by_client",
        "nd_up",
        "nd_down",
    )
    return [{name: value for name, value in row.items() if name not in changing} for row in rows]


def assert_same_bits(one, other):
    """Two servers, vector by vector."""
    ours, theirs = (dict(fedlada.methods.state.named_tensors(result.server)) for result in (one, other))
    assert ours.keys() == theirs.keys()
    for name, vector in ours.items():
        assert torch.equal(vector, theirs[name]), name
        assert np.isfinite(vector.numpy()).all()
