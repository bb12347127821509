"""A federation over Flower gives the weights of the simulation, to the bit."""

from __future__ import annotations

import pytest

from method_table import METHODS
from small_federation import assert_same_bits, grid_of, plain, simulate, strategy_of


@pytest.mark.parametrize("name", METHODS)
def test_every_method_equals_its_simulation(name, tmp_path):
    method = METHODS[name].method()
    real = strategy_of(method).run(grid_of(method, tmp_path), 5, progress=False)
    simulated = simulate(method, 5)
    assert plain(real.history) == plain(simulated.history)
    assert_same_bits(real, simulated)
