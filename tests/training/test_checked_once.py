"""A transform is checked once: again only where its results may be others."""

from __future__ import annotations

import gc
import weakref
from dataclasses import dataclass

import pytest
import torch

from fedlada.methods import server
from fedlada.methods.local import AMSGrad, LocalTransform, Proximal
from fedlada.methods.method import FederatedMethod
from fedlada.training import checked_once
from fedlada.training.resolve import resolve_method


@dataclass(frozen=True)
class Own(LocalTransform):
    by: object = 2.0

    def apply(self, update, local, step):
        return 2 * update, local


def mean(self, update, local, step):  # noqa: ARG001
    return update.mean(), local


@pytest.fixture(autouse=True)
def checked(monkeypatch):
    seen = []
    real = checked_once.error_in_check
    monkeypatch.setattr(checked_once, "error_in_check", lambda part: (seen.append(part), real(part))[1])
    monkeypatch.setattr(checked_once, "_right_values", set())
    return seen


def resolve(part):
    resolve_method(FederatedMethod(name="own", local=(part,), server=server.SGD()))


def test_an_equal_one_of_ours_is_not_checked_again(checked):
    for part in (Proximal(mu=0.1), Proximal(mu=0.1), Proximal(mu=0.2), Proximal(mu=0.2), AMSGrad()):
        resolve(part)
    assert checked == [Proximal(mu=0.1), Proximal(mu=0.2), AMSGrad()]


def test_ours_with_another_call_is(monkeypatch):
    resolve(Proximal(mu=0.1))
    monkeypatch.setattr(Proximal, "apply", mean)
    with pytest.raises(ValueError, match="an update of the shape it was given"):
        resolve(Proximal(mu=0.1))


def test_a_users_is_known_by_itself_alone(checked):
    """Its code may read anything."""
    part = Own()
    for one in (part, part, Own()):
        resolve(one)
    assert len(checked) == 2
    assert not checked_once._right_values


def test_one_that_could_not_be_tried_is_tried_again(checked):
    found = {}

    class Reads(LocalTransform):
        def apply(self, update, local, step):
            return update / (update.mean() if found["mixes"] else 1), local

    part = Reads()
    resolve(part)
    found["mixes"] = True
    with pytest.raises(ValueError, match="gives different results for stacked clients"):
        resolve(part)
    assert checked == [part, part]


def test_nothing_is_kept_alive(checked):
    held = torch.nn.Linear(2, 2)
    gone = weakref.ref(held)
    resolve(Own(held))
    checked.clear()
    del held
    gc.collect()
    assert gone() is None
