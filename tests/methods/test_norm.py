"""Norms of vectors and of stacked ones."""

from __future__ import annotations

import pytest
import torch

from fedlada.methods.norm import LARGE, NORM_BLOCK, norm


@pytest.mark.parametrize("size", [5, NORM_BLOCK, 3 * NORM_BLOCK, 3 * NORM_BLOCK + 1, LARGE, LARGE + 5])
@pytest.mark.parametrize("rows", [(), (2,)])
def test_norm(rows, size):
    torch.manual_seed(0)
    vector = torch.randn(*rows, size, dtype=torch.float64)
    expected = (vector**2).sum(dim=-1, keepdim=True).sqrt()
    torch.testing.assert_close(norm(vector), expected, rtol=1e-14, atol=0)


@pytest.mark.parametrize("size", [LARGE, 4 * LARGE + 5])
def test_a_long_norm_is_right_in_float32(size):
    vector = torch.randn(size, generator=torch.Generator().manual_seed(0))
    torch.testing.assert_close(norm(vector).double(), norm(vector.double()), rtol=5e-7, atol=0)
