"""What users may do with the contract: combiners and looks of their own, in every engine and with the seed's bits."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import dataclass

import pytest
import torch
from fedlada.local import SharpnessAware, TowardGlobalDirection
from fedlada.server import SGD
from fedlada.testing import check_transform
from torch import nn

import fedlada
from fedlada import Combiner, FederatedMethod, LocalTransform, Upload, average, recipes
from fedlada.methods.state import named_tensors
from own_combiners import LinearTotalFirst, TotalFirst
from tasks import UNEQUAL, blobs, small_net

X, Y = blobs()


def run(method, **changes):
    values = {"rounds": 3, "cohort_size": 4, "batch_size": 8, "lr": 0.05, "test": (X, Y)}
    return fedlada.simulate(deep_net(), (X, Y), method=method, **{**values, **changes})


def deep_net():
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, 3))


def with_combiner(combiner):
    return FederatedMethod(name="mine", local=(), server=SGD(), combiner=combiner)


@dataclass(frozen=True)
class NoisyMean(Combiner):
    """A private mean: noise behind the last upload."""

    def combine(self, uploads, weights=None):
        mean = average(uploads, weights)
        return Upload(mean.delta + 1e-3 * torch.randn_like(mean.delta), mean.extra)


@dataclass(frozen=True, eq=False)
class Masked(Combiner):
    """The mean of some parameters alone, by their place in the model."""

    mask: torch.Tensor

    def combine(self, uploads, weights=None):
        mean = average(uploads, weights)
        return Upload(mean.delta * self.mask, mean.extra)


@pytest.mark.parametrize("messages", ["float32", "int8"])
@pytest.mark.parametrize("engine", ["sequential", "stacked"])
@pytest.mark.parametrize("combiner", [TotalFirst(), LinearTotalFirst()])
def test_a_combiner_begins_with_all_weights_in_every_engine(combiner, engine, messages):
    """Over Flower and in several processes: see the integration tests."""
    settings = {"engine": engine, "dtype": torch.float64, "messages": messages, "weights": "examples"}
    method = recipes.fedlada(v_init=1e-4)
    mine = run(method, partition=UNEQUAL, combiner=combiner, **settings)
    expected = run(method, partition=UNEQUAL, **settings)
    for (name, one), (_, other) in zip(named_tensors(mine.server), named_tensors(expected.server), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-8, atol=1e-10, msg=name)


def test_noise_of_a_combiner_is_the_seeds():
    method = with_combiner(NoisyMean())
    first = run(method).server.params
    torch.manual_seed(99)
    assert torch.equal(run(method).server.params, first)
    assert not torch.equal(run(method, seed=1).server.params, first)


@pytest.mark.parametrize("messages", ["float32", "int8"])
def test_a_combiner_sees_the_models_order_in_every_engine(messages):
    mask = torch.zeros(sum(p.numel() for p in deep_net().parameters()))
    mask[:6] = 1
    one, other = (
        run(with_combiner(Masked(mask)), engine=engine, dtype=torch.float64, messages=messages)
        for engine in ("sequential", "stacked")
    )
    torch.testing.assert_close(one.server.params, other.server.params, rtol=1e-10, atol=1e-12)
    start = torch.nn.utils.parameters_to_vector(deep_net().parameters()).double()
    moved = one.server.params != start
    assert moved[:6].all()
    assert not moved[6:].any()


def test_another_combiner_is_another_run(tmp_path):
    run(recipes.fedavg(), rounds=1, out=tmp_path / "run")
    other = FederatedMethod(name="fedavg", local=(), server=SGD(), combiner=NoisyMean())
    with pytest.raises(ValueError, match=r"combiner is .*Mean.* there and .*NoisyMean.* here"):
        run(other, rounds=2, out=tmp_path / "run")


def test_a_combiner_must_be_one():
    with pytest.raises(ValueError, match="combiner must be a Combiner, got 'mean'"):
        FederatedMethod(name="mine", local=(), server=SGD(), combiner="mean")


@dataclass(frozen=True)
class NoisyLook(LocalTransform):
    """Looks in a random direction, behind a first gradient."""

    def look(self, point, local, step, gradient_at):
        gradient_at(point)
        noise = torch.randn_like(point)
        SEEN.append(noise)
        return point + 0.01 * noise, local


SEEN: list[torch.Tensor] = []


def test_a_look_draws_anew_in_every_step():
    SEEN.clear()
    run(FederatedMethod(name="mine", local=(NoisyLook(),), server=SGD()), rounds=1, engine="sequential")
    size = sum(p.numel() for p in deep_net().parameters())
    drawn = [tuple(one.tolist()) for one in SEEN if one.shape == (size,)]
    assert len(set(drawn)) == len(drawn) > 4


@pytest.mark.parametrize(
    "local",
    [(SharpnessAware(rho=0.1), TowardGlobalDirection(alpha=0.3)), (TowardGlobalDirection(alpha=0.3), SharpnessAware())],
)
def test_the_look_combines_with_other_transforms(local):
    method = FederatedMethod(name="mine", local=local, server=SGD())
    one, other = (run(method, engine=engine, dtype=torch.float64) for engine in ("sequential", "stacked"))
    torch.testing.assert_close(one.server.params, other.server.params, rtol=1e-10, atol=1e-12)
    plain = run(recipes.fedcm(alpha=0.3), dtype=torch.float64)
    assert not torch.allclose(one.server.params, plain.server.params, rtol=1e-4)


@dataclass(frozen=True)
class TwoLooks(LocalTransform):
    """Begins elsewhere than at the parameters, asks twice, and keeps a gradient as it was given."""

    elementwise = True

    def begin(self, shared, kept, like):
        return {"seen": torch.zeros_like(like)}

    def look(self, point, local, step, gradient_at):
        first = gradient_at(point + 0.1 * local["seen"])
        second = gradient_at(point - 0.1 * first)
        return point + 0.05 * (first - second), {"seen": first}


@dataclass(frozen=True)
class LookByNumbers(LocalTransform):
    """Asks as long as the gradient is large, which only numbers tell."""

    elementwise = True

    def look(self, point, local, step, gradient_at):
        first = gradient_at(point)
        for _ in range(3):
            gradient = gradient_at(point)
            if gradient.abs().max() < 1e-6:
                break
            point = point - 0.1 * gradient
        return point + 0.1 * first, local


@dataclass(frozen=True, kw_only=True)
class LookByRound(LocalTransform):
    """Asks more often in later rounds, by a number that the server sends to all."""

    elementwise = True

    def init_shared(self, params):
        return {"round": params.new_ones(1)}

    def merge(self, shared, mean, round):
        return {"round": shared["round"] + 1}

    def look(self, point, local, step, gradient_at):
        first = gradient_at(point)
        if step.shared["round"].flatten()[0] > 1:
            point = point - 0.1 * gradient_at(point + 0.01)
        return point + 0.1 * first, local


LOOKS = [TwoLooks(), LookByRound()]


@pytest.mark.parametrize("look", LOOKS)
def test_any_look_is_stacked(look):
    method = FederatedMethod(name="mine", local=(look,), server=SGD())
    one, other = (run(method, engine=engine, dtype=torch.float64) for engine in ("sequential", "stacked"))
    assert other.engine == "stacked"
    torch.testing.assert_close(one.server.params, other.server.params, rtol=1e-10, atol=1e-12)
    plain = run(recipes.fedavg(), dtype=torch.float64)
    assert not torch.allclose(one.server.params, plain.server.params, rtol=1e-4)


def test_a_look_that_asks_by_numbers_is_each_clients_own():
    """Stacked, it would ask until the gradients of all clients are small."""
    method = FederatedMethod(name="mine", local=(LookByNumbers(),), server=SGD())
    with pytest.warns(UserWarning, match="LookByNumbers\\) reads numbers in Python"):
        run(method, engine="stacked", dtype=torch.float64)


def test_gradients_of_a_step_are_counted():
    one = (FederatedMethod(name="mine", local=(look,), server=SGD()) for look in (TwoLooks(), SharpnessAware()))
    assert [method.gradients_per_step for method in one] == [3, 2]
    assert [recipe().gradients_per_step for recipe in (recipes.fedavg, recipes.fedlesam, recipes.fedsmoo)] == [1, 1, 2]


def test_the_mean_of_the_clients_models_is_evaluated_too():
    result = run(recipes.feddyn(mu=0.1), rounds=2)
    row = result.history[-1]
    mean = result.server.params - result.server.optimizer["h"]
    model = deep_net()
    torch.nn.utils.vector_to_parameters(mean, model.parameters())
    expected = fedlada.evaluate(model, (X, Y), nn.functional.cross_entropy)
    assert row["test_loss_of_mean"] == pytest.approx(expected["loss"])
    assert row["test_accuracy_of_mean"] == expected["accuracy"]
    assert row["test_loss_of_mean"] != row["test_loss"]
    assert "test_loss_of_mean" not in run(recipes.fedavg(), rounds=1).history[-1]


def test_a_closure_that_fails_leaves_the_parameters_where_they_were():
    model = small_net()
    optimizer = fedlada.LocalOptimizer(model.parameters(), recipes.fedsam(), lr=0.1)
    before, calls = optimizer.vector, []

    def closure():
        calls.append(1)
        if len(calls) == 2:
            raise RuntimeError("out of data")
        optimizer.zero_grad()
        loss = model(torch.from_numpy(X).float()).square().mean()
        loss.backward()
        return loss

    with pytest.raises(RuntimeError, match="out of data"):
        optimizer.step(closure)
    assert torch.equal(optimizer.vector, before)


def test_a_transform_that_does_nothing_is_refused():
    class Nothing(LocalTransform):
        pass

    with pytest.raises(ValueError, match="Nothing implements neither apply nor look"):
        check_transform(Nothing())


@dataclass(frozen=True)
class FirstHalf(LocalTransform):
    """Says that the order does not matter, and looks at places."""

    elementwise = True

    def apply(self, update, local, step):
        return torch.cat([update[..., :1], 0 * update[..., 1:]], dim=-1), local


def test_a_wrong_declaration_is_refused():
    with pytest.raises(ValueError, match="FirstHalf declares elementwise = True, but its result depends"):
        check_transform(FirstHalf())


@pytest.mark.slow
def test_public_places_hide_no_other_module():
    program = """
import fedlada, importlib.util
from fedlada.local.transform import LocalTransform
assert LocalTransform is fedlada.LocalTransform
print([name for name in fedlada._MODULES if importlib.util.find_spec(name) is not None])
"""
    run = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=120, check=False)
    assert run.stdout.strip() == "[]", run.stderr
