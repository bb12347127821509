"""What is measured of each client is what it would measure alone."""

from __future__ import annotations

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn

from fedlada.data.samples import as_samples
from fedlada.engines.clients import ClientTest, columns, measure
from fedlada.engines.evaluation import evaluate
from fedlada.models.call import own_loss
from tasks import blobs, small_net

SIZES = [7, 0, 1, 13, 9]


def clients_test(x, y):
    return ClientTest.of(as_samples((x, y), torch.device("cpu"), torch.float64), SIZES)


class OwnLoss(nn.Module):
    """A model whose output is one loss for its whole batch."""

    def __init__(self):
        super().__init__()
        self.net = small_net(num_classes=1).double()

    def forward(self, x):
        return {"loss": self.net(x).square().mean()}


CASES = {
    "classes": (small_net().double(), F.cross_entropy, lambda y: y),
    "numbers": (small_net(num_classes=1).double(), F.mse_loss, lambda y: y[:, None].astype(float)),
    "own loss": (OwnLoss(), own_loss, lambda y: y),
}


@pytest.mark.parametrize("batch_size", [1000, 8, 3])
@pytest.mark.parametrize("name", CASES)
def test_each_client_as_if_alone(name, batch_size):
    """One forward pass serves many clients; batches begin and end anywhere in a client's samples."""
    model, loss, targets = CASES[name]
    x, y = blobs(num_samples=30)
    y = targets(y)
    test = clients_test(x, y)
    measured = measure(model.eval(), test, np.arange(30), loss, batch_size)
    assert list(measured) == test.clients == [0, 2, 3, 4]
    for client, own in measured.items():
        rows = test.rows(client)
        alone = evaluate(model, (x[rows], y[rows]), loss)
        assert own == pytest.approx(alone, rel=1e-12)
        assert set(own) == set(alone)
        assert measure(model, test, rows, loss, batch_size)[client] == pytest.approx(own, rel=1e-12)


def test_the_worst_decile():
    accuracies = np.random.default_rng(0).permutation(np.linspace(0.0, 0.99, 30))
    found = columns("client", {client: {"accuracy": one, "loss": 1.0} for client, one in enumerate(accuracies)})
    assert found == {
        "client_accuracy": pytest.approx(accuracies.mean()),
        "client_accuracy_worst_decile": pytest.approx(np.sort(accuracies)[:3].mean()),
        "client_accuracy_std": pytest.approx(accuracies.std()),
    }
    losses = columns("personal", {3: {"loss": 1.0}, 5: {"loss": 4.0}})
    assert losses == {"personal_loss": 2.5, "personal_loss_worst_decile": 4.0, "personal_loss_std": 1.5}


def test_nobody_to_test():
    x, y = blobs(num_samples=2)
    with pytest.raises(ValueError, match="client_test leaves no client a test sample"):
        ClientTest.of(as_samples((x, y), torch.device("cpu"), torch.float64), [0, 0])


@pytest.mark.parametrize("loss", [nn.CrossEntropyLoss, nn.NLLLoss])
@pytest.mark.parametrize("ignored", [-100, 2])
def test_class_weights_count_as_in_one_batch(loss, ignored):
    x, y = blobs(num_samples=60)
    order = np.argsort(y, kind="stable")  # batches of one class each
    x, y = torch.from_numpy(x[order]).double(), torch.from_numpy(y[order])
    model = nn.Sequential(small_net().double(), nn.LogSoftmax(dim=1))
    weighted = loss(weight=torch.tensor([10.0, 1.0, 0.1], dtype=torch.float64), ignore_index=ignored)
    expected = weighted(model(x), y).item()
    for batch_size in (60, 20, 7):
        assert evaluate(model, (x, y), weighted, batch_size=batch_size)["loss"] == pytest.approx(expected, rel=1e-12)
