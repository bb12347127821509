"""The sequential engine with a real model equals a literal NumPy loop: softmax regression, gradients by hand."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn

import fedlada
from fedlada import schedules
from fedlada.data import LocalWork
from fedlada.federation.cohorts import FixedSize, Unreliable
from fedlada.federation.plan import Plan
from method_table import METHODS
from reference import algorithms
from reference.problem import Problem, RoundSpec
from tasks import UNEQUAL, blobs

X, Y = blobs()
CLIENTS = UNEQUAL.assign(Y, 0)


class SoftmaxRegression(Problem):
    """The reference problem whose gradients are those of the plan's batches."""

    def __init__(self, x0, plan, num_rounds):
        object.__setattr__(self, "x0", x0)
        object.__setattr__(self, "num_clients", plan.num_clients)
        rounds = [plan.round(t) for t in range(1, num_rounds + 1)]
        object.__setattr__(self, "plans", [{a.client: a for a in one.assignments} for one in rounds])
        specs = [RoundSpec(one.lr, {a.client: a.num_steps for a in one.assignments}) for one in rounds]
        object.__setattr__(self, "rounds", tuple(specs))

    def grad(self, client, x, round, step):
        rows = self.plans[round][client].batches[step]
        p = self.probabilities(x, rows)
        p[np.arange(len(rows)), Y[rows]] -= 1
        return np.concatenate([(p.T @ X[rows] / len(rows)).ravel(), p.mean(axis=0)])

    def probabilities(self, x, rows):
        scores = X[rows] @ x[:12].reshape(3, 4).T + x[12:]
        p = np.exp(scores - scores.max(axis=1, keepdims=True))
        return p / p.sum(axis=1, keepdims=True)

    def loss(self, client, x, round, step):
        rows = self.plans[round][client].batches[step]
        return -np.log(self.probabilities(x, rows)[np.arange(len(rows)), Y[rows]]).mean()


@pytest.mark.parametrize("name", METHODS)
def test_simulation_equals_reference(name):
    """Unequal clients, partial participation, stragglers, a decaying rate, eta_g != 1, L2 and clipping."""
    model = nn.Linear(4, 3).double()
    hyper = {**METHODS[name].hyper, "clip_norm": 0.5}
    unreliable = Unreliable(stragglers=0.3)
    result = fedlada.simulate(
        model,
        (X, Y),
        method=METHODS[name].recipe(**hyper),
        partition=UNEQUAL,
        cohort_size=3,
        batch_size=10,
        local_epochs=2,
        lr=0.1,
        lr_decay=0.95,
        rounds=12,
        unreliable=unreliable,
        seed=5,
        engine="sequential",
    )
    plan = Plan(
        clients=CLIENTS,
        cohorts=FixedSize(3),
        work=LocalWork(batch_size=10, epochs=2),
        schedule=schedules.Exponential(0.1, 0.95),
        seed=5,
        unreliable=unreliable,
    )
    x0 = torch.cat([p.detach().reshape(-1) for p in model.parameters()]).numpy()
    problem = SoftmaxRegression(x0, plan, 12)
    assert len({K for spec in problem.rounds for K in spec.steps.values()}) > 3
    expected = METHODS[name].reference(problem, **hyper)[-1]
    np.testing.assert_allclose(result.server.params.cpu().numpy(), expected, rtol=1e-10, atol=1e-12)


WEIGHTED = [
    (fedlada.recipes.scaffold(server_lr=0.8), lambda p, w: algorithms.weighted_scaffold(p, w, server_lr=0.8)),
    (fedlada.recipes.fedcm(alpha=0.3), lambda p, w: algorithms.weighted_fedcm(p, w, alpha=0.3)),
    (fedlada.recipes.fednova(), algorithms.weighted_fednova),
]


OWN = (0.5, 2.0, 3.0, 0.1, 1.5)


@pytest.mark.parametrize("given", ["examples", OWN])
@pytest.mark.parametrize(("method", "reference"), WEIGHTED, ids=["scaffold", "fedcm", "fednova"])
def test_weights_equal_a_weighted_reference(method, reference, given):
    """Every mean is weighted: of deltas, of extras, of K_i, of the loss and of the drift."""
    model = nn.Linear(4, 3).double()
    result = fedlada.simulate(
        model,
        (X, Y),
        method=method,
        partition=UNEQUAL,
        cohort_size=3,
        batch_size=10,
        lr=0.1,
        rounds=8,
        weights=given,
        engine="sequential",
    )
    plan = Plan(clients=CLIENTS, cohorts=FixedSize(3), work=LocalWork(batch_size=10), schedule=schedules.Constant(0.1))
    x0 = torch.cat([p.detach().reshape(-1) for p in model.parameters()]).numpy()
    weights = {client: float(len(own)) for client, own in enumerate(CLIENTS)}
    if given is OWN:
        weights = dict(enumerate(OWN))
    problem = SoftmaxRegression(x0, plan, 8)
    expected = reference(problem, weights)
    np.testing.assert_allclose(result.server.params.cpu().numpy(), expected[-1], rtol=1e-10, atol=1e-12)

    spec, x1 = problem.rounds[0], expected[0]
    total = sum(weights[i] for i in spec.steps)
    drift = loss = 0.0
    for client, num_steps in spec.steps.items():
        x = x0.copy()
        for step in range(num_steps):
            loss += weights[client] / total * problem.loss(client, x, 0, step) / num_steps
            scale = 0.3 if method.name == "fedcm" else 1.0
            x = x - 0.1 * scale * problem.grad(client, x, 0, step)
        drift += weights[client] / total * np.sum((x - x1) ** 2)
    assert result.history[0]["drift"] == pytest.approx(drift, rel=1e-9)
    assert result.history[0]["train_loss"] == pytest.approx(loss, rel=1e-9)


@pytest.mark.parametrize("engine", ["sequential", "stacked"])
def test_weights_of_ones_own_are_a_literal_mean(engine):
    """p_i d_i / sum of p_i over the cohort; a client of weight zero has no part in it."""
    model = nn.Linear(4, 3).double()
    x0 = torch.cat([p.detach().reshape(-1) for p in model.parameters()])
    weights = [0.5, 2.0, 0.0, 0.1, 1.5]

    def change(cohort, **own):
        settings = {"method": fedlada.recipes.fedavg(), "lr": 0.1, "rounds": 1, "batch_size": 10, "engine": engine}
        cohorts = fedlada.cohorts.Scheduled([cohort])
        result = fedlada.simulate(model, (X, Y), partition=UNEQUAL, cohorts=cohorts, **settings, **own)
        return x0 - result.server.params.cpu(), result.history[0]

    delta, row = change([0, 1, 2, 3], weights=weights)
    expected = sum(weights[client] * change([client])[0] for client in (0, 1, 3)) / (0.5 + 2.0 + 0.1)
    torch.testing.assert_close(delta, expected, rtol=1e-10, atol=1e-12)
    assert (row["clients"], row["idle"]) == ([0, 1, 3], [2])
    alone, skipped = change([2], weights=weights)
    assert torch.equal(alone, torch.zeros_like(x0))
    assert skipped["idle"] == [2]
