"""Metrics of each client are summed up over the clients."""

from __future__ import annotations

import math

import numpy as np
import pytest

from fedlada.training.clients import columns


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


def test_metrics_of_a_users_own_have_their_spread():
    """The worst are the lowest, or the highest of an error."""
    values = np.random.default_rng(0).permutation(np.linspace(0.0, 0.99, 30))
    found = columns("client", {i: {"loss": 1.0, "r2": one, "rmse": one} for i, one in enumerate(values)})
    assert found["client_r2"] == found["client_rmse"] == pytest.approx(values.mean())
    assert found["client_r2_worst_decile"] == pytest.approx(np.sort(values)[:3].mean())
    assert found["client_rmse_worst_decile"] == pytest.approx(np.sort(values)[-3:].mean())
    assert found["client_r2_std"] == pytest.approx(values.std())
    assert not any(name.endswith("_missing") for name in found)


def test_an_accuracy_of_the_users_own_is_left_out_where_it_fails():
    found = columns("client", {0: {"loss": 1.0, "accuracy": math.nan}, 1: {"loss": 3.0, "accuracy": 0.5}}, ["accuracy"])
    assert (found["client_loss"], found["client_accuracy"], found["client_accuracy_missing"]) == (2.0, 0.5, 1)


@pytest.mark.parametrize("bad", [math.nan, -math.inf])
def test_what_is_not_finite_is_left_out_and_counted(bad):
    found = columns("client", {0: {"loss": 1.0, "r2": bad}, 1: {"loss": 1.0, "r2": 0.25}, 2: {"loss": 1.0, "r2": 0.75}})
    assert found["client_r2"] == 0.5
    assert found["client_r2_worst_decile"] == 0.25
    assert found["client_r2_missing"] == 1
    nowhere = columns("client", {0: {"loss": 1.0, "r2": bad}})
    assert math.isnan(nowhere["client_r2"])
    assert nowhere["client_r2_missing"] == 1
