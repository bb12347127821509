"""Steps in the model's own memory have the bits of steps on whole vectors."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import fedlada
from fedlada.data import as_samples
from fedlada.engines import SequentialEngine
from fedlada.engines.writes import Writes
from fedlada.methods.local import LocalTransform
from fedlada.models.flat import FlatModel

NUM = 60

pytestmark = pytest.mark.filterwarnings("ignore:the loss of a training batch does not depend")


@dataclass(frozen=True)
class Unchanged(LocalTransform):
    """With it a method has a transform, so that its steps are on whole vectors."""

    def apply(self, update, local, step):
        return update, local


class Plain(nn.Module):
    """Dropout, a parameter that the loss does not depend on, and negative zeros whose gradients are zeros."""

    def __init__(self):
        super().__init__()
        self.first, self.last = nn.Linear(6, 5), nn.Linear(5, 3)
        self.zeros, self.unused = nn.Parameter(torch.full((3,), -0.0)), nn.Parameter(torch.tensor([1.0, -0.0]))

    def forward(self, x):
        return self.last(F.dropout(F.relu(self.first(x)), 0.3, self.training)) + self.zeros * 0.0


class SharedGradient(nn.Module):
    """Autograd gives both parameters views of one tensor as their gradients."""

    def __init__(self):
        super().__init__()
        self.one, self.other = nn.Parameter(torch.randn(3, 6)), nn.Parameter(torch.randn(6, 3))

    def forward(self, x):
        return x @ (self.one.view(-1) + self.other.view(-1)).view(3, 6).T


class Clamped(nn.Linear):
    """Writes to its parameters, behind autograd's back."""

    def forward(self, x):
        self.weight.data.clamp_(-0.5, 0.5)
        return super().forward(x)


class Renormed(nn.Module):
    def __init__(self):
        super().__init__()
        self.words, self.last = nn.Embedding(9, 6, max_norm=0.5), nn.Linear(6, 3)

    def forward(self, x):
        return self.last(self.words((x.abs() * 3).long().clamp(max=8)).sum(1))


def data():
    random = torch.Generator().manual_seed(3)
    return torch.randn(NUM, 6, generator=random), torch.randint(3, (NUM,), generator=random)


def run(model, local, dtype, server=fedlada.server.SGD()):  # noqa: B008
    method = fedlada.FederatedMethod(name="sgd", local=local, server=server)
    clients = [range(start, start + 15) for start in range(0, NUM, 15)]
    options = {"partition": clients, "rounds": 3, "lr": 0.3, "batch_size": 4, "local_epochs": 2, "cohort_size": 3}
    result = fedlada.simulate(model, data(), method=method, dtype=dtype, device="cpu", engine="sequential", **options)
    seen = [(row["train_loss"], row["drift"]) for row in result.history.rows]
    return [value.numpy().tobytes() for value in result.model.state_dict().values()], seen


class ItsOwnGradient(torch.autograd.Function):
    """Half the sum of squares, whose gradient is given as a view of the parameter itself."""

    @staticmethod
    def forward(ctx, weight):
        ctx.save_for_backward(weight)
        return weight.pow(2).sum() / 2

    @staticmethod
    def backward(ctx, _grad):
        return ctx.saved_tensors[0].view(-1)


class Penalised(nn.Module):
    def __init__(self):
        super().__init__()
        self.last, self.scale = nn.Linear(6, 3), nn.Parameter(torch.ones(3))

    def forward(self, x):
        return self.last(x) + ItsOwnGradient.apply(self.scale)


class Product(torch.autograd.Function):
    """An inner product, whose gradients are given as views of the two parameters."""

    @staticmethod
    def forward(ctx, one, other):
        ctx.save_for_backward(one, other)
        return one @ other

    @staticmethod
    def backward(ctx, _grad):
        one, other = ctx.saved_tensors
        return other.view(-1), one.view(-1)


class Crossed(nn.Module):
    """Each of two parameters is the other's gradient."""

    def __init__(self):
        super().__init__()
        self.last, self.one, self.other = nn.Linear(6, 3), *(nn.Parameter(torch.randn(4)) for _ in range(2))

    def forward(self, x):
        return self.last(x) + Product.apply(self.one, self.other)


MODELS = [Plain, Crossed, SharedGradient, Penalised, lambda: Clamped(6, 3), Renormed]


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("make", MODELS)
def test_steps_in_place_have_the_bits_of_steps_on_vectors(make, dtype):
    torch.manual_seed(0)
    model = make()
    assert run(model, (), dtype) == run(model, (Unchanged(),), dtype)


@dataclass(frozen=True)
class NegativeZeros(fedlada.server.SGD):
    """A server of the user's that makes negative zeros in the first round."""

    def init(self, params):
        return {"round": params.new_zeros(1)}

    def step(self, params, delta, state, round):
        new, _ = super().step(params, delta, {}, round)
        is_first = state["round"] == 0
        return torch.where((new == 0) & is_first, -0.0, new), {"round": state["round"] + 1}


def test_negative_zeros_that_come_later_are_seen():
    torch.manual_seed(0)
    model = Plain()
    with torch.no_grad():
        model.zeros.zero_()
        model.unused.fill_(1.0)
    found = run(model, (), "float32", NegativeZeros())
    assert found == run(model, (Unchanged(),), "float32", NegativeZeros())
    assert found[0][0] == torch.full((3,), -0.0).numpy().tobytes()


def engine(model, method):
    samples = as_samples(data(), torch.device("cpu"), torch.float32)
    return SequentialEngine(model, method, samples, None, device=torch.device("cpu"), dtype=torch.float32)


@pytest.mark.parametrize(("make", "in_place"), list(zip(MODELS, (True, True, True, True, False, False), strict=True)))
def test_which_models_are_stepped_in_place(make, in_place):
    assert engine(make(), fedlada.recipes.fedavg()).in_place == in_place


def test_a_batch_without_a_gradient_moves_nothing():
    flat = FlatModel(nn.Linear(6, 3), torch.device("cpu"))
    other = nn.Parameter(torch.ones(()))
    assert flat.parts_of(other * 2) == ([], [])


@dataclass(frozen=True, kw_only=True)
class Standing(fedlada.FederatedMethod):
    """A user's own method whose clients stand still."""

    def move(self, local, gradient):
        return super().move(local, 0 * gradient)


def test_an_overridden_move_is_called():
    method = Standing(name="standing", local=(), server=fedlada.server.SGD())
    assert not engine(Plain(), method).in_place
    result = fedlada.simulate(
        nn.Linear(6, 3), data(), method=method, partition=[range(NUM)], rounds=2, lr=0.3, device="cpu"
    )
    assert result.history[-1]["drift"] == 0


@pytest.mark.parametrize(
    ("make", "writes"), [(Plain, False), (SharedGradient, False), (lambda: Clamped(6, 3), True), (Renormed, True)]
)
def test_a_model_that_writes_to_its_parameters_is_found(make, writes):
    torch.manual_seed(0)
    flat = FlatModel(make(), torch.device("cpu"))
    with Writes(flat.vector) as found:
        flat.module(data()[0])
    assert found.found == writes


def test_the_broadcast_is_not_written_to():
    torch.manual_seed(0)
    servers = []

    class Keep(fedlada.Observer):
        def on_round(self, simulation, row):
            servers.append((simulation.server.params, simulation.server.params.clone()))

    options = {"partition": [range(30), range(30, NUM)], "rounds": 3, "lr": 0.3, "batch_size": 4, "local_epochs": 1}
    fedlada.simulate(Plain(), data(), method="fedavg", callbacks=[Keep()], device="cpu", **options)
    assert all(torch.equal(now, then) for now, then in servers)
