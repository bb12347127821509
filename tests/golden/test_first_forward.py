"""Shapes, parameter counts and first outputs of every model are those on record."""

from __future__ import annotations

import json

import numpy as np
import pytest

from fedlada.models import MODELS
from golden.first_forward import STORED, measure

RECORD = json.loads(STORED.read_text())


def test_every_model_is_on_record():
    assert set(RECORD) == set(MODELS)


@pytest.mark.parametrize("name", MODELS)
def test_first_forward(name):
    now, then = measure(name), RECORD[name]
    for what in ("input", "parameters", "tensors"):
        assert now[what] == then[what]
    np.testing.assert_allclose(now["outputs"], then["outputs"], rtol=1e-9, atol=1e-12)
