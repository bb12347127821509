"""What is measured of each client is what it would measure alone."""

from __future__ import annotations

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn

from fedlada.data.samples import as_samples
from fedlada.engines.clients import ClientTest, measure
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


@pytest.mark.parametrize("batch_size", [1000, 8, 3])
@pytest.mark.parametrize("name", ["classes", "numbers"])
def test_metrics_are_given_the_clients_own_outputs_and_targets(name, batch_size):
    model, loss, targets = CASES[name]
    x, y = blobs(num_samples=30)
    y = targets(y)
    test = clients_test(x, y)
    calls = []

    def spread(output, y):
        calls.append((output.numpy(), y.numpy()))
        return float(output.max() - y.double().min())

    measured = measure(model.eval(), test, np.arange(30), loss, batch_size, {"spread": spread})
    for (client, own), (output, given) in zip(measured.items(), list(calls), strict=True):
        rows = test.rows(client)
        assert np.array_equal(given, y[rows])
        assert output.shape[0] == len(rows)
        assert own["spread"] == pytest.approx(
            evaluate(model, (x[rows], y[rows]), loss, metrics={"spread": spread})["spread"]
        )


def test_a_metric_that_fails_on_a_client_is_nan_there():
    x, y = blobs(num_samples=30)

    def needs_two(_, y):
        if len(y) < 2:
            raise ZeroDivisionError
        return 1.0

    measured = measure(
        small_net().double().eval(), clients_test(x, y), np.arange(30), F.cross_entropy, 8, {"two": needs_two}
    )
    assert {client: own["two"] for client, own in measured.items()} == pytest.approx(
        {0: 1.0, 2: np.nan, 3: 1.0, 4: 1.0}, nan_ok=True
    )


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
