"""Max-pooling with the channels last has the bits of torch's own, forwards and backwards, and its layout."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn
from torch.autograd import forward_ad
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

import fedlada
from fedlada.engines import cpu_pool
from fedlada.engines.cpu_pool import ChannelsLastPool

STRANGE = torch.tensor([0.0, -0.0, torch.inf, -torch.inf, torch.nan, 1e-45, -1e-45, 3e38])
WINDOWS = {
    "2x2": {"kernel_size": 2},
    "overlapping": {"kernel_size": 3, "stride": 2, "padding": 1},
    "wide": {"kernel_size": (3, 2), "stride": [1, 2], "padding": (1, 0)},
    "one image row": {"kernel_size": 3, "stride": 3},
}
UNUSUAL = {
    "global": {"kernel_size": (9, 7)},
    "skipping": {"kernel_size": 2, "stride": 3},
    "dilated": {"kernel_size": 2, "dilation": 2},
    "rounded up": {"kernel_size": 3, "stride": 2, "ceil_mode": True},
    "NumPy's": {"kernel_size": np.int64(2)},
    "a tensor's": {"kernel_size": torch.tensor(2)},
    "no stride": {"kernel_size": 2, "stride": []},
}


def is_taken(window):
    try:
        F.max_pool2d(torch.zeros(1, 1, 9, 7), **window)
    except RuntimeError:  # torch 2.8 takes no tensor
        return False
    return True


LEFT = {name: window for name, window in UNUSUAL.items() if is_taken(window)}


@pytest.fixture(autouse=True)
def small_ones_too(monkeypatch):
    monkeypatch.setattr(cpu_pool, "FEWEST_NUMBERS", 1)


def fast(x, pool=F.max_pool2d, **window):
    with ChannelsLastPool():
        return pool(x, **window)


def raw(x):
    return x.contiguous().view(torch.uint8)


def images(dtype=torch.float32, channels=20):
    """Ties, as after a ReLU, and every strange number."""
    x = torch.randn(3, channels, 9, 7, generator=torch.Generator().manual_seed(0)).relu().to(dtype)
    x.view(-1)[::5] = STRANGE.to(dtype).repeat(x.numel())[: x.view(-1)[::5].numel()]
    return x.requires_grad_()


@pytest.mark.parametrize(
    ("window", "is_fast"),
    [*((one, True) for one in WINDOWS.values()), *((one, False) for one in LEFT.values())],
    ids=[*WINDOWS, *LEFT],
)
def test_values_gradients_and_layouts_are_torchs(window, is_fast):
    x = images()
    found, expected = fast(x, **window), F.max_pool2d(x, **window)
    assert (found.grad_fn.name() == "_PooledBackward") == is_fast
    grad = torch.randn(expected.shape)
    for one, other in (
        (found, expected),
        *zip(*(torch.autograd.grad(of, x, grad, retain_graph=True) for of in (found, expected)), strict=True),
        *zip(*(torch.autograd.grad(of.sum(), x) for of in (found, expected)), strict=True),
    ):
        assert torch.equal(raw(one), raw(other))
        assert one.stride() == other.stride()


def test_the_strides_of_one_pixel_are_torchs():
    """Both layouts of such an image are contiguous, and the kernels that follow look at the strides."""
    x = images()[:, :, :2, :2].contiguous()
    found = fast(x, kernel_size=2)
    assert found.grad_fn.name() == "_PooledBackward"
    assert found.stride() == F.max_pool2d(x, 2).stride()


@pytest.mark.parametrize(
    "mistake", [{}, {"kernel_size": 2, "stride": 0}, {"kernel_size": 2, "size": 3}, {"kernel_size": "2"}]
)
def test_mistakes_are_told_by_torch(mistake):
    x = images()
    with pytest.raises((TypeError, RuntimeError)) as expected:
        F.max_pool2d(x, **mistake)
    with pytest.raises(expected.type) as found:
        fast(x, **mistake)
    assert str(found.value) == str(expected.value)


@pytest.mark.parametrize("reentrant", [True, False])
def test_what_is_computed_again_is_left_to_torch(reentrant):
    x = images()
    with ChannelsLastPool():
        found = checkpoint(lambda x: nn.MaxPool2d(2)(x.exp()), x, use_reentrant=reentrant)
        assert "_Pooled" not in str(found.grad_fn)
    grad = torch.randn(found.shape)
    expected = torch.autograd.grad(F.max_pool2d(x.exp(), 2), x, grad)
    found.backward(grad)
    assert torch.equal(raw(x.grad), raw(expected[0]))


def test_every_way_to_call_it():
    x = images()
    for pool in (nn.MaxPool2d(2), lambda x: F.max_pool2d(x, 2, None), lambda x: torch.max_pool2d(x, [2, 2], 2)):
        assert fast(x, pool).grad_fn.name() == "_PooledBackward"
        assert torch.equal(raw(fast(x, pool)), raw(pool(x)))
    values, places = fast(x, kernel_size=2, return_indices=True)
    expected = F.max_pool2d(x, 2, return_indices=True)
    assert torch.equal(raw(values), raw(expected[0]))
    assert torch.equal(places, expected[1])


@pytest.mark.parametrize(
    "x",
    [
        images(channels=4),
        images().contiguous(memory_format=torch.channels_last),
        images(torch.float64),
        images().bfloat16(),
        images()[0],
        images().detach(),
    ],
    ids=["few channels", "channels last", "float64", "bfloat16", "one image", "no gradient"],
)
def test_left_to_torch(x):
    found = fast(x, kernel_size=2)
    assert found.grad_fn is None or found.grad_fn.name() != "_PooledBackward"
    assert torch.equal(raw(found), raw(F.max_pool2d(x, 2)))


@pytest.mark.filterwarnings("ignore:`torch.jit.script` is deprecated")  # torch's own, in its rules for tangents
def test_other_derivatives():
    """Gradients of gradients, many gradients at once, tangents, and torch.func's."""
    x = torch.randn(2, 16, 4, 4, requires_grad=True)
    direction = torch.randn_like(x)

    def second(pool):
        (first,) = torch.autograd.grad(pool(x.exp(), kernel_size=2).square().sum(), x, create_graph=True)
        return torch.autograd.grad(first.square().sum(), x)[0]

    def tangent(pool):
        with forward_ad.dual_level():
            return forward_ad.unpack_dual(pool(forward_ad.make_dual(x, direction), kernel_size=2)).tangent

    def many(pool):
        out = pool(x, kernel_size=2)
        return torch.autograd.grad(out, x, torch.stack([out, 2 * out]).detach(), is_grads_batched=True)[0]

    def transformed(pool):
        return torch.func.vmap(torch.func.grad(lambda one: pool(one, kernel_size=2).square().sum()))(x[:, None])

    for derivative in (second, tangent, many, transformed):
        assert torch.equal(derivative(fast), derivative(F.max_pool2d))


class Net(nn.Module):
    def __init__(self, pools):
        super().__init__()
        self.conv, self.out, self.pools = nn.Conv2d(1, 16, 3), nn.Linear(16, 3), pools

    def forward(self, x):
        y = self.conv(x).relu()
        y = F.max_pool2d(y, 2) if self.pools else y
        return self.out(F.dropout(y.mean((2, 3)), 0.3, self.training))


@pytest.mark.parametrize("pools", [True, False])
def test_the_engine_uses_it_where_a_model_pools(pools, monkeypatch):
    """Also beside dropout; the run has the bits of one without it."""
    generator = torch.Generator().manual_seed(0)
    x, y = torch.randn(40, 1, 8, 8, generator=generator), torch.randint(0, 3, (40,), generator=generator)
    calls = []
    monkeypatch.setattr(cpu_pool, "is_plain", lambda x, real=cpu_pool.is_plain: (calls.append(x.shape[0]), real(x))[1])

    def result():
        torch.manual_seed(0)
        settings = {"cohort_size": 3, "rounds": 2, "batch_size": 4, "lr": 0.1, "device": "cpu"}
        return fedlada.simulate(Net(pools), (x, y), test=(x, y), method=fedlada.recipes.fedlada(), **settings)

    found = result()
    assert set(calls) == ({4} if pools else set()), "in steps alone"
    monkeypatch.setattr(cpu_pool, "_pays", lambda _: False)
    other = result()
    assert torch.equal(found.server.params, other.server.params)
    assert found.history["test_loss"] == other.history["test_loss"]
