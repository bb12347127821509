"""A copy of the user's model is trained: what would be lost with it, or would change the user's own, is refused."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import fedlada

GENERATOR = torch.Generator().manual_seed(1)
X, Y = torch.randn(40, 6, generator=GENERATOR, dtype=torch.float64), torch.arange(40) % 3


def run(model, x=X, **changes):
    values = {"method": "fedavg", "rounds": 2, "lr": 0.1, "batch_size": 8, "device": "cpu", "progress": False}
    return fedlada.simulate(model, (x, Y), **{**values, **changes})


class Centred(nn.Module):
    """Keeps a running centre of its inputs, which is not trained."""

    def __init__(self, *, first_in: int = 0, behind_autograd: bool = False):
        super().__init__()
        self.last = nn.Linear(6, 3)
        self.centre = nn.Parameter(torch.ones(6), requires_grad=False)
        self.first_in, self.behind_autograd, self.batches = first_in, behind_autograd, 0

    def forward(self, x):
        self.batches += 1
        if self.batches > self.first_in:
            with torch.no_grad():
                (self.centre.data if self.behind_autograd else self.centre).mul_(0.9).add_(0.1 * x.mean(0))
        return self.last(x - self.centre)


@pytest.mark.parametrize(
    ("changes", "engine"),
    [({}, "sequential"), ({}, "stacked"), ({"first_in": 12}, "sequential"), ({"behind_autograd": True}, "sequential")],
)
@pytest.mark.filterwarnings("ignore:the stacked engine cannot be used")
def test_a_frozen_parameter_that_changes_is_refused_and_gets_its_values_back(changes, engine):
    model = Centred(**changes).double()
    with pytest.raises(ValueError, match=r"changes the frozen parameter 'centre', which all clients share .*: compute"):
        run(model, engine=engine, rounds=6)
    assert torch.equal(model.centre, torch.ones(6, dtype=torch.float64))


def test_writes_to_large_frozen_parts_are_seen_without_a_copy(monkeypatch):
    monkeypatch.setattr("fedlada.engines.untrained.MOST_COPIED", 3)
    with pytest.raises(ValueError, match="changes the frozen parameter 'centre'"):
        run(Centred().double())
    frozen = nn.Sequential(nn.Linear(6, 6).requires_grad_(False), nn.Linear(6, 3)).double()
    assert len(run(frozen).history.rows) == 2


def renormed():
    torch.manual_seed(0)
    return nn.Sequential(nn.Embedding(12, 5, max_norm=0.5), nn.Flatten(), nn.Linear(20, 3)).double()


class Clamped(nn.Linear):
    def forward(self, x):
        self.weight.data.clamp_(-0.2, 0.2)
        return super().forward(x)


def clamped():
    torch.manual_seed(0)
    return Clamped(6, 3).double()


@pytest.mark.parametrize("engine", ["sequential", "stacked"])
@pytest.mark.parametrize(
    "method", [fedlada.recipes.fedavg(), fedlada.recipes.fedprox(mu=0.0)], ids=lambda one: one.name
)
@pytest.mark.parametrize("make", [renormed, clamped])
@pytest.mark.filterwarnings("ignore:the stacked engine cannot be used")
def test_what_a_model_writes_to_its_parameters_stays_as_in_a_loop_by_hand(make, method, engine):
    x = torch.randint(0, 12, (40, 4), generator=torch.Generator().manual_seed(1)) if make is renormed else X
    hand, losses = make(), []
    optimizer = torch.optim.SGD(hand.parameters(), lr=0.5)
    for _ in range(20):
        optimizer.zero_grad()
        loss = F.cross_entropy(hand(x), Y)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    options = {"partition": [range(40)], "batch_size": 40, "local_steps": 20, "rounds": 1, "lr": 0.5}
    result = run(make(), x, method=method, engine=engine, **options)
    assert result.history["train_loss"][0] == pytest.approx(sum(losses) / 20, rel=1e-12)
    for name, one in result.model.state_dict().items():
        assert torch.allclose(one, hand.state_dict()[name], rtol=0, atol=1e-12)


@pytest.mark.parametrize("kind", ["register_hook", "register_post_accumulate_grad_hook"])
@pytest.mark.parametrize("engine", ["sequential", "stacked"])
def test_hooks_on_parameters_are_refused(kind, engine):
    model = nn.Linear(6, 3).double()
    handle = getattr(model.weight, kind)(lambda _: None)
    for given in (model, lambda: model):
        with pytest.raises(
            ValueError, match=r"the parameter 'weight' has a hook, which the copy .*: change the gradient"
        ):
            run(given, engine=engine)
    handle.remove()
    assert len(run(model, engine=engine).history.rows) == 2


@pytest.mark.parametrize("engine", ["sequential", "stacked"])
def test_a_loss_that_computes_with_the_model_that_was_given_is_refused(engine):
    model = nn.Linear(6, 3).double()

    def penalised(output, target):
        return F.cross_entropy(output, target) + model.weight.square().sum()

    with pytest.raises(ValueError, match=r"the loss computes with 'weight' of the model that was given, and a copy"):
        run(model, loss=penalised, engine=engine)
    assert model.weight.grad is None
    teacher = copy.deepcopy(model)

    def distilled(output, _):
        return F.mse_loss(output, teacher(X[: len(output)]))

    assert len(run(model, loss=distilled, engine="sequential").history.rows) == 2
