"""A part holds no state and no random generator in its fields: a resume would lose it, and two runs would share it."""

from __future__ import annotations

import random
import threading
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest
import torch
from fedlada.testing import check_combiner, check_transform

from fedlada import Combiner, FederatedMethod, LocalTransform, ServerOptimizer, Upload, average, server, simulate
from fedlada.methods.testing.fields import changed_field, fields_of
from tasks import blobs, small_net


def run(transform=None, optimizer=None, combiner=None):
    local = () if transform is None else (transform,)
    method = FederatedMethod(name="mine", local=local, server=optimizer or server.SGD())
    return simulate(small_net(), blobs(), method=method, combiner=combiner, lr=0.05, rounds=1)


class Counter:
    """Notes its calls in a field of its kind; only the fiftieth is another."""

    calls: Any

    def count(self):
        if isinstance(self.calls, list):
            self.calls[0] += 1
        elif isinstance(self.calls, dict):
            self.calls["n"] = self.calls.get("n", 0) + 1
        elif isinstance(self.calls, torch.Tensor | np.ndarray):
            self.calls[0] += 1
        else:
            object.__setattr__(self, "calls", self.calls + 1)


@dataclass(frozen=True)
class Warms(Counter, LocalTransform):
    calls: Any = 0

    def apply(self, update, local, step):
        self.count()
        return update, local


@dataclass(frozen=True)
class Steps(Counter, ServerOptimizer):
    calls: Any = 0

    def step(self, params, delta, state, round):
        self.count()
        return params - delta, state


@dataclass(frozen=True)
class Means(Counter, Combiner):
    calls: Any = 0

    def combine(self, uploads, weights=None):
        self.count()
        return average(uploads, weights)


@pytest.mark.parametrize("kind", [int, lambda: [0], dict, lambda: torch.zeros(1), lambda: np.zeros(1)])
def test_a_count_in_a_field_is_refused(kind):
    with pytest.raises(ValueError, match="Warms changes its field 'calls': hold state in begin"):
        run(Warms(kind()))
    with pytest.raises(ValueError, match="the server optimizer Steps changes its field 'calls': hold state in init"):
        run(optimizer=Steps(kind()))
    for refuse in (check_combiner, lambda one: run(combiner=one)):
        with pytest.raises(ValueError, match="Means changes its field 'calls': hold state in a server optimizer"):
            refuse(Means(kind()))


def test_a_combiner_with_momentum_of_its_own_is_refused():
    class Momentum(Combiner):
        m: Any = None

        def combine(self, uploads, weights=None):
            mean = average(uploads, weights)
            self.m = mean.delta if self.m is None else 0.9 * self.m + mean.delta
            return Upload(self.m, mean.extra)

    for refuse in (check_combiner, lambda one: run(combiner=one)):
        with pytest.raises(ValueError, match="Momentum gives another result when it is called again: hold state in"):
            refuse(Momentum())


@dataclass(frozen=True)
class Notes(Warms):
    seen: list = field(default_factory=list)

    def count(self):
        self.seen.append(len(self.seen))


def test_notes_are_no_state():
    check_transform(Notes())
    run(Notes())


GENERATORS = [
    torch.Generator,
    lambda: random.Random(0),
    lambda: np.random.default_rng(0),
    np.random.RandomState,
    lambda: [0, (random.Random(0),)],
    lambda: {"own": [torch.Generator()]},
]


@pytest.mark.parametrize("kind", GENERATORS)
def test_a_generator_in_a_field_is_refused(kind):
    said = "holds the random generator 'calls', whose state no checkpoint has: draw from torch, NumPy or Python"
    for refuse in (check_transform, run):
        with pytest.raises(ValueError, match=f"Warms {said}"):
            refuse(Warms(kind()))
    with pytest.raises(ValueError, match=f"Steps {said}"):
        run(optimizer=Steps(kind()))
    for refuse in (check_combiner, lambda one: run(combiner=one)):
        with pytest.raises(ValueError, match=f"Means {said}"):
            refuse(Means(kind()))


def test_what_cannot_be_copied_is_passed_over():
    @dataclass
    class Holds:
        lock: Any
        number: float = float("nan")

    held = Holds(threading.Lock())
    before = fields_of(held)
    assert list(before) == ["number"]
    assert not changed_field(before, held)
    held.number = 1.0
    assert changed_field(before, held) == "number"
