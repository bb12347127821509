"""An audit: who sees what a private run releases cannot tell whether a client took part better than epsilon allows.

The client that is sought has data of its own making: its update always points one way and is longer than the clip.
The test statistic is how far the released model moved that way, its threshold is fixed beforehand.
"""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from fedlada.cohorts import Everyone
from fedlada.combine import Private
from torch import nn

from fedlada import recipes
from fedlada.data import LocalWork, as_samples
from fedlada.engines import SequentialEngine
from fedlada.federation.gaussian import from_seed
from fedlada.federation.plan import Plan
from fedlada.federation.schedules import Constant
from fedlada.training import privacy
from fedlada.training.simulation import Simulation

ROUNDS, CLIENTS, DELTA = 2, 2, 1e-2
PRIVATE = Private(0.5, noise_multiplier=1.5, delta=DELTA)
X = np.eye(CLIENTS, dtype=np.float32)
Y = np.array([1e3, 0], dtype=np.float32)[:, None]  # the first client's residual is huge, the other has none
CONFIDENCE = 0.99


def moved(is_there, method, runs):
    """How far each run's model went towards the first client's answer; what else it released depends on the same."""
    engine = SequentialEngine(model(), method, as_samples((X, Y), torch.device("cpu"), torch.float32), None,
                              device=torch.device("cpu"))  # fmt: skip
    clients = [np.array([0] if is_there else [], dtype=np.int64), *np.arange(1, CLIENTS).reshape(-1, 1)]
    for seed in range(runs):
        work = LocalWork(batch_size=1, steps=1)
        plan = Plan(
            clients=clients, cohorts=Everyone(), work=work, schedule=Constant(0.01), seed=2 * seed + int(is_there)
        )
        simulation = Simulation(engine, plan)
        start = simulation.server.params[0]
        for _ in range(ROUNDS):
            simulation.run_round()
        yield float(simulation.server.params[0] - start)


def model():
    net = nn.Linear(CLIENTS, 1, bias=False)
    nn.init.zeros_(net.weight)
    return net


def least_epsilon(runs):
    """A lower bound of epsilon, by Clopper and Pearson, from the rates of a membership test in both directions."""
    from scipy import stats  # takes half a second: not where all tests are collected

    method = recipes.fedavg().with_combiner(PRIVATE)
    threshold = ROUNDS * PRIVATE.clip / CLIENTS / 2  # half of the way that the client alone would move the model
    there, away = (np.fromiter(moved(is_there, method, runs), float) for is_there in (True, False))
    found = 0.0
    for hits, alarms in (((there > threshold).sum(), (away > threshold).sum()),
                         ((away <= threshold).sum(), (there <= threshold).sum())):  # fmt: skip
        least_hits = stats.beta.ppf(1 - CONFIDENCE, hits, runs - hits + 1)
        most_alarms = stats.beta.ppf(CONFIDENCE, alarms + 1, runs - alarms)
        found = max(found, math.log(max(least_hits - DELTA, 1e-9) / most_alarms))
    return found


def claimed():
    engine = SequentialEngine(model(), recipes.fedavg().with_combiner(PRIVATE),
                              as_samples((X, Y), torch.device("cpu"), torch.float32), None,
                              device=torch.device("cpu"))  # fmt: skip
    plan = Plan(clients=list(np.arange(CLIENTS).reshape(-1, 1)), cohorts=Everyone(), schedule=Constant(0.01),
                work=LocalWork(batch_size=1, steps=1))  # fmt: skip
    simulation = Simulation(engine, plan)
    return [simulation.run_round()["epsilon"] for _ in range(ROUNDS)][-1]


@pytest.mark.slow
def test_the_audit_stays_below_what_is_claimed():
    assert 0.1 < least_epsilon(100) < claimed() < 2.4


@pytest.mark.slow
@pytest.mark.parametrize("fault", ["little noise", "no clipping"])
def test_the_audit_finds_planted_faults(fault, monkeypatch):
    if fault == "little noise":
        monkeypatch.setattr(
            privacy, "from_seed", lambda *key: lambda name, like: 0.1 * from_seed(*key)(name, like)
        )  # ten times too small
    else:
        from fedlada.methods.combine.private import _Release
        from fedlada.methods.state import map_tensors

        monkeypatch.setattr(_Release, "_clipped", lambda _, upload: map_tensors(torch.clone, upload))
    assert least_epsilon(80) > claimed()
