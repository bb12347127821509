"""Faster forms of the algebra have the bits of the plain ones, and change nothing that they are given."""

from __future__ import annotations

import math

import pytest
import torch

import fedlada
from fedlada.methods.state import Upload, all_finite


def upload(*numbers):
    return Upload(torch.tensor(numbers), ())


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_a_nan_or_an_infinity_is_found(bad):
    assert not all_finite(upload(1.0, bad, 2.0))
    assert not all_finite(upload(1.0, bad, -bad))


def test_finite_numbers_whose_sum_overflows_are_finite():
    assert all_finite(upload(3e38, 3e38))
    assert not all_finite(upload(3e38, 3e38, math.inf))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("lr", [0.0837, torch.tensor(0.0837), torch.tensor([[0.0837], [0.3]])])
def test_a_step_has_the_bits_of_the_formula(dtype, lr):
    shape = (2, 1001) if isinstance(lr, torch.Tensor) and lr.ndim else (1001,)
    lr = lr.to(dtype) if isinstance(lr, torch.Tensor) else lr
    params, gradient = (torch.randn(shape, dtype=dtype, generator=torch.Generator().manual_seed(n)) for n in (0, 1))
    method, given = fedlada.recipes.fedavg(), (params.clone(), gradient.clone())
    local = method.begin(method.init(params).broadcast, method.init_kept(params), lr=lr)
    moved = method.move(local, gradient)
    assert torch.equal(moved.params, params - lr * gradient)
    assert torch.equal(params, given[0])
    assert torch.equal(gradient, given[1])


def test_an_update_of_another_precision_is_not_rounded():
    params, gradient = torch.ones(3), torch.full((3,), 1e-3, dtype=torch.bfloat16)
    method = fedlada.recipes.fedavg()
    local = method.begin(method.init(params).broadcast, method.init_kept(params), lr=0.1)
    assert torch.equal(method.move(local, gradient).params, params - 0.1 * gradient)
