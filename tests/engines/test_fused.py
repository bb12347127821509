"""The gradient of all clients recorded as a graph: right for other values than those it was recorded with."""

from __future__ import annotations

import shutil
import warnings

import numpy as np
import pytest
import torch
import torch._inductor.config
from torch.nn import functional as F

from fedlada.data import as_samples
from fedlada.engines.deterministic import deterministic_algorithms
from fedlada.engines.masks import Elements
from fedlada.engines.stacked.choice import choose_network
from fedlada.engines.stacked.fused import Example, differs, fused, traced, why_not_recorded
from fedlada.engines.stacked.losses import client_losses
from fedlada.engines.stacked.networks import VmappedNetwork
from fedlada.models.flat import FlatModel
from user_models import MODELS

CLIENTS, BATCH = 2, 3
CPU = torch.device("cpu")
needs_a_compiler = pytest.mark.skipif(shutil.which("g++") is None, reason="needs a compiler")


def network_and_arguments(name: str):
    torch.manual_seed(0)
    make, data, _ = MODELS[name]
    flat = FlatModel(make(), CPU, torch.float64)
    x, y = (torch.from_numpy(one)[: CLIENTS * BATCH] for one in data())
    losses, _ = client_losses(F.cross_entropy, flat.module(x).detach(), y)
    network = VmappedNetwork(flat.module, losses)
    network.elements = Elements()
    vectors = torch.stack([flat.vector + 0.1 * torch.randn_like(flat.vector) for _ in range(CLIENTS)])
    weights = {place: network.layout.view(vectors, place) for place in network.layout.names}
    by_client = (one.view(CLIENTS, BATCH, *one.shape[1:]) for one in (x, y))
    return network, (weights, *by_client, torch.full((CLIENTS, BATCH), 1 / BATCH), torch.tensor([7, 8]))


@pytest.mark.slow
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


@pytest.mark.parametrize(
    ("name", "form"),
    [
        ("gpt", "its gradient to be compiled"),
        ("lstm", "its gradient not compiled (a recurrent layer has a graph for each time step, too large to compile)"),
    ],
)
def test_the_form_says_whether_the_gradient_is_compiled(name, form):
    make, data, kind = MODELS[name]
    assert kind == "VmappedNetwork"
    flat = FlatModel(make(), CPU, torch.float32)
    samples = as_samples(data(), CPU, torch.float32)
    network, _ = choose_network(flat, samples, F.cross_entropy, torch.float32, compiles=True)
    assert network.form == f"by torch.func.vmap, {form}"


def example_and_arguments():
    torch.manual_seed(0)
    example = Example({"w": torch.rand(4).double()}, torch.rand(5, 4).double(), torch.arange(5))
    like = (
        {"w": torch.rand(2, 6).double()[:, :4]},  # as rows with a padding
        torch.rand(2, 3, 4).double(),
        torch.zeros(2, 3, dtype=torch.int64),
        torch.full((2, 3), 1 / 3, dtype=torch.float64),
        None,
    )
    return example, like


def test_examples_are_fixed_and_lie_as_the_arguments_do():
    example, like = example_and_arguments()
    first, again, second = (example.arguments(like, turn) for turn in (0, 0, 1))
    assert first[0]["w"].stride() == like[0]["w"].stride()
    assert first[4] is None
    for one, same, other in zip(first[1:4], again[1:4], second[1:4], strict=True):
        assert torch.equal(one, same)
        assert not torch.equal(one, other)
    assert torch.equal(first[0]["w"][0], example.parameters["w"])
    assert not torch.equal(first[0]["w"][0], first[0]["w"][1])


def product(weights, x, *_):
    found = weights["w"] * x.mean(dim=1)
    return {"w": found}, found.sum(dim=1)


def unseen(weights, x, *_):
    """The same as a kernel of one's own would compute it: no operation is recorded."""
    found = torch.zeros_like(weights["w"])
    np.multiply(weights["w"].numpy(), x.numpy().mean(axis=1), out=found.numpy())
    return {"w": found}, found.sum(dim=1)


@pytest.fixture
def quick_compiler():
    """Without vectors: to find out which ones the processor has, torch compiles a program for each."""
    options = {"cpp_cache_precompile_headers": False, "cpp.simdlen": 1, "cpp.vec_isa_ok": False, "compile_threads": 1}
    with torch._inductor.config.patch(options):
        yield


@needs_a_compiler
@pytest.mark.slow
@pytest.mark.usefixtures("quick_compiler")
def test_a_recorded_function_is_compiled():
    example, like = example_and_arguments()
    before = torch.are_deterministic_algorithms_enabled()
    found = fused(product, example, like)
    assert found is not product
    assert torch.equal(found(*like)[0]["w"], product(*like)[0]["w"])
    assert torch.are_deterministic_algorithms_enabled() is before


@needs_a_compiler
@pytest.mark.slow
@pytest.mark.usefixtures("quick_compiler")
def test_what_a_graph_does_not_see_is_not_taken():
    example, like = example_and_arguments()
    assert why_not_recorded(product, example, like) == ""
    assert why_not_recorded(unseen, example, like) == "the loss would differ"
    with pytest.warns(UserWarning, match="could not be compiled and runs as it is: the loss would differ"):
        assert fused(unseen, example, like) is unseen


def test_each_gradient_is_compared_with_its_own_norm():
    losses = torch.ones(2, dtype=torch.float64)
    right = {"large": torch.ones(2, 3).double(), "small": torch.full((2, 3), 1e-4).double()}
    assert differs((right, losses), (right, losses)) == ""
    wrong = {**right, "small": 1.01 * right["small"]}
    assert differs((wrong, losses), (right, losses)) == "small"
    assert differs((right, losses * torch.nan), (right, losses)) == "the loss"


def test_deterministic_algorithms_are_on_for_as_long_as_asked():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with deterministic_algorithms():
            assert torch.are_deterministic_algorithms_enabled()
            assert torch.is_deterministic_algorithms_warn_only_enabled()
    assert not torch.are_deterministic_algorithms_enabled()
    assert torch.utils.deterministic.fill_uninitialized_memory


def test_a_stricter_choice_of_the_users_stays():
    torch.use_deterministic_algorithms(True)
    try:
        with deterministic_algorithms():
            assert not torch.is_deterministic_algorithms_warn_only_enabled()
        assert torch.are_deterministic_algorithms_enabled()
    finally:
        torch.use_deterministic_algorithms(False)


def test_without_memory_the_plain_gradient_is_used(monkeypatch):
    def full(*_):
        raise torch.OutOfMemoryError("full")

    monkeypatch.setattr("fedlada.engines.stacked.fused.traced", full)
    example, like = example_and_arguments()
    with pytest.warns(UserWarning, match="runs as it is: there is no memory left to check it"):
        assert fused(product, example, like) is product
