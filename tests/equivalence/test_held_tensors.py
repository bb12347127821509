"""Parts of a method that hold tensors of the model's size: the same in every engine, code, folder and federation."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import pytest
import torch
from torch import nn

import fedlada
import small_federation
from fedlada.data import Given
from fedlada.flower import wire
from fedlada.methods.local import AMSGrad, LocalTransform
from fedlada.methods.method import FederatedMethod
from fedlada.methods.server import SGD, ServerOptimizer
from fedlada.methods.testing.transforms import check_transform
from fedlada.models.flat import flatten
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

    def step(self, params, delta, state, round):
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


def test_the_optimizer_needs_something_to_train():
    frozen = [parameter.requires_grad_(False) for parameter in small_net().parameters()]
    with pytest.raises(ValueError, match="there is nothing to train"):
        fedlada.LocalOptimizer(frozen, method_of(), lr=0.1)


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
    with pytest.raises(ValueError, match="MixesClients gives different results for stacked clients"):
        check_transform(MixesClients(torch.ones(7)))


@dataclass(frozen=True, eq=False)
class Shares(LocalTransform):
    """A few numbers that travel, and are not of the model's size."""

    levels: torch.Tensor

    def init_shared(self, params):
        return {"levels": self.levels}

    def apply(self, update, local, step):
        return update * step.shared["levels"].sum(dim=-1, keepdim=True), local


@pytest.mark.parametrize("with_mask", [False, True])
def test_a_short_vector_is_not_taken_for_one_of_the_models_size(with_mask):
    parts = (Shares(torch.tensor([0.2, 0.3, 0.5])), *([Masked(half_of(small_net()))] if with_mask else []))
    with pytest.raises(ValueError, match="levels is not of the model's size"):
        run("dense", method_of(*parts), messages="levels=int8")


@dataclass(frozen=True, eq=False)
class Looked(LocalTransform):
    """A mask beside a table that is longer than the model."""

    mask: torch.Tensor
    table: torch.Tensor

    def apply(self, update, local, step):
        return update * self.mask * self.table[4000], local


@dataclass(frozen=True, eq=False)
class Pulled(LocalTransform):
    """Torch's `lerp` takes one precision alone."""

    target: torch.Tensor

    def apply(self, update, local, step):
        return torch.lerp(update, self.target.expand_as(update), 0.1), local


@dataclass(frozen=True, eq=False, slots=True)
class Slotted(LocalTransform):
    mask: torch.Tensor

    def apply(self, update, local, step):
        return update * self.mask, local


class Pair(NamedTuple):
    head: torch.Tensor
    scale: float


@dataclass(frozen=True, eq=False)
class InPairs(LocalTransform):
    pair: Pair
    inner: Masked

    def apply(self, update, local, step):
        return self.inner.apply(update * self.pair.head * self.pair.scale, local, step)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("held", [torch.float32, torch.float64, torch.bool])
@pytest.mark.slow
def test_whatever_holds_them_and_in_whatever_precision(held, dtype):
    mask = half_of(convolutional())
    own = mask.to(held)
    trained = nn.Parameter(mask) if held.is_floating_point else own
    parts = [Masked(own), Masked(trained), Slotted(own), InPairs(Pair(own, 0.5), Masked(own))]
    parts += [Looked(own, torch.ones(5000))] + ([Pulled(own)] if held.is_floating_point else [])
    for part in parts:
        ends = [run("convolutional", method_of(part), engine=name, dtype=dtype) for name in ("sequential", "stacked")]
        near = 1e-10 if dtype == torch.float64 else 1e-4
        torch.testing.assert_close(ends[0].server.params, ends[1].server.params, rtol=near, atol=near)
        assert ends[0].server.params.dtype == dtype
        assert not ends[0].server.params.requires_grad


def test_a_mask_of_another_model_is_one_sentence():
    with pytest.raises(ValueError, match="'own' holds tensors of length 9 and cannot take a step of a model of 1226"):
        run("convolutional", method_of(Masked(torch.ones(9))))


def test_a_mask_is_the_one_that_was_given():
    mask = half_of(small_net())
    expected = run("dense", method_of(Masked(mask.clone())), dtype=torch.float32)

    def erase(*_):
        mask.zero_()

    found = run("dense", method_of(Masked(mask)), callbacks=[erase], dtype=torch.float32)
    assert torch.equal(found.server.params, expected.server.params)
    assert not mask.any()


@dataclass(frozen=True, eq=False)
class Positions(LocalTransform):
    where: torch.Tensor

    def apply(self, update, local, step):
        return update.index_fill(-1, self.where, 0.0), local


class FirstStays(LocalTransform):
    def apply(self, update, local, step):
        return torch.cat([torch.zeros_like(update[..., :351]), update[..., 351:]], dim=-1), local


class RemembersFirst(LocalTransform):
    """Its steps do not depend on the order, but what it leaves a client does."""

    def init_kept(self, params):
        return {"first": params * 0}

    def apply(self, update, local, step):
        return update, local

    def finish(self, local, done, step):
        return {}, {"first": done.delta.cumsum(dim=-1)}


def test_what_is_remembered_in_order_is_not_stacked():
    with pytest.warns(UserWarning, match="a transform of own depends on the order of the parameters"):
        run("convolutional", method_of(RemembersFirst()), engine="stacked")


@pytest.mark.parametrize("part", [Positions(torch.arange(351)), FirstStays()])
def test_what_depends_on_the_order_is_not_stacked(part):
    before = flatten(convolutional().parameters()).double()
    with pytest.warns(UserWarning, match="a transform of own depends on the order of the parameters"):
        result = run("convolutional", method_of(part), engine="stacked")
    moved = (result.server.params - before).abs() > 1e-12
    assert not moved[:351].any()
    assert moved[351:].any()


def test_what_a_dataclass_computes_for_itself_is_no_hyper_parameter():
    @dataclass(frozen=True, eq=False)
    class Lazy(LocalTransform):
        share: float

        @cached_property
        def mask(self):
            return torch.ones(5)

        def apply(self, update, local, step):
            return update * self.share, local

    used, fresh = Lazy(0.5), Lazy(0.5)
    assert used.mask.sum() == 5
    assert wire.fingerprint(method_of(used)) == wire.fingerprint(method_of(fresh))


@dataclass(frozen=True, eq=False)
class FromPrior(LocalTransform):
    """Each client's memory begins with what is held."""

    prior: torch.Tensor

    def init_kept(self, params):
        return {"c": params.clone().zero_().add_(self.prior)}

    def apply(self, update, local, step):
        return update - 0.1 * step.kept["c"], local

    def finish(self, local, done, step):
        return {}, {"c": step.kept["c"] + done.delta}


def test_over_flower():
    model = small_net()
    prior = half_of(model)
    for method in (method_of(Masked(prior), AMSGrad()), method_of(FromPrior(prior), server=OwnRates(0.5 + prior))):
        strategy = small_federation.strategy_of(method, replies=small_federation.QUICK)
        result = strategy.run(small_federation.grid_of(method), 3, progress=False)
        again = small_federation.replayed(result.history, method)
        assert torch.equal(result.server.params, again.server.params)
