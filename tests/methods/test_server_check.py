"""A server optimizer of one's own is tried before the first round."""

from __future__ import annotations

import re

import pytest
import torch

import fedlada
from fedlada import FederatedMethod, ServerOptimizer, recipes
from fedlada.methods.server_check import check_server
from tasks import blobs, small_net

PARAMS = torch.zeros(5)


def server(step, init=None):
    """One with these calls, which get all but the server itself."""
    calls = {"step": lambda _, *given: step(*given)}
    if init is not None:
        calls["init"] = lambda _, params: init(params)
    return type("Mine", (ServerOptimizer,), calls)()


def good(params, _delta, state, _round):
    return params, state


@pytest.mark.parametrize(
    ("step", "init", "sentence"),
    [
        (lambda params, *_: params, None, "must return two things from step, the new"),
        (lambda params, _, state: (params, state), None, "failed in step: TypeError"),
        (
            lambda params, delta, *_: (params, {"m": delta}),
            None,
            "must return from step the names that it was given, nothing; got m",
        ),
        (lambda params, _, state, __: (params[:2], state), None, "got a tensor of shape (2,)"),
        (lambda params, *_: (params, None), None, "as its state from step, got NoneType"),
        (good, lambda _: [], "from init, got list"),
        (good, lambda _: {"m": PARAMS, "t": 0}, "as its state from init, but 't' is of type int: torch.tensor(...)"),
        (lambda params, *_: (params, {"t": 1}), lambda _: {"t": PARAMS}, "from step, but 't' is of type int"),
        (good, lambda: {}, "failed in init: TypeError"),
        (lambda params, delta, state, _: (params.sub_(delta), state), None, "changes params in place in step"),
        (lambda params, delta, state, _: (params - delta.mul_(0.5), state), None, "changes delta in place in step"),
        (
            lambda params, delta, state, _: (params - state["m"].add_(delta), state),
            lambda params: {"m": torch.zeros_like(params)},
            "changes state['m'] in place in step",
        ),
        (lambda params, delta, state, _: ((params - delta).double(), state), None, "in the dtype it was given"),
        (
            lambda params, _, state, __: (params, {"norms": torch.cat([state["norms"], torch.ones(1)])}),
            lambda _: {"norms": torch.zeros(0)},
            "'norms' in the form that it was given, float32 of shape (0,); got float32 of shape (1,)",
        ),
        (
            lambda params, _, state, __: (params, {"t": state["t"] + 0.5}),
            lambda _: {"t": torch.zeros(1, dtype=torch.int64)},
            "'t' in the form that it was given, int64 of shape (1,); got float32 of shape (1,)",
        ),
    ],
)
def test_what_is_wrong_with_it_carries_its_name(step, init, sentence):
    method = FederatedMethod(name="mine", local=(), server=server(step, init))
    with pytest.raises(ValueError, match=f"the server optimizer Mine .*{re.escape(sentence)}"):
        check_server(method, PARAMS)
    if init is not None:
        return  # whatever asks which vectors travel has met it before
    with pytest.raises(ValueError, match="the server optimizer Mine "):
        fedlada.simulate(small_net(), blobs(), method=method, lr=0.1, rounds=1)


@pytest.mark.parametrize("name", recipes.RECIPES)
def test_ours_pass(name):
    check_server(recipes.RECIPES[name](), PARAMS)


def test_the_trial_changes_nothing():
    drawn = server(lambda params, _, state, __: (params + torch.rand_like(params), state))
    params, before = PARAMS.clone(), torch.get_rng_state()
    check_server(FederatedMethod(name="mine", local=(), server=drawn), params)
    assert torch.equal(params, PARAMS)
    assert torch.equal(torch.get_rng_state(), before)


class Direct(FederatedMethod):
    """A method that does without its server."""

    def aggregate(self, server, combined, **_):
        return type(server)(server.params - combined.delta, server.shared, server.optimizer)


def test_a_method_that_aggregates_otherwise_is_not_tried():
    unfit = server(lambda: None)
    result = fedlada.simulate(
        small_net(), blobs(), method=Direct(name="direct", local=(), server=unfit), lr=0.1, rounds=1
    )
    assert len(result.history) == 1


class Counts(ServerOptimizer):
    def __init__(self):
        self.calls = 0

    def step(self, params, delta, state, round):
        self.calls += 1
        return params - delta / self.calls, state


class Draws(ServerOptimizer):
    def step(self, params, delta, state, round):
        return params - delta * torch.rand(1), state


def test_state_in_a_field_is_refused_and_drawing_is_not():
    with pytest.raises(
        ValueError, match=r"Counts gives another result when it is called again: hold state in init and"
    ):
        check_server(FederatedMethod(name="mine", local=(), server=Counts()), PARAMS)
    check_server(FederatedMethod(name="mine", local=(), server=Draws()), PARAMS)


def test_a_state_that_changes_its_form_later_is_named():
    def step(params, delta, state, _):
        count = state["t"] + 1
        return params - delta, {"t": count.double() if count > 1 else count}

    method = FederatedMethod(name="mine", local=(), server=server(step, lambda _: {"t": torch.zeros(1)}))
    with pytest.raises(ValueError, match="Mine must return from step 't' in the form that it was given, float32 of"):
        fedlada.simulate(small_net(), blobs(), method=method, lr=0.1, rounds=2)
