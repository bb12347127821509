"""The stacked engine's parts: the order of parameters, memory, the GPU's kernels (interpreted where there is none)."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn
from torch.nn import functional as F

from fedlada import recipes
from fedlada.engines.stacked.bank import Bank, Use
from fedlada.engines.stacked.kernels import Affine, ConvShape, NormShape, TorchKernels
from fedlada.engines.stacked.layers import StackedEmbedding
from fedlada.engines.stacked.layout import Layout
from fedlada.engines.stacked.losses import client_losses
from fedlada.engines.stacked.memory import Memories, bytes_per_client, places_that_fit
from fedlada.engines.stacked.networks import LayeredNetwork, VmappedNetwork
from fedlada.methods.state import Kept
from fedlada.models import cnn_gn, resnet18_gn
from fedlada.models.flat import flatten
from fedlada.models.layers import GroupNorm
from tasks import small_net

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")


def layout_of(model):
    convolutions = {f"{name}.weight" for name, one in model.named_modules() if isinstance(one, torch.nn.Conv2d)}
    return Layout(dict(model.named_parameters()), convolutions)


@pytest.mark.parametrize("widths", [(10, 6), (10, 64)], ids=["in the model's order", "aligned ones first"])
def test_layout_there_and_back(widths):
    model = cnn_gn(3, input_shape=(2, 5, 5), widths=widths)
    layout = layout_of(model)
    vector = torch.cat([parameter.detach().flatten() for parameter in model.parameters()])
    moved = layout.inward(vector)
    assert not torch.equal(moved, vector)
    assert torch.equal(layout.outward(moved), vector)
    assert len(moved) % 64 == 0
    assert not moved[len(vector) :].any()
    moved[len(vector) :] = torch.nan  # a step may leave anything there
    assert torch.equal(layout.outward(moved), vector)
    assert torch.equal(layout.outward(layout.without_padding(moved)), vector)
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
    assert rows.shape == (2, 11_182_080)  # 11,181,642 parameters
    assert rows.is_contiguous()
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
        assert stacked.memory[0]["c"].shape == (3, layout.width)
        kept = memories.keep(stacked, 1)
        memories.wait()
        assert kept.memory[0]["c"].is_cuda == (DEVICE.type == "cuda" and not on_host)
        torch.testing.assert_close(kept.memory[0]["c"].to(DEVICE), 3 * vector)


def test_a_memory_that_is_kept_is_no_view_of_the_stack():
    """Where the order of the parameters is the model's own, nothing else makes a copy."""
    vector = flatten(small_net().parameters()).detach()
    memories = Memories(layout_of(small_net()), vector)
    stacked = memories.load([Kept(({"c": vector},)), Kept(({"c": 3 * vector},))], places=2)
    kept = memories.keep(stacked, 1)
    stacked.memory[0]["c"].zero_()  # the next clients take the places
    assert torch.equal(kept.memory[0]["c"], 3 * vector)


class Pictures(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv, self.shortcut = nn.Conv2d(2, 4, 3, padding=1), nn.Conv2d(4, 4, 1, bias=False)
        self.norm, self.last, self.out = GroupNorm(2, 4), nn.LayerNorm(4), nn.Linear(4, 3)

    def forward(self, x):
        x = self.conv(x)
        x = self.norm(x, add=self.shortcut(x), relu=True)
        return self.out(self.last(x.mean(dim=(2, 3))))


class Words(nn.Module):
    def __init__(self):
        super().__init__()
        self.table, self.norm, self.out = nn.Embedding(9, 4, padding_idx=3), nn.LayerNorm(4), nn.Linear(4, 3)

    def forward(self, x):
        return self.out(self.norm(self.table(x)).mean(dim=1))


SIZES = (5, 5, 3)
"""The batches of three clients: the last one's is filled up to five."""


def sample_weights():
    return torch.stack([(torch.arange(max(SIZES)) < size).double() / size for size in SIZES])


@pytest.mark.parametrize("form", ["layered", "vmapped"])
@pytest.mark.parametrize("model", [Pictures, Words])
def test_gradients_are_those_of_each_client_alone(model, form):
    """Of the form itself: an engine tries it first, and takes another that is right where it is wrong."""
    torch.manual_seed(0)
    made, places = model().double(), len(SIZES) * max(SIZES)
    x = torch.randn(places, 2, 5, 5).double() if model is Pictures else torch.randint(0, 9, (places, 6))
    y = torch.arange(places) % 3
    start = flatten(made.parameters()).detach()
    vectors = [start + 0.2 * torch.randn_like(start) for _ in SIZES]
    losses, _ = client_losses(F.cross_entropy, made(x), y)
    kernels = (TorchKernels(),) if form == "layered" else ()
    network = (LayeredNetwork if form == "layered" else VmappedNetwork)(made, losses, *kernels)
    rows, grads = (network.layout.rows(len(SIZES), start) for _ in range(2))
    rows.copy_(network.layout.inward(torch.stack(vectors)))
    network.bind(rows, grads)
    for _ in range(2):  # what the first one left is not added to
        found = network.backward(x, y, sample_weights())
    gradients = network.layout.outward(grads)
    for number, (vector, size) in enumerate(zip(vectors, SIZES, strict=True)):
        nn.utils.vector_to_parameters(vector, made.parameters())
        own = slice(number * max(SIZES), number * max(SIZES) + size)
        loss = F.cross_entropy(made(x[own]), y[own])
        expected = flatten(torch.autograd.grad(loss, list(made.parameters())))
        torch.testing.assert_close(gradients[number], expected, rtol=1e-10, atol=1e-12)
        torch.testing.assert_close(found[number], loss.detach(), rtol=1e-10, atol=1e-12)


def squared(output, y):
    return ((output - F.one_hot(y, 3)) ** 2).mean()


SMOOTH = nn.CrossEntropyLoss(label_smoothing=0.1)


@pytest.mark.parametrize(
    ("loss", "positions"), [(F.cross_entropy, ()), (F.cross_entropy, (4,)), (SMOOTH, ()), (SMOOTH, (4,)), (squared, ())]
)
def test_losses_are_those_of_each_batch_alone(loss, positions):
    """Short batches are filled up, and some positions of a sample are ignored."""
    torch.manual_seed(0)
    places = len(SIZES) * max(SIZES)
    output, y = torch.randn(places, 3, *positions).double(), torch.randint(0, 3, (places, *positions))
    if positions:
        y[::2, 2:] = -100
    losses, takes_short_batches = client_losses(loss, output[:4], y[:4])
    assert takes_short_batches
    found = losses(output, y, sample_weights())
    for number, size in enumerate(SIZES):
        own = slice(number * max(SIZES), number * max(SIZES) + size)
        torch.testing.assert_close(found[number], loss(output[own], y[own]), rtol=1e-12, atol=1e-12)


def last(x):
    return x.contiguous(memory_format=torch.channels_last)


def rows(clients, *shape):
    """Parameters of several clients that do not lie side by side, as in the engine."""
    size = torch.Size(shape).numel()
    return torch.randn(clients, size + 5, device=DEVICE)[:, :size].view(clients, *shape)


CONVOLUTIONS = [
    # clients, batch, in, out, size, kernel, stride, padding
    pytest.param(2, 2, 3, 20, 7, 7, 2, 3, id="stem"),
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


@pytest.mark.slow
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


def test_the_kernel_of_lstm_is_what_torch_computes():
    """Outputs and gradients of two clients, one layer, beside torch's own LSTM with autograd."""
    triton_lstm = pytest.importorskip("fedlada.engines.stacked.triton_lstm")
    torch.manual_seed(0)
    times, rows, size = 4, 3, 5
    layers = [nn.LSTM(2, size, device=DEVICE) for _ in range(2)]
    x, start = torch.randn(times, 2, rows, 2, device=DEVICE), torch.randn(2, 2, rows, size, device=DEVICE)
    d_out, d_last = (torch.randn(count, 2, rows, size, device=DEVICE) for count in (times, 1))
    d_last = d_last[0]
    weight = torch.stack([one.weight_hh_l0 for one in layers]).detach()
    bias = torch.stack([one.bias_hh_l0 for one in layers]).detach()
    by_inputs = torch.stack([x[:, i] @ one.weight_ih_l0.T + one.bias_ih_l0 for i, one in enumerate(layers)], dim=1)
    hiddens, cells, gates = triton_lstm.forward(by_inputs.detach(), start[0], start[1], weight, bias)
    d_cells = torch.zeros_like(cells)
    d_cells[-1] = d_last
    d_gates, d_hidden, d_cell = triton_lstm.backward(gates, start[1], cells, weight, d_out, d_cells)
    for i, one in enumerate(layers):
        own = [x[:, i].clone().requires_grad_(), *(part[i][None].clone().requires_grad_() for part in start)]
        with torch.backends.cudnn.flags(allow_tf32=False):
            out, (_, last) = one(own[0], (own[1], own[2]))
        torch.testing.assert_close(hiddens[:, i], out)
        torch.testing.assert_close(cells[-1, i], last[0])
        ((out * d_out[:, i]).sum() + (last[0] * d_last[i]).sum()).backward()
        torch.testing.assert_close(d_gates[:, i] @ one.weight_ih_l0, own[0].grad)
        torch.testing.assert_close(d_hidden[i], own[1].grad[0])
        torch.testing.assert_close(d_cell[i], own[2].grad[0])


def test_a_frequent_token_has_its_whole_gradient_in_bf16():
    embedding = nn.Embedding(5, 64)
    x = torch.tensor([[0] * 2000 + [1, 2, 3, 4]] * 2)
    dy = (torch.rand(2, 2004, 64, generator=torch.Generator().manual_seed(0)) / 2000).to(torch.bfloat16)

    def gradient(dtype):
        layout = Layout(dict(embedding.named_parameters()), set())
        bank = Bank(layout, TorchKernels(), torch.device("cpu"))
        rows, grads = (layout.rows(2, embedding.weight.detach(), dtype) for _ in range(2))
        bank.bind(rows, grads)
        bank.begin(2)
        StackedEmbedding(bank, {"weight": "weight"}, embedding).run_back(dy.to(dtype), (x,), Use(), need_input=False)
        return layout.view(grads, "weight").double()

    torch.testing.assert_close(gradient(torch.bfloat16), gradient(torch.float64), rtol=2**-8, atol=0)


@pytest.mark.parametrize(
    ("clients", "batch", "size", "stride", "does"),
    [(10, 50, 112, 2, True), (1, 32768, 32, 1, False), (2, 32768, 32, 1, False), (1, 30000, 32, 1, True)],
)
def test_sizes_that_32_bits_cannot_count_are_left_to_torch(clients, batch, size, stride, does):
    triton_tiles = pytest.importorskip("fedlada.engines.stacked.triton_tiles")
    x = torch.empty(clients * batch, 3, size, size, device="meta")
    weight = torch.empty(clients, 60, 3, 3, 3, device="meta")
    assert triton_tiles.fits(x, weight, ConvShape((stride, stride), (1, 1), (1, 1), 1)) is does
