"""Parts of a method that hold tensors of the model's size: the same in every engine, code, folder and federation."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
import torch
from torch import nn

import fedlada
from fedlada.data import Given
from fedlada.flat import flatten
from fedlada.flower import wire
from fedlada.local import AMSGrad, LocalTransform
from fedlada.method import FederatedMethod
from fedlada.server import SGD, ServerOptimizer
from fedlada.trial import check_transform
from tasks import blobs, small_net

EVEN = Given(indices=[range(start, start + 24) for start in range(0, 120, 24)])


@dataclass(frozen=True, eq=False)
class Masked(LocalTransform):
    """Only some parameters are trained."""

    mask: torch.Tensor

    def apply(self, update, local, step):
        return update * self.mask, local


@dataclass(frozen=True, eq=False)
class KeepsMask(LocalTransform):
    """The same by way of each client's memory, out of a field that is no tensor itself."""

    masks: list

    def init_kept(self, params):
        return {"mask": params * 0 + self.masks[0]}

    def apply(self, update, local, step):
        return update * step.kept["mask"], local


@dataclass(frozen=True, eq=False)
class OwnRates(ServerOptimizer):
    """Each parameter has its own server rate."""

    rates: torch.Tensor

    def init(self, params):
        return {}

    def step(self, params, delta, state):
        return params - self.rates * delta, state


def images():
    generator = torch.Generator().manual_seed(3)
    return torch.randn(120, 3, 6, 6, generator=generator), torch.arange(120) % 4


def convolutional():
    """Its weights lie in another order in the stacked engine: channels last, and odd sizes behind."""
    torch.manual_seed(5)
    layers = nn.Conv2d(3, 13, 3), nn.GroupNorm(1, 13), nn.ReLU(), nn.Flatten(), nn.Linear(208, 4)
    return nn.Sequential(*layers)


TASKS = {"dense": (small_net, blobs), "convolutional": (convolutional, images)}


def half_of(model):
    size = sum(parameter.numel() for parameter in model.parameters())
    return (torch.rand(size, generator=torch.Generator().manual_seed(7)) < 0.5).float()


def method_of(*local, server=None):
    return FederatedMethod(name="own", local=local, server=server or SGD(lr=1.0))


def run(task, method, **options):
    model, data = (make() for make in TASKS[task])
    values = {"partition": EVEN, "rounds": 3, "lr": 0.05, "batch_size": 8, "dtype": torch.float64, "device": "cpu"}
    return fedlada.simulate(model, data, method=method, **(values | options))


@pytest.mark.parametrize("engine", ["sequential", "stacked"])
@pytest.mark.parametrize("messages", ["float32", "params=float32:int8"])
@pytest.mark.parametrize("task", TASKS)
def test_what_is_masked_stays_and_the_rest_moves(task, engine, messages):
    model = TASKS[task][0]()
    mask = half_of(model)
    before = flatten(model.parameters()).double()
    for part in (Masked(mask), KeepsMask([mask])):
        result = run(task, method_of(AMSGrad(), part), engine=engine, messages=messages)
        moved = (result.server.params - before).abs() > 1e-12
        assert not moved[mask == 0].any()
        # A ReLU that is off leaves some gradients at zero.
        assert moved[mask == 1].double().mean() > 0.8


@pytest.mark.parametrize("task", TASKS)
def test_engines_agree(task):
    mask = half_of(TASKS[task][0]())
    for method in (method_of(Masked(mask.double())), method_of(KeepsMask([mask]), server=OwnRates(0.5 + mask))):
        sequential, stacked = (run(task, method, engine=name) for name in ("sequential", "stacked"))
        torch.testing.assert_close(stacked.server.params, sequential.server.params, rtol=1e-10, atol=1e-10)


def test_the_optimizer_for_own_loops_takes_it():
    model = small_net()
    mask = half_of(model)
    before = flatten(model.parameters())
    optimizer = fedlada.LocalOptimizer(model.parameters(), method_of(Masked(mask)), lr=0.1)
    x, y = blobs()
    nn.functional.cross_entropy(model(torch.tensor(x[:8]).float()), torch.tensor(y[:8])).backward()
    optimizer.step()
    assert torch.equal(flatten(model.parameters())[mask == 0], before[mask == 0])


def test_a_folder_goes_on_with_the_same_mask_alone(tmp_path):
    mask = torch.ones(sum(parameter.numel() for parameter in convolutional().parameters()))
    mask[:10] = 0
    options = {"out": tmp_path / "run", "rounds": 2}
    run("convolutional", method_of(Masked(mask)), **options)
    run("convolutional", method_of(Masked(mask.clone())), **options)
    other = mask.clone()
    other[600] = 0  # of so many numbers torch prints the ends alone
    with pytest.raises(ValueError, match="holds another run"):
        run("convolutional", method_of(Masked(other)), **options)


def test_server_and_nodes_tell_masks_apart():
    mask, other = torch.ones(5000), torch.ones(5000)
    other[2500] = 0
    assert wire.fingerprint(method_of(Masked(mask))) == wire.fingerprint(method_of(Masked(mask.clone())))
    assert wire.fingerprint(method_of(Masked(mask))) != wire.fingerprint(method_of(Masked(other)))


@dataclass(frozen=True, eq=False)
class MixesClients(LocalTransform):
    mask: torch.Tensor

    def apply(self, update, local, step):
        return update * self.mask / update.norm(), local


def test_the_trial_reaches_what_holds_a_mask():
    check_transform(Masked(torch.ones(7)))
    with pytest.raises(ValueError, match="MixesClients treats clients that are stacked"):
        check_transform(MixesClients(torch.ones(7)))


def test_a_short_vector_is_not_taken_for_one_of_the_models_size():
    @dataclass(frozen=True, eq=False)
    class Shares(LocalTransform):
        levels: torch.Tensor

        def init_shared(self, params):
            return {"levels": self.levels}

        def apply(self, update, local, step):
            return update * step.shared["levels"].sum(dim=-1, keepdim=True), local

    method = method_of(Shares(torch.tensor([0.2, 0.3, 0.5])))
    with pytest.raises(ValueError, match="levels is not of the model's size"):
        fedlada.simulate(small_net(), blobs(), method=method, partition=EVEN, rounds=1, messages="levels=int8")
