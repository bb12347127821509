"""Laws that hold for every method and any input, searched for counterexamples by hypothesis."""

from __future__ import annotations

from functools import partial

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from driver import gradient, run_method, run_method_stacked, stack, unstack
from fedlada import average
from fedlada.methods.state import map_tensors, named_tensors
from method_table import METHODS
from reference.problem import make_problem

names = pytest.mark.parametrize("name", METHODS)
few = settings(max_examples=15)


def client_uploads(method, problem, clients):
    """The uploads of a first round, one of each given client."""
    server = method.init(torch.from_numpy(problem.x0))
    uploads = []
    for client in clients:
        local = method.begin(server.broadcast, method.init_kept(server.params), lr=0.05)
        for step in range(3):
            local = method.step(local, partial(gradient, problem, client, 0, step))
        uploads.append(method.finish(local, 3)[0])
    return server, uploads


def close(first, second, tolerance=1e-12):
    for (name_a, a), (name_b, b) in zip(named_tensors(first), named_tensors(second), strict=True):
        assert name_a == name_b
        torch.testing.assert_close(a, b, rtol=tolerance, atol=tolerance)


@names
@few
@given(order=st.permutations(range(5)), seed=st.integers(0, 100))
def test_the_order_of_clients_changes_nothing(name, order, seed):
    _, uploads = client_uploads(METHODS[name].method(), make_problem(seed=seed), range(5))
    close(average(uploads), average([uploads[i] for i in order]))


@names
@few
@given(seed=st.integers(0, 100), twice=st.integers(0, 3))
def test_a_client_given_twice_equals_double_weight(name, seed, twice):
    method = METHODS[name].method()
    _, uploads = client_uploads(method, make_problem(seed=seed), range(4))
    weights = [2.0 if client == twice else 1.0 for client in range(4)]
    close(average([*uploads, uploads[twice]]), average(uploads, weights))


@names
@few
@given(seed=st.integers(0, 1000))
def test_stacked_clients_equal_single_ones(name, seed):
    problem = make_problem(seed=seed, num_rounds=4, equal_steps=True)
    method = METHODS[name].method()
    for single, stacked in zip(run_method(method, problem), run_method_stacked(method, problem), strict=True):
        close(single, stacked)


@names
@few
@given(seed=st.integers(0, 1000), scale=st.floats(0.01, 100))
def test_weights_count_by_their_ratio_only(name, seed, scale):
    _, uploads = client_uploads(METHODS[name].method(), make_problem(seed=seed), range(3))
    weights = [1.0, 2.0, 5.0]
    close(average(uploads, weights), average(uploads, [scale * w for w in weights]), tolerance=1e-11)


@names
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_dtype_and_shape_are_stable(name, dtype):
    """No call changes the precision or the shape of any vector, single or stacked, with the rate as a tensor too."""
    method = METHODS[name].method()
    params = torch.randn(6, dtype=dtype)
    for lr in (0.1, torch.tensor(0.1, dtype=dtype)):
        server = method.init(params)
        kept = method.init_kept(params)
        local = method.begin(server.broadcast, kept, lr=lr)
        for _ in range(2):
            local = method.step(local, torch.randn_like)
        upload, new_kept = method.finish(local, 2)
        after = method.aggregate(server, average([upload]), lr=lr, num_steps=2.0, participation=0.5)
        for old, new in ((server, after), (kept, new_kept)):
            assert [n for n, _ in named_tensors(old)] == [n for n, _ in named_tensors(new)]
        for state in (local, upload, new_kept, after):
            for where, tensor in named_tensors(state):
                assert tensor.dtype == dtype, where
                assert where == "lr" or tensor.shape == ((1,) if where.endswith(".steps") else (6,)), where

    count = 3
    broadcast = map_tensors(lambda v: v.expand(count, -1), method.init(params).broadcast)
    local = method.begin(broadcast, stack([method.init_kept(params)] * count), lr=0.1)
    local = method.step(local, torch.randn_like)
    upload, _ = method.finish(local, torch.full((count, 1), 1.0, dtype=dtype))
    for where, tensor in named_tensors(upload):
        assert tensor.shape == (count, 1 if where.endswith(".steps") else 6), where
    assert unstack(upload, 0).delta.shape == (6,)


@names
def test_the_calls_change_nothing_that_they_are_given(name):
    """All five calls are pure: their inputs hold the same bits afterwards."""
    method = METHODS[name].method()
    server = method.init(torch.randn(4))
    kept = method.init_kept(server.params)
    local = method.step(method.begin(server.broadcast, kept, lr=0.1), torch.randn_like)
    grad = torch.randn(4)
    upload, _ = method.finish(method.step(local, lambda _: grad), 2)

    def copies(*states):
        return [[tensor.clone() for _, tensor in named_tensors(state)] for state in states]

    before = [*copies(server, kept, local, upload), [grad.clone()]]
    method.begin(server.broadcast, kept, lr=0.1)
    method.step(local, lambda _: grad)
    method.finish(local, 1)
    average([upload, upload])
    method.aggregate(server, upload, lr=0.1, num_steps=2, participation=0.5)
    after = [*copies(server, kept, local, upload), [grad.clone()]]
    for old, new in zip(before, after, strict=True):
        assert all(torch.equal(a, b) for a, b in zip(old, new, strict=True))


@pytest.mark.parametrize(("beta1", "vectors"), [(0.9, {"m", "v", "v_max"}), (0.0, {"v", "v_max"})])
def test_without_a_first_moment_no_client_keeps_one(beta1, vectors):
    method = METHODS["fedlada"].method(beta1=beta1)
    server = method.init(torch.ones(4))
    local = method.step(method.begin(server.broadcast, method.init_kept(server.params), lr=0.1), torch.randn_like)
    (moments,) = [state for state in local.states if "v_max" in state]
    assert set(moments) == vectors
