"""The GPU's kernels for pooling and images beside torch, and what is compiled ahead; interpreted without a GPU."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

from fedlada.data import Augmentation, Images
from fedlada.engines.stacked import triton_launch
from fedlada.engines.stacked.kernels import ConvShape, TorchKernels
from fedlada.engines.stacked.losses import client_losses
from fedlada.engines.stacked.networks import LayeredNetwork
from fedlada.models.flat import flatten

triton_kernels = pytest.importorskip("fedlada.engines.stacked.triton_kernels")
triton_images = pytest.importorskip("fedlada.engines.stacked.triton_images")
DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
POOLS = [
    pytest.param(nn.MaxPool2d(3, stride=2, padding=1), (2, 5, 7, 6), id="as in a ResNet"),
    pytest.param(nn.MaxPool2d(2), (2, 70, 5, 4), id="many channels, a row left over"),
    pytest.param(nn.MaxPool2d((2, 2), stride=(1, 1)), (1, 3, 4, 4), id="overlapping windows"),
]


@pytest.mark.parametrize(("pool", "shape"), POOLS)
def test_max_pool(pool, shape):
    fast = triton_kernels.TritonKernels("ieee").max_pool(pool)
    torch.manual_seed(0)
    x = torch.randint(0, 4, shape, device=DEVICE).float()  # with many equal values
    x[0, 0, 0, 0], x[0, 1] = torch.nan, -torch.inf
    own, its = (x.clone().requires_grad_() for _ in range(2))
    y, expected = fast(own), pool(its)
    torch.testing.assert_close(y, expected, rtol=0, atol=0, equal_nan=True)
    dy = torch.randn_like(expected)
    y.backward(dy)
    expected.backward(dy)
    torch.testing.assert_close(own.grad, its.grad, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize(
    "pool",
    [
        nn.MaxPool2d((2, 3)),
        nn.MaxPool2d(2, ceil_mode=True),
        nn.MaxPool2d(2, dilation=2),
        nn.MaxPool2d(2, return_indices=True),
        nn.MaxPool2d(7),
    ],
)
def test_other_pools_stay_torchs(pool):
    assert triton_kernels.TritonKernels("ieee").max_pool(pool) is None


def test_a_models_pools_are_replaced():
    model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.MaxPool2d(2), nn.ReLU())
    network = LayeredNetwork(model.to(DEVICE), None, triton_kernels.TritonKernels("ieee"))
    assert [type(one).__name__ for one in network.module] == ["StackedConv", "MaxPool", "ReLU"]
    assert type(model[1]) is nn.MaxPool2d


BOTH = (TorchKernels(), triton_kernels.TritonKernels("ieee"))


def gradients(model, kernels, batches):
    """Those of two clients with the model's parameters, batch after batch, half a batch each."""
    x, y = batches[0]
    losses, _ = client_losses(nn.CrossEntropyLoss(), model(x).detach(), y, None)
    network = LayeredNetwork(model, losses, kernels)
    vector = flatten(model.parameters()).detach()
    rows, grads = network.layout.rows(2, vector), network.layout.rows(2, vector)
    rows.copy_(network.layout.inward(vector).expand_as(rows))
    network.bind(rows, grads)
    found = []
    for x, y in batches:
        network.backward(x, y, torch.full((2, 2), 0.5, device=DEVICE))
        found.append(network.layout.outward(grads).clone())
    return found


class LooksAtItsLayers(nn.Module):
    """Asks layers what they are, hooks one, and takes views, as models of people do."""

    def __init__(self):
        super().__init__()
        self.parts = nn.ModuleList([nn.Conv2d(3, 16, 3, padding=1), nn.MaxPool2d(2), nn.Conv2d(16, 4, 3)])
        self.parts[1].register_forward_hook(lambda _module, _given, y: 3 * y)
        self.last = nn.Linear(4 * 2 * 2, 3)

    def forward(self, x):
        x = nn.functional.max_pool2d(x, 1).view(len(x), 3, 8, 8)
        for part in self.parts:
            x = part(x)
            if isinstance(part, nn.MaxPool2d):
                x = x / part.kernel_size
        return self.last(x.view(len(x), -1))


def test_models_that_look_at_their_layers():
    torch.manual_seed(0)
    model = LooksAtItsLayers().to(DEVICE)
    x, y = torch.randn(4, 3, 8, 8, device=DEVICE), torch.tensor([0, 1, 2, 0], device=DEVICE)
    (expected,), (found,) = (gradients(model, kernels, [(x, y)]) for kernels in BOTH)
    torch.testing.assert_close(found, expected)


@pytest.mark.parametrize("chosen", [False, True])
@pytest.mark.parametrize("crop_size", [None, 5])
@pytest.mark.parametrize(
    "augmentation",
    [Augmentation(padding=2), Augmentation(padding=1, crop="always", flip=False), Augmentation(crop="never")],
    ids=["half", "always", "flip"],
)
def test_images_are_fetched_as_they_are_taken(augmentation, crop_size, chosen):
    random = np.random.default_rng(0)
    x, y = random.integers(0, 256, (9, 3, 8, 7), dtype=np.uint8), random.integers(0, 5, 9)
    samples = Images(x, y, augmentation=augmentation, crop_size=crop_size).samples(DEVICE, torch.float32)
    if chosen:
        samples = samples.chosen(np.array([8, 2, 2, 5, 0]))
    rows = torch.from_numpy(random.integers(0, len(samples), 20)).to(DEVICE)
    draws = torch.from_numpy(random.integers(0, 2**63 - 1, 20)).to(DEVICE)
    assert triton_images.supports(samples)
    (found, labels), (expected, own) = (
        triton_images.fetch(samples, rows, draws, torch.float32),
        samples.take(rows, draws),
    )
    assert torch.equal(found, expected)
    assert torch.equal(labels, own)
    assert found.is_contiguous() == expected.is_contiguous()


class OwnAugmentation(Augmentation):
    """A user's; it may do anything."""


def test_other_samples_are_not_fetched_by_the_kernel():
    x, y = np.zeros((3, 3, 8, 8), dtype=np.uint8), np.zeros(3, dtype=np.int64)
    plain = Images(x, y, (0.5,) * 3, (0.5,) * 3)
    assert not triton_images.supports(plain.samples(DEVICE, torch.float32))  # nothing is drawn
    moved = Images(x, y, (0.5,) * 3, (0.5,) * 3, Augmentation())
    assert not triton_images.supports(moved.samples(DEVICE, torch.float64))
    own = Images(x, y, (0.5,) * 3, (0.5,) * 3, OwnAugmentation())
    assert not triton_images.supports(own.samples(DEVICE, torch.float32))


def test_inside_compiled_ahead_nothing_is_launched(monkeypatch):
    asked = []
    monkeypatch.setattr(triton_launch.Ahead, "start", lambda self: asked.append(len(self.waiting)))
    monkeypatch.setattr(triton_launch, "_load", lambda *_: None)
    kernels, shape = triton_kernels.TritonKernels("ieee"), ConvShape((1, 1), (1, 1), (1, 1), 1)
    x, weight = torch.ones(4, 16, 4, 4, device=DEVICE), torch.ones(2, 8, 3, 3, 16, device=DEVICE)
    with triton_launch.compiled_ahead():
        for _ in range(2):  # once for both
            y = kernels.conv(x, weight, shape)
    assert asked == [1]
    assert not y.any()
    assert kernels.conv(x, weight, shape).any()


@pytest.mark.slow
def test_kernels_are_compiled_ahead_by_forks(tmp_path):
    """By the compiler, which needs no GPU; Triton's interpreter, if there, takes its place from the first import on."""
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    words = [sys.executable, Path(__file__).parents[1] / "compile_ahead.py", tmp_path]
    run = subprocess.run(
        words, env={**environment, "TRITON_CACHE_DIR": str(tmp_path)}, capture_output=True, text=True, check=False
    )
    assert run.returncode == 0, run.stderr
    assert json.loads(run.stdout) == {
        "forks": 2,
        "cached before they are loaded": 2,
        "loaded": 2,
        "after a fork that failed": 3,
        "without a fork": 4,
        "gave up": True,
        "forks left": None,
    }


class OnImagesAndOnPixels(nn.Module):
    """Uses one convolution on images, where all its taps count, and on single pixels, where only the centre does."""

    def __init__(self, on_pixels):
        super().__init__()
        self.conv, self.last = nn.Conv2d(16, 16, 3, padding=1), nn.Linear(16, 3)
        self.on_pixels = on_pixels

    def forward(self, x):
        for on_pixels in self.on_pixels:
            x = x + self.conv(x.mean((2, 3), keepdim=True) if on_pixels else x)
        return self.last(x.mean((2, 3)))


@pytest.mark.parametrize("on_pixels", [(False, True), (True, False), (False,)])
def test_taps_that_only_meet_padding_have_no_gradient(on_pixels):
    """Of a use on pixels they are not written: nothing stays there of another use, or of the step before."""
    torch.manual_seed(0)
    model = OnImagesAndOnPixels(on_pixels).to(DEVICE)
    sizes = (4, 4, 1, 4, 1)
    batches = [(torch.randn(4, 16, n, n, device=DEVICE), torch.randint(3, (4,), device=DEVICE)) for n in sizes]
    expected, found = (gradients(model, kernels, batches) for kernels in BOTH)
    for right, own in zip(expected, found, strict=True):
        torch.testing.assert_close(own, right, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(("batch", "rest"), [(6, 7.0), (300, 0.0)], ids=["as one sum", "in parts"])
def test_a_3x3_kernel_on_one_pixel_is_its_centre(batch, rest):
    """Its other taps have no gradient. Zeros are not written there, which took a sixteenth of a ResNet's step."""
    torch.manual_seed(0)
    x, dy = (torch.randn(batch, 16, 1, 1, device=DEVICE) for _ in range(2))
    shape = ConvShape((1, 1), (1, 1), (1, 1), 1)
    found, expected = (torch.full((1, 16, 3, 3, 16), 7.0, device=DEVICE) for _ in range(2))
    triton_kernels.TritonKernels("ieee").conv_weight_grad(dy, x, found, shape)
    TorchKernels().conv_weight_grad(dy, x, expected, shape)
    centre = found[:, :, 1, 1].clone()
    torch.testing.assert_close(centre, expected[:, :, 1, 1], rtol=1e-4, atol=1e-4)
    found[:, :, 1, 1] = rest
    assert torch.equal(found, torch.full_like(found, rest))
