"""Parts of a run as text: two that differ in any number are two runs."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pytest
import torch
from fedlada.cohorts import Scheduled
from fedlada.local import LocalTransform

import fedlada
from fedlada import recipes
from fedlada.data import IID
from fedlada.runs.config import describe_schedule
from fedlada.runs.parts import describe_part, words_of
from tasks import blobs, small_net


@dataclass(frozen=True, eq=False)
class Masked(LocalTransform):
    mask: object

    def apply(self, update, local, step):
        return update, local


@dataclass(frozen=True, eq=False)
class Rates:
    rates: object

    def __call__(self, round):
        return float(self.rates[round - 1])


def two(size=2000):
    """Arrays whose repr is the same: they differ in the middle alone."""
    one = np.ones(size)
    other = one.copy()
    other[size // 2] = 0
    return one, other


CLOSE = np.array([1.0, 0.1]), np.array([1.0, 0.1 + 1e-12])
OBJECTS = tuple(np.array([{"rate": rate}, None], dtype=object) for rate in (0.1, 0.2))


@pytest.mark.parametrize("arrays", [two(), CLOSE, OBJECTS, tuple(map(torch.tensor, two()))])
@pytest.mark.parametrize(
    "held", [lambda one: one, lambda one: [one], lambda one: {"of": (one,)}, lambda one: Rates(one)]
)
def test_arrays_are_known_by_their_values(arrays, held):
    one, other = (held(array) for array in arrays)
    again = held(arrays[0].copy() if isinstance(arrays[0], np.ndarray) else arrays[0].clone())
    for describe in (lambda part: describe_part(Masked(part)), lambda part: words_of(Scheduled([part]))):
        assert describe(one) == describe(again)
        assert describe(one) != describe(other)
    assert describe_schedule(Rates(arrays[0])) != describe_schedule(Rates(arrays[1]))


def test_without_arrays_a_part_is_its_repr():
    assert words_of(Scheduled([[0, 1], [2]])) == "Scheduled(rounds=[[0, 1], [2]])"


def test_a_folder_with_another_schedule_is_refused(tmp_path):
    def run(rounds):
        return fedlada.simulate(
            small_net(),
            blobs(),
            method=recipes.fedavg(),
            lr=0.1,
            partition=IID(num_clients=3),
            cohorts=Scheduled(rounds),
            rounds=2,
            out=tmp_path,
        )

    one, other = (np.stack([np.zeros(2000, int), last.astype(int) + 1], axis=1) for last in two())
    run(one)
    run(one.copy())
    with pytest.raises(ValueError, match=r"holds another run \(cohorts is 'Scheduled\(rounds=array\(\(2000, 2\)"):
        run(other)
