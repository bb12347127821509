"""Which frozen parameters and buffers count as the server's."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest
import torch
from torch import nn

from fedlada.flower import client_app
from fedlada.flower.untrained import is_same, summary
from small_federation import QUICK, grid_of, load, strategy_of
from tasks import small_net


class Backbone(nn.Module):
    """A frozen part with all kinds of tensors before the small net."""

    def __init__(self, seed=0):
        super().__init__()
        torch.manual_seed(seed)
        self.net = small_net()
        self.frozen = nn.Linear(300, 400).requires_grad_(False)
        self.small = nn.Parameter(torch.randn(3), requires_grad=False)
        self.register_buffer("mask", torch.triu(torch.full((4, 4), -torch.inf), 1))
        self.register_buffer("places", torch.arange(7))
        self.register_buffer("halves", torch.randn(9).half())
        self.register_buffer("turns", torch.polar(torch.ones(5), torch.arange(5.0)))

    def forward(self, x):
        return self.net(x) + 0.0 * self.frozen.weight.sum()


def plus_ulps(model):
    """The rounding of another processor: the last bits of all floats."""
    for one in (*model.frozen.parameters(), model.small):
        one.data *= 1 + 2e-6 * torch.randn_like(one)


def another_row(model):
    model.frozen.weight.data[7] += 0.1


def scaled(model):
    model.frozen.weight.data *= 1.01


def of_its_own(model):
    model.small.data[1] = -model.small.data[1]


def no_mask(model):
    model.mask[0, 1] = 0.0


def another_place(model):
    model.places[6] = 5


def another_shape(model):
    model.frozen.weight = nn.Parameter(model.frozen.weight.T.clone(), requires_grad=False)


def another_dtype(model):
    model.halves = model.halves.float()


def another_name(model):
    model.other, model.small = model.small, None


def trained_now(model):
    model.frozen.requires_grad_(True)


DIFFERENT = [
    another_row, scaled, of_its_own, no_mask, another_place, another_shape, another_dtype, another_name, trained_now
]  # fmt: skip


@pytest.mark.parametrize("change", DIFFERENT)
def test_other_frozen_parts_are_told_apart(change):
    model = Backbone()
    change(model)
    assert not is_same(summary(model), summary(Backbone()))


def test_rounding_makes_no_other_model():
    model = Backbone()
    plus_ulps(model)
    assert is_same(summary(model), summary(Backbone()))
    assert not is_same(summary(Backbone(1)), summary(Backbone()))
    assert is_same(summary(nn.ModuleDict({"_orig_mod": model})), summary(Backbone()))  # as torch.compile names it
    assert is_same(summary(small_net()), summary(small_net(seed=3)))  # nothing frozen


@pytest.mark.slow
def test_processors_with_other_instructions_are_one_federation():
    """Torch draws other last bits there, as on another architecture."""
    code = "from test_untrained import Backbone, summary; print(summary(Backbone()))"
    path = os.pathsep.join([os.path.dirname(__file__), *sys.path])
    told = [
        subprocess.run(
            [sys.executable, "-c", code],
            env={**os.environ, "ATEN_CPU_CAPABILITY": capability, "PYTHONPATH": path},
            capture_output=True, text=True, check=True,
        ).stdout.strip()
        for capability in ("default", "")
    ]  # fmt: skip
    assert is_same(*told)


def test_a_node_is_asked_with_rounding_and_refused_with_another_backbone(caplog):
    other = Backbone()
    plus_ulps(other)
    apps = [client_app(one, load, method="fedavg") for one in (Backbone(), other, Backbone(1))]
    grid = grid_of("fedavg")
    grid.app = lambda message, context: apps[min(2, context.node_config["partition-id"])](message, context)
    strategy = strategy_of("fedavg", replies=QUICK, cohort_size=None, num_clients=3)
    strategy.model = Backbone()
    grid.leave(3)
    grid.leave(4)
    strategy.replies = type(QUICK)(time_limit=0.3, patience=0.6, nodes=2)
    real = strategy.run(grid, 1, progress=False)
    assert (real.history[0]["clients"], real.history[0]["lost"]) == ([0, 1], [2])
    assert "which do not travel, are not the server's" in caplog.text


def test_a_node_that_changes_its_backbone_in_a_run_is_refused(caplog):
    """It may restart with another file, before its connection counts as lost."""
    models = [Backbone(), Backbone(1)]
    apps = [client_app(one, load, method="fedavg") for one in models]
    grid, now = grid_of("fedavg"), [0]
    grid.app = lambda message, context: apps[now[0] * (context.node_config["partition-id"] == 1)](message, context)
    strategy = strategy_of("fedavg", replies=QUICK, cohort_size=None)
    strategy.model = Backbone()
    real = strategy.run(grid, 2, callbacks=[lambda _simulation, _row: now.__setitem__(0, 1)], progress=False)
    assert [row["refused"] for row in real.history] == [[], [1]]
    assert "round 2: client 1 is refused: its model's frozen parameters or buffers" in caplog.text
