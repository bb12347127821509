"""FedNova's parts: exact with equal steps, one number more on the wire, and refused where they do not fit."""

from __future__ import annotations

import pytest
import torch
from fedlada.combine import Normalized
from fedlada.local import StepCount
from fedlada.testing import check_combiner, check_transform

import fedlada
from driver import run_method
from fedlada import FederatedMethod, recipes
from reference.problem import make_problem
from tasks import UNEQUAL, blobs, small_net


def run(method, **changes):
    values = {"partition": UNEQUAL, "cohort_size": 3, "batch_size": 10, "lr": 0.05, "dtype": torch.float64}
    return fedlada.simulate(small_net(), blobs(), method=method, **{"rounds": 4, **values, **changes})


def test_the_parts_keep_their_contracts():
    check_transform(StepCount())
    check_combiner(Normalized(), recipes.fednova())


@pytest.mark.parametrize("hyper", [{}, {"server_lr": 0.7, "weight_decay": 0.02, "clip_norm": 2.5}])
def test_with_equal_steps_it_is_fedavg(hyper):
    problem = make_problem(seed=3, equal_steps=True)
    pairs = zip(
        run_method(recipes.fednova(**hyper), problem), run_method(recipes.fedavg(**hyper), problem), strict=True
    )
    for one, other in pairs:
        torch.testing.assert_close(one.params, other.params, rtol=1e-12, atol=1e-12)
    assert not torch.allclose(run(recipes.fednova()).server.params, run(recipes.fedavg()).server.params, rtol=1e-4)


def test_a_client_sends_one_number_more():
    assert recipes.fednova().num_vectors() == (1, 1)
    nova, plain = (run(method).history[-1] for method in (recipes.fednova(), recipes.fedavg()))
    assert nova["bytes_by_vector"]["up/steps"] == 8 * len(nova["clients"])
    assert nova["bytes_by_vector"]["up/delta"] == plain["bytes_by_vector"]["up/delta"]
    assert nova["bytes_down"] == plain["bytes_down"]


@pytest.mark.parametrize("messages", ["float32", "lean"])
@pytest.mark.parametrize("engine", ["sequential", "stacked"])
def test_a_resumed_run_is_the_same(engine, messages, tmp_path):
    settings = {"engine": engine, "messages": messages, "weights": "examples"}
    whole = run(recipes.fednova(), **settings)
    run(recipes.fednova(), rounds=2, out=tmp_path / "run", **settings)
    assert torch.equal(run(recipes.fednova(), out=tmp_path / "run", **settings).server.params, whole.server.params)


def test_without_the_number_of_steps_it_is_refused():
    method = FederatedMethod(name="mine", local=(), server=fedlada.server.SGD(), combiner=Normalized())
    with pytest.raises(ValueError, match=r"Normalized needs each client's number of steps: put StepCount\(\) into"):
        run(method)


def test_it_keeps_its_combiner():
    with pytest.raises(ValueError, match="fednova has a combiner of its own"):
        run(recipes.fednova(), combiner="median")
