"""The stacked engine's parts: the order of parameters, memory, the GPU's kernels (interpreted where there is none)."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from fedlada import recipes
from fedlada.engines.stacked.kernels import Affine, ConvShape, NormShape, TorchKernels
from fedlada.engines.stacked.layout import Layout
from fedlada.engines.stacked.memory import Memories, bytes_per_client, places_that_fit
from fedlada.methods.state import Kept
from fedlada.models import cnn_gn, resnet18_gn

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")


def layout_of(model):
    convolutions = {f"{name}.weight" for name, one in model.named_modules() if isinstance(one, torch.nn.Conv2d)}
    return Layout(dict(model.named_parameters()), convolutions)


def test_layout_there_and_back():
    model = cnn_gn(3, input_shape=(2, 5, 5), widths=(10, 6))
    layout = layout_of(model)
    vector = torch.cat([parameter.detach().flatten() for parameter in model.parameters()])
    moved = layout.inward(vector)
    assert not torch.equal(moved, vector)
    assert torch.equal(layout.outward(moved), vector)
    stacked = torch.stack([vector, 2 * vector])
    assert torch.equal(layout.outward(layout.inward(stacked)), stacked)
    rows = layout.rows(2, vector)
    rows.copy_(layout.inward(stacked))
    weight = dict(model.named_parameters())["3.weight"]
    assert torch.equal(layout.view(rows, "3.weight")[1], 2 * weight.permute(0, 2, 3, 1))
    other = torch.zeros(1)
    assert layout.inward(other) is other  # what is not a parameter vector has no order


def test_rows_are_aligned():
    layout = layout_of(resnet18_gn())
    rows = layout.rows(2, torch.zeros(1))
    assert rows.shape == (2, 11_181_642)
    assert rows.stride(0) % 64 == 0
    starts = [place.start % 64 for place in layout.places.values()]
    assert sum(start != 0 for start in starts) == 0  # the one odd parameter lies last


@given(
    free=st.integers(0, 10**12), state=st.integers(1, 10**9), extra=st.integers(0, 10**9), wanted=st.integers(1, 500)
)
def test_chunks_fit_and_are_even(free, state, extra, wanted):
    places = places_that_fit(free, state, extra, wanted)
    assert 1 <= places <= wanted
    assert places == 1 or places * (state + extra) <= free
    chunks = -(-wanted // places)
    assert places - 1 < wanted / chunks <= places  # no chunk is nearly empty


def test_bytes_of_a_place():
    like = torch.zeros(1000)
    fedavg, fedlada = (bytes_per_client(one(), like, torch.float32) for one in (recipes.fedavg, recipes.fedlada))
    assert fedavg == 1000 * 4 * (1 + 1 + 2)  # parameters, upload, weights and gradient
    assert fedlada == 1000 * 4 * (1 + 2 * 3 + 2 + 2)


def test_memories_keep_each_client_apart():
    model = cnn_gn(3, input_shape=(2, 5, 5))
    layout = layout_of(model)
    vector = torch.cat([parameter.detach().flatten() for parameter in model.parameters()]).to(DEVICE)
    memories = Memories(layout, vector)
    for on_host in (False, DEVICE.type == "cuda"):
        memories.on_host = on_host
        stacked = memories.load([Kept(({"c": vector},)), Kept(({"c": 3 * vector},))], places=3)
        assert stacked.memory[0]["c"].shape == (3, len(vector))
        kept = memories.keep(stacked, 1)
        memories.wait()
        assert kept.memory[0]["c"].is_cuda == (DEVICE.type == "cuda" and not on_host)
        torch.testing.assert_close(kept.memory[0]["c"].to(DEVICE), 3 * vector)


def last(x):
    return x.contiguous(memory_format=torch.channels_last)


def rows(clients, *shape):
    """Parameters of several clients that do not lie side by side, as in the engine."""
    size = torch.Size(shape).numel()
    return torch.randn(clients, size + 5, device=DEVICE)[:, :size].view(clients, *shape)


CONVOLUTIONS = [
    # clients, batch, in, out, size, kernel, stride, padding
    pytest.param(2, 3, 3, 20, 9, 7, 2, 3, id="stem"),
    pytest.param(2, 3, 16, 24, 6, 3, 1, 1, id="3x3"),
    pytest.param(2, 3, 20, 70, 5, 3, 2, 1, id="stride"),
    pytest.param(3, 2, 16, 16, 1, 3, 1, 1, id="centre tap alone"),
    pytest.param(2, 2, 17, 33, 2, 3, 2, 1, id="four taps"),
    pytest.param(2, 3, 16, 32, 4, 1, 2, 0, id="shortcut"),
    pytest.param(1, 40, 16, 16, 4, 3, 1, 1, id="sum in parts"),
]


@pytest.mark.parametrize(("clients", "batch", "depth", "out", "size", "kernel", "stride", "padding"), CONVOLUTIONS)
@pytest.mark.slow
def test_convolution_kernels(clients, batch, depth, out, size, kernel, stride, padding):
    triton_kernels = pytest.importorskip("fedlada.engines.stacked.triton_kernels")
    torch.manual_seed(0)
    plain, fast = TorchKernels(), triton_kernels.TritonKernels("ieee")
    shape = ConvShape((stride, stride), (padding, padding), (1, 1), 1)
    x = last(torch.randn(clients * batch, depth, size, size, device=DEVICE))
    weight = rows(clients, out, kernel, kernel, depth)
    expected = plain.conv(x.double(), weight.double(), shape)
    close(fast.conv(x, weight, shape), expected)
    dy = last(torch.randn_like(expected).float())
    grads = torch.zeros_like(rows(clients, out, kernel, kernel, depth)), torch.zeros(weight.shape, device=DEVICE)
    fast.conv_weight_grad(dy, x, grads[0], shape)
    exact = grads[1].double()
    plain.conv_weight_grad(dy.double(), x.double(), exact, shape)
    close(grads[0], exact)
    close(
        fast.conv_input_grad(dy, x, weight, shape),
        plain.conv_input_grad(dy.double(), x.double(), weight.double(), shape),
    )


@pytest.mark.parametrize("relu", [False, True])
@pytest.mark.parametrize("add", [False, True])
@pytest.mark.parametrize(("channels", "size", "groups"), [(8, 5, 2), (6, 1, 2), (12, 3, 3), (4, 40, 2)])
def test_group_norm_kernels(channels, size, groups, add, relu):
    triton_kernels = pytest.importorskip("fedlada.engines.stacked.triton_kernels")
    torch.manual_seed(0)
    plain, fast = TorchKernels(), triton_kernels.TritonKernels("ieee")
    x = last(torch.randn(6, channels, size, size, device=DEVICE) + 3)
    shortcut = torch.randn_like(x) if add else None
    shape = NormShape(groups, 1e-5, add, relu)
    affine = Affine(*(rows(2, channels) for _ in range(4)))
    exact = Affine(*(one.double() for one in affine))
    expected, saved = plain.group_norm(x.double(), None if shortcut is None else shortcut.double(), exact, shape)
    y, fast_saved = fast.group_norm(x, shortcut, affine, shape)
    close(y, expected)
    dy = torch.randn_like(x)
    dx, d_add = fast.group_norm_grad(dy, x, y, fast_saved, affine, shape)
    exact_dx, exact_add = plain.group_norm_grad(dy.double(), x.double(), expected, saved, exact, shape)
    close(dx, exact_dx)
    close(affine.weight_grad, exact.weight_grad)
    close(affine.bias_grad, exact.bias_grad)
    if add:
        close(d_add, exact_add)


def close(found, expected):
    assert found.shape == expected.shape
    error = torch.linalg.vector_norm(found.double() - expected) / torch.linalg.vector_norm(expected)
    assert error < 1e-5
