"""Dropout by bit masks has the bits of `torch.where`, forwards and backwards, and its layout."""

from __future__ import annotations

import pytest
import torch
from torch.autograd import forward_ad
from torch.nn import functional as F

from fedlada.engines.bit_masks import can_mask, masked
from fedlada.engines.dropout import CounterDropout
from fedlada.engines.masks import Elements, kept_bits, kept_places
from fedlada.engines.tracing import tracing

KEY = torch.tensor(2**40 + 7)
ELEMENTS = Elements()
STRANGE = torch.tensor([0.0, -0.0, torch.inf, -torch.inf, torch.nan, 1e-45, -1e-45, 3e38])


def dropped(x, p=0.3, key=KEY, **options):
    with CounterDropout(key, ELEMENTS, **options):
        return F.dropout(x, p)


def by_where(x, p=0.3):
    kept = CounterDropout(KEY, ELEMENTS).keep(x.shape, x.device, p)
    return torch.where(kept, x * (1 / (1 - p)), torch.zeros((), dtype=x.dtype))


def raw(x):
    return x.contiguous().view(torch.uint8)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
@pytest.mark.parametrize("turned", [False, True])
def test_values_gradients_and_layouts_are_those_of_where(dtype, turned):
    """Also where the gradient comes in another layout, and for numbers that a product with zero would change."""
    x = torch.cat([torch.randn(2, 6, 8), STRANGE.expand(2, 6, 8)]).to(dtype).requires_grad_()
    weights = torch.randn(4, 8, 6).to(dtype).mT if turned else STRANGE.expand(4, 6, 8).to(dtype)
    assert can_mask(x)
    found, expected = dropped(x), by_where(x)
    assert found.grad_fn.name() == "_MaskedBackward"
    for one, other in (
        (found, expected),
        (torch.autograd.grad(found, x, weights)[0], torch.autograd.grad(expected, x, weights)[0]),
    ):
        assert torch.equal(raw(one), raw(other))
        assert one.stride() == other.stride()


def test_many_gradients_at_once():
    """Autograd then runs the backward pass under vmap, after a forward pass without."""
    x = torch.randn(3, 4, requires_grad=True)
    many = torch.eye(12)
    found, expected = (
        torch.autograd.grad(of(x).flatten(), x, many, is_grads_batched=True) for of in (dropped, by_where)
    )
    assert torch.equal(found[0], expected[0])
    by_rows = torch.autograd.functional.jacobian(dropped, x, vectorize=True)
    assert torch.equal(by_rows, torch.autograd.functional.jacobian(by_where, x))


def test_a_joint_batch():
    keys, x = torch.tensor([3, -8]), torch.randn(2, 4, 5)
    alone = [dropped(own, key=key) for key, own in zip(keys, x, strict=True)]
    assert torch.equal(dropped(x.flatten(0, 1), key=keys, num_samples=8), torch.cat(alone))


@pytest.mark.filterwarnings("ignore:`torch.jit.script` is deprecated")  # torch's own, in its rules for tangents
def test_gradients_of_gradients_and_tangents():
    x, direction = torch.randn(5, 4, dtype=torch.float64, requires_grad=True), torch.randn(5, 4, dtype=torch.float64)

    def second(drop):
        (first,) = torch.autograd.grad(drop(x.exp()).sum(), x, create_graph=True)
        return torch.autograd.grad(first.square().sum(), x)[0]

    assert torch.equal(second(dropped), second(by_where))
    with forward_ad.dual_level():
        dual = forward_ad.make_dual(x.detach(), direction)
        tangents = [forward_ad.unpack_dual(drop(dual)).tangent for drop in (dropped, by_where)]
    assert torch.equal(*tangents)


class Wrapped(torch.Tensor):
    pass


def test_other_tensors_are_left_to_where():
    x = torch.randn(3, 4)
    others = (x.mT, x.to(torch.complex64), x.long(), x.as_subclass(Wrapped), torch.empty(3, 4, device="meta"))
    assert not any(map(can_mask, others))
    seen = []
    torch.vmap(lambda own: (seen.append(can_mask(own)), own)[1])(x)
    with tracing():
        seen.append(can_mask(x))
    assert seen == [False, False]
    assert can_mask(x)


@pytest.mark.parametrize("p", [0.001, 0.25, 0.5, 0.999999, 1.0])
def test_bits_are_the_mask(p):
    elements, low = ELEMENTS.of((50, 70), torch.device("cpu")), torch.tensor([5, -(2**31)], dtype=torch.int32)
    found = kept_bits(elements, low, -low, p)
    assert torch.equal(found == -1, kept_places(elements, low, -low, p))
    assert set(found.unique().tolist()) <= {-1, 0}


def test_a_mask_of_the_size_of_the_numbers():
    bits = torch.tensor([-1, 0], dtype=torch.int32)
    for dtype in (torch.float16, torch.float64):
        assert torch.equal(masked(torch.ones(2, dtype=dtype), bits, 2.0), torch.tensor([2.0, 0.0], dtype=dtype))
