"""A check of a method's aggregation before the first round, so that errors name the part that is wrong."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from fedlada.methods.forms import other_form
from fedlada.methods.method import FederatedMethod
from fedlada.methods.random_state import randomness_restored
from fedlada.methods.state import Round
from fedlada.methods.testing.combiners import check_form
from fedlada.methods.testing.fields import changed_field, fields_of, refuse_generator


def check_aggregation(method: FederatedMethod, params: Tensor) -> None:
    """Refuse a method whose server optimizer or combiner violates its contract."""
    check_server(method, params)
    check_form(method)


def check_server(method: FederatedMethod, params: Tensor) -> None:
    """Refuse a server optimizer that cannot take a step on these parameters.

    The step is on copies. A method that overrides `aggregate` may use its server in another way and is not checked.
    """
    if type(method).aggregate is not FederatedMethod.aggregate:
        return
    server, name = method.server, type(method.server).__name__
    refuse_generator(server)
    delta = params.clone().fill_(1e-3)
    given = {"params": params.clone(), "delta": delta, "round.delta": delta.clone()}
    before = {key: (one._version, one.clone()) for key, one in given.items()}
    call = "init"
    try:
        with randomness_restored() as drawn:
            state = server.init(params.clone())
            call = "step"
            if isinstance(state, dict):
                old = {f"state[{key!r}]": one for key, one in state.items() if isinstance(one, Tensor)}
                given, before = given | old, before | {key: (one._version, one.clone()) for key, one in old.items()}
            round = Round(given["round.delta"], 1.0, 0.1, participation=1.0)
            made = server.step(given["params"], delta, state, round)
            fields = fields_of(server)
            again = server.step(params.clone(), delta.clone(), state, round)
            is_random = drawn()
    except Exception as error:
        raise ValueError(
            f"the server optimizer {name} failed in {call}: {type(error).__name__}: {error}; "
            "step(params, delta, state, round) returns the new parameters and the new state"
        ) from error
    if not isinstance(made, (tuple, list)) or len(made) != 2:
        raise ValueError(
            f"the server optimizer {name} must return two things from step, the new parameters and the new state, got "
            f"{_kind(made)}"
        )
    new, after = made
    if not isinstance(new, Tensor) or new.shape != params.shape:
        raise ValueError(
            f"the server optimizer {name} must return parameters of the shape it was given, got {_kind(new)}"
        )
    if new.dtype != params.dtype:
        raise ValueError(
            f"the server optimizer {name} must return parameters in the dtype it was given, {params.dtype}, "
            f"got {new.dtype}"
        )
    for key, (version, value) in before.items():
        if given[key]._version != version or not torch.allclose(given[key], value, rtol=0, atol=0, equal_nan=True):
            raise ValueError(f"the server optimizer {name} changes {key} in place in step: return new tensors")
    if not is_random and not torch.allclose(new, again[0], rtol=0, atol=0, equal_nan=True):
        raise ValueError(
            f"the server optimizer {name} gives another result when it is called again: hold state in init and step, "
            "not in its fields"
        )
    if changed := changed_field(fields, server):
        raise ValueError(f"the server optimizer {name} changes its field {changed!r}: hold state in init and step")
    for call, one in (("init", state), ("step", after)):
        entries = one.items() if isinstance(one, dict) else ()
        if wrong := [(key, value) for key, value in entries if not isinstance(value, Tensor)]:
            got = f"but {wrong[0][0]!r} is of type {_kind(wrong[0][1])}: torch.tensor(...) makes a tensor of a number"
        elif not isinstance(one, dict):
            got = f"got {_kind(one)}"
        else:
            continue
        raise ValueError(f"the server optimizer {name} must return a dict of tensors as its state from {call}, {got}")
    if problem := other_form("step", state, after):
        raise ValueError(f"the server optimizer {name} {problem}")


def _kind(value: Any) -> str:
    return f"a tensor of shape {tuple(value.shape)}" if isinstance(value, Tensor) else type(value).__name__
