"""The gradient of all clients recorded as a graph: right for other values than those it was recorded with."""

from __future__ import annotations

import shutil

import numpy as np
import pytest
import torch
from torch.nn import functional as F

from fedlada.engines.masks import Elements
from fedlada.engines.stacked.fused import fused, traced
from fedlada.engines.stacked.losses import client_losses
from fedlada.engines.stacked.networks import VmappedNetwork
from fedlada.engines.stacked.not_stackable import NotStackable
from fedlada.models.flat import FlatModel
from user_models import MODELS

CLIENTS, BATCH = 2, 3


def network_and_arguments(name: str):
    torch.manual_seed(0)
    make, data, _ = MODELS[name]
    flat = FlatModel(make(), torch.device("cpu"), torch.float64)
    x, y = (torch.from_numpy(one)[: CLIENTS * BATCH] for one in data())
    losses, _ = client_losses(F.cross_entropy, flat.module(x).detach(), y)
    network = VmappedNetwork(flat.module, losses)
    network.elements = Elements()
    vectors = torch.stack([flat.vector + 0.1 * torch.randn_like(flat.vector) for _ in range(CLIENTS)])
    weights = {place: network.layout.view(vectors, place) for place in network.layout.names}
    by_client = (one.view(CLIENTS, BATCH, *one.shape[1:]) for one in (x, y))
    return network, (weights, *by_client, torch.full((CLIENTS, BATCH), 1 / BATCH), torch.tensor([7, 8]))


@pytest.mark.parametrize("name", ["convnext", "vit", "gpt"])
def test_a_graph_holds_for_other_clients(name):
    network, arguments = network_and_arguments(name)
    graph = traced(network._of_clients, *arguments)
    weights, x, y, sample_weights, keys = arguments
    others = ({place: 1.1 * one for place, one in weights.items()}, x.flip(0), y.flip(0), sample_weights, keys + 5)
    (grads, losses), (expected, expected_losses) = graph(*others), network._of_clients(*others)
    assert not torch.equal(losses, network._of_clients(*arguments)[1])
    assert torch.allclose(losses, expected_losses, rtol=1e-12, atol=0)
    for place, one in expected.items():
        assert torch.allclose(grads[place], one, rtol=1e-10, atol=1e-13), place


def test_time_steps_are_not_recorded():
    network, arguments = network_and_arguments("lstm")
    with pytest.raises(NotStackable, match="time step"):
        traced(network._of_clients, *arguments)
    function = network._of_clients
    assert fused(function, *arguments) is function


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("g++") is None, reason="needs a compiler")
@pytest.mark.parametrize("is_seen", [False, True])
def test_what_a_graph_does_not_see_keeps_it_from_being_taken(is_seen):
    def function(weights, x):
        product = weights["w"] * x if is_seen else torch.zeros_like(x)
        if not is_seen:  # as a kernel of one's own writes its result
            np.multiply(weights["w"].numpy(), x.numpy(), out=product.numpy())
        return {"w": product}, product.sum(dim=1)

    arguments = ({"w": torch.rand(2, 4, dtype=torch.float64)}, torch.rand(2, 4, dtype=torch.float64))
    assert torch.any(function(*arguments)[1] != 0)
    traced(function, *arguments)  # without an error
    found = fused(function, *arguments)
    assert (found is not function) is is_seen
    assert torch.equal(found(*arguments)[0]["w"], arguments[0]["w"] * arguments[1])
