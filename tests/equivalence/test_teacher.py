"""A loss with the global model as its teacher, as the documentation has it, equals a loop by hand."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import fedlada
from fedlada import recipes

RANDOM = torch.Generator().manual_seed(0)
DATA = [
    (torch.randn(size, 5, generator=RANDOM, dtype=torch.float64), torch.randint(0, 3, (size,), generator=RANDOM))
    for size in (6, 9, 12)
]
NET = nn.Sequential(nn.Linear(5, 8), nn.Tanh(), nn.Linear(8, 3)).double()
TEACHER = copy.deepcopy(NET)


class Student(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = copy.deepcopy(NET)

    def forward(self, x):
        if not self.training:
            return self.net(x)
        with torch.no_grad():
            taught = TEACHER(x)
        return torch.cat([self.net(x), taught], dim=1)


def not_true_distillation(outputs, y):
    own, taught = outputs[:, :3], outputs[:, 3:]
    if not taught.shape[1]:
        return F.cross_entropy(own, y)
    mask = -1e9 * F.one_hot(y, 3)
    return F.cross_entropy(own, y) + F.cross_entropy(own + mask, (taught + mask).softmax(dim=1))


class Teach(fedlada.Observer):
    def on_start(self, simulation, num_rounds):
        TEACHER.load_state_dict(simulation.result().model.net.state_dict())

    def on_round(self, simulation, row):
        self.on_start(simulation, row["round"])


def by_hand(rounds, num_steps, lr):
    """FedNTD with its Kullback-Leibler divergence over the classes that are not true."""
    server = copy.deepcopy(NET)
    for _ in range(rounds):
        models = []
        for x, y in DATA:
            models.append(copy.deepcopy(server))
            optimizer = torch.optim.SGD(models[-1].parameters(), lr=lr)
            others = ~F.one_hot(y, 3).bool()
            for _ in range(num_steps):
                own = models[-1](x)
                student, teacher = (one[others].view(len(y), 2) for one in (own, server(x).detach()))
                pull = F.kl_div(student.log_softmax(1), teacher.softmax(1), reduction="batchmean")
                optimizer.zero_grad()
                (F.cross_entropy(own, y) + pull).backward()
                optimizer.step()
        with torch.no_grad():
            for mean, *each in zip(server.parameters(), *(one.parameters() for one in models), strict=True):
                mean.copy_(sum(each) / len(each))
    return nn.utils.parameters_to_vector(server.parameters()).detach()


@pytest.mark.parametrize("engine", ["sequential", "stacked"])
def test_it_equals_a_loop_by_hand(engine, tmp_path):
    """Resumed too: the teacher is then the stored model."""

    def run(rounds, callbacks, **more):
        TEACHER.load_state_dict(NET.state_dict())
        settings = {"local_steps": 4, "batch_size": 50, "lr": 0.1, "test": DATA[0], "engine": engine}
        return fedlada.simulate(
            Student(), DATA, method=recipes.fedavg(), loss=not_true_distillation, rounds=rounds, callbacks=callbacks,
            **settings, **more,
        )  # fmt: skip

    expected = by_hand(4, 4, 0.1)
    done = run(4, [Teach()])
    assert done.engine == engine
    torch.testing.assert_close(done.server.params, expected, rtol=1e-12, atol=1e-12)
    run(2, [Teach()], out=tmp_path / "run")
    resumed = run(4, [Teach()], out=tmp_path / "run")
    torch.testing.assert_close(resumed.server.params, expected, rtol=1e-12, atol=1e-12)
    assert not torch.allclose(run(4, []).server.params, expected, rtol=1e-6)
