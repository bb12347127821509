"""Statistics of clients' answers."""

from __future__ import annotations

import math

import pytest
import torch

from fedlada.engines import tally
from fedlada.engines.tally import square_norm


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
@pytest.mark.parametrize("size", [0, 1, 7, 20, 41])
def test_square_norms_are_summed_in_float64(size, dtype, monkeypatch):
    """In blocks, of which the last may be shorter; a float32 sum would have an error of 1e-8 and more."""
    monkeypatch.setattr(tally, "NORM_BLOCK", 20)
    vector = (1e-3 * torch.randn(size, generator=torch.Generator().manual_seed(0))).to(dtype)
    expected = math.fsum(value * value for value in vector.double().tolist())
    assert square_norm(vector) == pytest.approx(expected, rel=1e-14, abs=0)


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_what_is_not_finite_shows(value):
    vector = torch.zeros(tally.NORM_BLOCK + 3)
    vector[-1] = value
    assert not math.isfinite(square_norm(vector))
