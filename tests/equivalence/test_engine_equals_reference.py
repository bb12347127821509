"""The sequential engine with a real model equals a literal NumPy loop: softmax regression, gradients by hand."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn

import fedlada
from fedlada import schedules
from fedlada.cohorts import FixedSize, Unreliable
from fedlada.data import LocalWork
from fedlada.plan import Plan
from method_table import METHODS
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
        weight, bias = x[:12].reshape(3, 4), x[12:]
        scores = X[rows] @ weight.T + bias
        p = np.exp(scores - scores.max(axis=1, keepdims=True))
        p /= p.sum(axis=1, keepdims=True)
        p[np.arange(len(rows)), Y[rows]] -= 1
        return np.concatenate([(p.T @ X[rows] / len(rows)).ravel(), p.mean(axis=0)])


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
