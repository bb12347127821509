"""Each stacked form by itself, on models as users write them: an engine would pass over a form that is wrong."""

from __future__ import annotations

from functools import partial

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from fedlada.data import as_samples
from fedlada.engines.dropout import CounterDropout
from fedlada.engines.masks import Elements
from fedlada.engines.stacked.choice import choose_network
from fedlada.engines.stacked.kernels import TorchKernels
from fedlada.engines.stacked.losses import client_losses
from fedlada.engines.stacked.networks import LayeredNetwork, VmappedNetwork
from fedlada.models.flat import FlatModel
from user_models import MODELS, CharLstm

CPU = torch.device("cpu")
SIZES, BATCH = (4, 4, 2), 4
"""The batches of three clients: the last one's is filled up to four."""
CASES = {name: row[0] for name, row in MODELS.items()}
CASES |= {"gru": partial(CharLstm, nn.GRU, bidirectional=True), "rnn": partial(CharLstm, nn.RNN, batch_first=False)}


@pytest.mark.parametrize("name", CASES)
def test_gradients_are_those_of_each_client_alone(name):
    torch.manual_seed(0)
    flat = FlatModel(CASES[name](), CPU, torch.float64)
    _, data, form = MODELS.get(name, MODELS["lstm"])
    x, y = (torch.from_numpy(one)[: len(SIZES) * BATCH] for one in data())
    vectors = [flat.vector + 0.1 * torch.randn_like(flat.vector) for _ in SIZES]
    keys, elements = torch.tensor([7, 8, 9]), Elements()
    losses, _ = client_losses(F.cross_entropy, flat.module(x).detach(), y)
    kernels = (TorchKernels(),) if form == "LayeredNetwork" else ()
    network = (LayeredNetwork if form == "LayeredNetwork" else VmappedNetwork)(flat.module, losses, *kernels)
    network.elements = elements
    rows, grads = (network.layout.rows(len(SIZES), flat.vector) for _ in range(2))
    rows.copy_(network.layout.inward(torch.stack(vectors)))
    network.bind(rows, grads)
    weights = torch.stack([(torch.arange(BATCH) < size).double() / size for size in SIZES])
    for _ in range(2):  # what the first one left is not added to
        found = network.backward(x, y, weights, keys)
    gradients = network.layout.outward(grads)
    for number, (vector, size) in enumerate(zip(vectors, SIZES, strict=True)):
        flat.load(vector)
        own = slice(number * BATCH, number * BATCH + size)
        with CounterDropout(keys[number], elements):
            output = flat.module(x[own])
        loss = F.cross_entropy(output, y[own])
        torch.testing.assert_close(gradients[number], flat.gradient_of(loss), rtol=1e-10, atol=1e-12)
        torch.testing.assert_close(found[number], loss.detach(), rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("name", CASES)
def test_forms_run_in_bfloat16(name):
    """The precision that a GPU takes by itself: the same form, and gradients like the exact ones."""
    torch.manual_seed(0)
    _, data, form = MODELS.get(name, MODELS["lstm"])
    samples = as_samples(data(), CPU, torch.float32)
    x, y = (part[:8] for part in samples.batch(torch.arange(8).numpy()))
    model, found = CASES[name](), []
    for dtype in (torch.float32, torch.bfloat16):
        flat = FlatModel(model, CPU)
        network, _ = choose_network(flat, samples, F.cross_entropy, dtype)
        assert type(network).__name__ == form
        rows, grads = (network.layout.rows(2, flat.vector, dtype) for _ in range(2))
        rows.copy_(network.layout.inward(flat.vector).expand_as(rows))
        network.bind(rows, grads)
        network.backward(x.to(dtype) if x.is_floating_point() else x, y, torch.full((2, 4), 0.25), torch.tensor([7, 8]))
        found.append(network.layout.outward(grads).double())
    assert torch.linalg.vector_norm(found[1] - found[0]) < 0.15 * torch.linalg.vector_norm(found[0])
