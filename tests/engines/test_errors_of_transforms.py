"""A transform that fails is named before the first round; one that fails for stacked clients alone runs without."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
import torch

import fedlada
from fedlada import FederatedMethod, LocalTransform, ServerOptimizer
from fedlada.methods.local.transform import HOOKS
from tasks import blobs, small_net


def run(engine, transform=None, server=None):
    local = () if transform is None else (transform,)
    method = FederatedMethod(name="mine", local=local, server=server or fedlada.server.SGD())
    return fedlada.simulate(small_net(), blobs(), method=method, engine=engine, lr=0.05, rounds=2)


@dataclass(frozen=True)
class ScalarMemory(LocalTransform):
    """Right for one client: of stacked ones its memory does not fit beside the updates."""

    def init_kept(self, params):
        return {"t": torch.zeros(())}

    def apply(self, update, local, step):
        return update / (1 + step.kept["t"]), local

    def finish(self, local, done, step):
        return {}, {"t": step.kept["t"] + 1}


class OneAxis(LocalTransform):
    def apply(self, update, local, step):
        if update.ndim > 1:
            raise KeyError("one axis only")
        return update, local


@pytest.mark.parametrize(("transform", "said"), [(ScalarMemory(), "RuntimeError: The size"), (OneAxis(), "KeyError")])
def test_what_fails_for_stacked_clients_runs_one_after_another_and_says_why(transform, said):
    name = type(transform).__name__
    with pytest.warns(UserWarning, match=rf"a transform of mine fails on a trial of stacked clients \({name}: {said}"):
        result = run("stacked", transform)
    assert result.engine == "sequential"
    assert torch.equal(result.server.params, run("sequential", transform).server.params)


def failing(hook):
    """A transform whose hook of that name fails."""

    def fails(self, *_):
        return {}[self]

    fails.__code__ = fails.__code__.replace(co_name=hook)
    return type("Fails", (OneAxis,), {hook: fails})()


@pytest.mark.parametrize("engine", ["sequential", "stacked"])
@pytest.mark.parametrize("hook", HOOKS)
def test_an_error_names_the_transform_and_its_hook(hook, engine):
    with pytest.raises(ValueError) as caught:
        run(engine, failing(hook))
    said = f"the method 'mine' cannot take a first step: Fails.{hook} failed: KeyError: "
    assert str(caught.value).startswith(said)
    assert isinstance(caught.value.__cause__, KeyError)


def test_an_error_names_the_server():
    class Fails(ServerOptimizer):
        def init(self, params):
            return {"m": params + torch.zeros(params.numel() + 1)}

        def step(self, params, delta, state, round):
            return params, state

    with pytest.raises(ValueError, match=r"cannot take a first step: Fails\.init failed: RuntimeError: The size"):
        run("sequential", server=Fails())
