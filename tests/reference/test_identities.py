"""The identities that the published methods must satisfy exactly."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

from driver import run_method
from fedlada import average, recipes
from fedlada.federation.schedules import Debiased
from method_table import METHODS
from reference.problem import make_problem
from reference.rows import MOMENTS

COMMON = {"server_lr": 0.7, "weight_decay": 0.02, "clip_norm": 2.5}


def same(first, second):
    for a, b in zip(first, second, strict=True):
        torch.testing.assert_close(a.params, b.params, rtol=0, atol=0)


@pytest.mark.parametrize(
    ("special", "general"),
    [
        (recipes.localadam(**COMMON, **MOMENTS), recipes.fedlada(alpha=1.0, **COMMON, **MOMENTS)),
        (recipes.fedavg(**COMMON), recipes.fedcm(alpha=1.0, **COMMON)),
        (recipes.fedavg(**COMMON), recipes.fedprox(mu=0.0, **COMMON)),
        (recipes.fedavg(**COMMON), recipes.scaffold(correction=0.0, **COMMON)),
        (recipes.fedadam(weight_decay=0.02), recipes.fedadam_amended(alpha=1.0, weight_decay=0.02)),
    ],
    ids=["fedlada=localadam", "fedcm=fedavg", "fedprox=fedavg", "scaffold=fedavg", "fedadam*=fedadam"],
)
def test_a_general_method_contains_the_special_one(special, general):
    problem = make_problem(seed=3)
    same(run_method(special, problem), run_method(general, problem))


def test_as_the_power_of_its_second_moment_goes_to_zero_fedlada_becomes_fedcm():
    """Without a first moment, and with weight decay behind the amendment, where FedCM has it; neither clips."""
    problem, same_for_both = make_problem(seed=3), {"alpha": 0.3, "server_lr": 0.7, "weight_decay": 0.02}
    ours = run_method(recipes.fedlada(beta1=0.0, power=1e-13, decoupled=True, **same_for_both), problem)
    theirs = run_method(recipes.fedcm(**same_for_both), problem)
    for a, b in zip(ours, theirs, strict=True):
        torch.testing.assert_close(a.params, b.params, rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("alpha", [0.05, 0.4, 1.0])
def test_a_debiased_rate_is_an_alpha_that_falls_from_one(alpha):
    """The direction is a moving average from zero; with its missing weight made up for it is a mean."""
    problem = make_problem(seed=6, num_rounds=6)
    rates = Debiased(lambda t: problem.rounds[t - 1].lr, alpha)
    faster = replace(problem, rounds=[replace(one, lr=rates(t)) for t, one in enumerate(problem.rounds, start=1)])
    ours = run_method(recipes.fedlada(alpha=alpha, **COMMON, **MOMENTS), faster)
    falling = run_method(lambda t: recipes.fedlada(alpha=alpha / (1 - (1 - alpha) ** t), **COMMON, **MOMENTS), problem)
    for t, (a, b) in enumerate(zip(ours, falling, strict=True), start=1):
        torch.testing.assert_close(a.params, b.params, rtol=1e-12, atol=1e-12)
        # What ours sends is the plain average, what the other sends is corrected.
        direction = b.shared[-1]["direction"] * (1 - (1 - alpha) ** t)
        torch.testing.assert_close(a.shared[-1]["direction"], direction, rtol=1e-12, atol=1e-12)
    plain = run_method(recipes.fedlada(alpha=alpha, **COMMON, **MOMENTS), problem)
    assert torch.equal(plain[-1].params, ours[-1].params) == (alpha == 1)


def test_scaffolds_first_round_is_fedavgs():
    problem = make_problem(seed=4, num_rounds=1)
    same(run_method(recipes.fedavg(), problem), run_method(recipes.scaffold(), problem))


def adaptive_directions(method, problem):
    """For each round: the sum over active clients and steps of m / sqrt(v_hat), recorded beside the run."""
    server = method.init(torch.from_numpy(problem.x0))
    sums, servers = [], [server]
    for t, spec in enumerate(problem.rounds):
        uploads, total = [], torch.zeros_like(server.params)
        for client, num_steps in spec.steps.items():
            local = method.begin(server.broadcast, method.init_kept(server.params), lr=spec.lr)
            for step in range(num_steps):
                grad = torch.from_numpy(problem.grad(client, local.params.numpy(), t, step))
                local = method.step(local, lambda _, grad=grad: grad)
                total += local.states[0]["m"] / local.states[0]["v_max"].sqrt()
            uploads.append(method.finish(local, num_steps)[0])
        server = method.aggregate(
            server,
            average(uploads),
            lr=spec.lr,
            num_steps=sum(spec.steps.values()) / len(spec.steps),
            participation=1.0,
        )
        sums.append(total)
        servers.append(server)
    return sums, servers


@pytest.mark.parametrize("server_lr", [1.0, 0.6])
def test_fedladas_direction_is_an_exponential_average(server_lr):
    """g_a^{t+1} = alpha * sum(m / sqrt(v_hat)) / sum(K_i) + (1 - alpha) g_a^t."""
    alpha = 0.3
    problem = make_problem(seed=5)
    sums, servers = adaptive_directions(recipes.fedlada(alpha=alpha, server_lr=server_lr, **MOMENTS), problem)
    for t, spec in enumerate(problem.rounds):
        old, new = servers[t].shared[1]["direction"], servers[t + 1].shared[1]["direction"]
        expected = alpha * sums[t] / sum(spec.steps.values()) + (1 - alpha) * old
        torch.testing.assert_close(new, expected, rtol=1e-11, atol=1e-11)


@pytest.mark.parametrize("decay", [1.0, 0.9])
def test_fedladas_auxiliary_sequence(decay):
    """The lemma on z^t = x^t / a - (1-a)/a x^{t-1}, with its extra term where eta_l K changes over rounds."""
    alpha, eta_g = 0.3, 0.6
    problem = make_problem(seed=6, equal_steps=decay == 1.0, decay=decay)
    sums, servers = adaptive_directions(recipes.fedlada(alpha=alpha, server_lr=eta_g, **MOMENTS), problem)
    xs = [servers[0].params, *(server.params for server in servers)]  # x^{-1} = x^0

    def z(t):
        return xs[t + 1] / alpha - (1 - alpha) / alpha * xs[t]

    for t, spec in enumerate(problem.rounds):
        active = len(spec.steps)
        step = eta_g * spec.lr * sums[t] / active
        travelled = spec.lr * np.mean(list(spec.steps.values()))
        before = problem.rounds[t - 1]
        travelled_before = before.lr * np.mean(list(before.steps.values())) if t else travelled
        direction = servers[t].shared[1]["direction"]
        extra = (1 - alpha) / alpha * eta_g * direction * (travelled - travelled_before)
        torch.testing.assert_close(z(t + 1), z(t) - step - extra, rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("name", METHODS)
def test_a_stationary_cohort_moves_nothing(name):
    """With zero gradients and no decay every method stays where it is."""
    method = METHODS[name].method(weight_decay=0.0)
    params = torch.randn(5, dtype=torch.float64)
    server = method.init(params)
    for _ in range(3):
        local = method.begin(server.broadcast, method.init_kept(params), lr=0.1)
        for _ in range(2):
            local = method.step(local, torch.zeros_like)
        upload, _ = method.finish(local, 2)
        server = method.aggregate(server, average([upload]), lr=0.1, num_steps=2, participation=1.0)
    torch.testing.assert_close(server.params, params, rtol=0, atol=0)
