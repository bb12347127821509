"""Personal parameters equal literal transcriptions, and touch nothing that is shared."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import numpy as np
import pytest
import torch
from fedlada.server import SGD

from driver import gradient, run_method
from fedlada import recipes
from fedlada.methods.combine import Mean
from fedlada.methods.personal import Personal
from fedlada.methods.state import named_tensors
from method_table import METHODS
from reference.algorithms import clip, mean
from reference.problem import Problem, make_problem

SIZES = {"base": 2, "norm": 1, "middle": 2, "head": 2}
PERSONAL = Personal.of(SIZES, {"norm", "head"})
OWN = np.array([False, False, True, False, False, True, True])


def fedper(p: Problem, *, server_lr, weight_decay, clip_norm):
    """FedAvg on the base layers; a client's personal layers are what its last round has left (Arivazhagan et al.)."""
    x, heads, out = p.x0.copy(), [p.x0[OWN].copy() for _ in range(p.num_clients)], []
    for t, spec in enumerate(p.rounds):
        deltas = []
        for i, K in spec.steps.items():
            xi = x.copy()
            xi[OWN] = heads[i]
            for tau in range(K):
                xi = xi - spec.lr * (clip(p.grad(i, xi, t, tau), clip_norm) + weight_decay * xi)
            heads[i] = xi[OWN]
            deltas.append((x - xi)[~OWN])
        x = x.copy()
        x[~OWN] = x[~OWN] - server_lr * mean(deltas)
        out.append(x)
    return out, heads


def fedlada_with_heads(p: Problem, *, alpha, beta1, beta2, v_init, server_lr):
    """Algorithm 3 on the base layers; at the personal ones direction and second moment are the client's own."""
    x, out = p.x0.copy(), []
    g_a, v = np.zeros_like(x), np.full_like(x, v_init)
    head, head_g, head_v = ([one[OWN].copy() for _ in range(p.num_clients)] for one in (x, g_a, v))
    for t, spec in enumerate(p.rounds):
        eta, S = spec.lr, len(spec.steps)
        deltas, seconds = [], []
        for i, K in spec.steps.items():
            x_i, g, v_hat = x.copy(), g_a.copy(), v.copy()
            x_i[OWN], g[OWN], v_hat[OWN] = head[i], head_g[i], head_v[i]
            m_i = v_i = np.zeros_like(x)
            for tau in range(K):
                gradient = p.grad(i, x_i, t, tau)
                m_i = beta1 * m_i + (1 - beta1) * gradient
                v_i = beta2 * v_i + (1 - beta2) * gradient * gradient
                v_hat = np.maximum(v_i, v_hat)
                x_i = x_i - eta * (alpha * m_i / np.sqrt(v_hat) + (1 - alpha) * g)
            head_g[i] = (head[i] - x_i[OWN]) / (eta * K)
            head[i], head_v[i] = x_i[OWN], v_hat[OWN]
            deltas.append((x - x_i)[~OWN])
            seconds.append(v_hat[~OWN])
        x, g_a, v = x.copy(), g_a.copy(), v.copy()
        x[~OWN] = x[~OWN] - server_lr * mean(deltas)
        g_a[~OWN] = mean(deltas) / (eta * sum(spec.steps.values()) / S)
        v[~OWN] = mean(seconds)
        out.append(x)
    return out, head


CASES = {
    "fedper": (recipes.fedavg, fedper, {"server_lr": 0.7, "weight_decay": 0.02, "clip_norm": 2.5}),
    "fedlada": (
        recipes.fedlada,
        fedlada_with_heads,
        {"alpha": 0.3, "beta1": 0.8, "beta2": 0.95, "v_init": 1e-2, "server_lr": 0.7},
    ),
}


@pytest.mark.parametrize("seed", [0, 1])
@pytest.mark.parametrize("name", CASES)
def test_equals_its_transcription(name, seed):
    recipe, reference, hyper = CASES[name]
    problem, kept = make_problem(seed=seed), {}
    servers = run_method(replace(recipe(**hyper), personal=PERSONAL), problem, kept)
    expected, heads = reference(problem, **hyper)
    for server, x in zip(servers, expected, strict=True):
        np.testing.assert_allclose(server.params.numpy(), x, rtol=1e-12, atol=1e-12)
    assert kept
    for client, memory in kept.items():
        np.testing.assert_allclose(memory.memory[-1]["params"].numpy(), heads[client], rtol=1e-12, atol=1e-12)


def test_feddyn_pulls_personal_parameters_to_where_the_round_began():
    """No server acts on them, so the h_i that its server would make up for stays zero there."""
    problem, kept = make_problem(), {}
    mu, spec = 0.4, problem.rounds[0]
    run_method(replace(recipes.feddyn(mu=mu, clip_norm=None, weight_decay=0.0), personal=PERSONAL), problem, kept)
    for client, memory in kept.items():
        h = [one["h"] for one in memory.memory[:-1] if "h" in one]
        assert all((one[OWN] == 0).all() and (one[~OWN] != 0).all() for one in h)
        assert h, client
    only_first = replace(problem, rounds=(spec,))
    kept = {}
    run_method(replace(recipes.feddyn(mu=mu, clip_norm=None, weight_decay=0.0), personal=PERSONAL), only_first, kept)
    for client, num_steps in spec.steps.items():
        x = problem.x0.copy()
        for step in range(num_steps):
            x = x - spec.lr * (problem.grad(client, x, 0, step) + mu * (x - problem.x0))
        np.testing.assert_allclose(kept[client].memory[-1]["params"].numpy(), x[OWN], rtol=1e-12)


@pytest.mark.parametrize("name", METHODS)
def test_where_all_is_personal_each_client_is_a_federation_of_its_own(name):
    """With a server that takes what it is given: the mean of one, by SGD of rate 1."""
    method = METHODS[name].method()
    if any(part.paired for part in method.local):
        pytest.skip("its memories have a counterpart in the server's state, which is never there")
    problem, kept = make_problem(num_rounds=6), {}
    servers = run_method(replace(method, personal=Personal.of(SIZES, set(SIZES))), problem, kept)
    assert all(np.array_equal(server.params.numpy(), problem.x0) for server in servers)
    alone = replace(method, server=SGD(lr=1.0), combiner=Mean())
    for client, memory in kept.items():
        own = tuple(
            replace(spec, steps={client: spec.steps[client]}) if client in spec.steps else replace(spec, steps={})
            for spec in problem.rounds
        )
        server, mine = alone.init(torch.from_numpy(problem.x0)), alone.init_kept(torch.from_numpy(problem.x0))
        for t, spec in enumerate(own):
            if not spec.steps:
                continue
            local = alone.begin(server.broadcast, mine, lr=spec.lr)
            for step in range(spec.steps[client]):
                local = alone.step(local, partial(gradient, problem, client, t, step))
            upload, mine = alone.finish(local, spec.steps[client])
            server = alone.aggregate(server, upload, lr=spec.lr, num_steps=spec.steps[client], participation=1.0)
        torch.testing.assert_close(memory.memory[-1]["params"], server.params, rtol=1e-12, atol=1e-12)
        for index, vectors in enumerate(server.shared):
            for vector_name, vector in vectors.items():
                torch.testing.assert_close(memory.memory[-1][f"{index}.{vector_name}"], vector, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("name", METHODS)
def test_the_server_never_moves_personal_parameters_and_never_hears_of_them(name):
    method, problem = replace(METHODS[name].method(), personal=PERSONAL), make_problem(num_rounds=5)
    first = method.init(torch.from_numpy(problem.x0))
    for server in run_method(method, problem):
        for (_, before), (where, after) in zip(named_tensors(first), named_tensors(server), strict=True):
            if not where.startswith("optimizer"):
                assert torch.equal(before[OWN], after[OWN]), where
        assert not torch.equal(first.params, server.params)
    local = method.begin(first.broadcast, method.init_kept(first.params), lr=0.1)
    local = method.step(local, lambda point: torch.ones_like(point))
    upload, _ = method.finish(local, 1)
    positive = {name for part in method.local for name in part.positive}
    for where, vector in named_tensors(upload):
        silent = torch.finfo(vector.dtype).tiny if where.split(".")[-1] in positive else 0.0
        assert vector.shape != OWN.shape or (vector[OWN] == silent).all(), where
        assert (upload.delta[~OWN] != 0).all()


def test_places_follow_the_parameters_into_another_order():
    """An engine may lay parameters out otherwise; what a client keeps stays in the model's order."""
    order = torch.tensor([6, 0, 5, 2, 1, 4, 3])
    moved = Personal(PERSONAL.places[order], PERSONAL.names)
    vector = torch.arange(7.0)
    assert torch.equal(PERSONAL.cut(vector), torch.tensor([2.0, 5.0, 6.0]))
    assert torch.equal(moved.cut(vector[order]), PERSONAL.cut(vector))
    own = torch.tensor([20.0, 50.0, 60.0])
    assert torch.equal(PERSONAL.joined(vector, own), torch.tensor([0.0, 1.0, 20.0, 3.0, 4.0, 50.0, 60.0]))
    assert torch.equal(moved.joined(vector[order], own), PERSONAL.joined(vector, own)[order])
    assert torch.equal(PERSONAL.shared, torch.tensor([0, 1, 3, 4]))
