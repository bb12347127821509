"""Norms of vectors and of stacked ones."""

from __future__ import annotations

import pytest
import torch

from fedlada.methods.norm import NORM_BLOCK, norm


@pytest.mark.parametrize("size", [5, NORM_BLOCK, 3 * NORM_BLOCK, 3 * NORM_BLOCK + 1])
@pytest.mark.parametrize("rows", [(), (2,)])
def test_norm(rows, size):
    torch.manual_seed(0)
    vector = torch.randn(*rows, size, dtype=torch.float64)
    expected = (vector**2).sum(dim=-1, keepdim=True).sqrt()
    torch.testing.assert_close(norm(vector), expected, rtol=1e-14, atol=0)
