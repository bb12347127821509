"""A transform is checked once: again only where its results may be others."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
import torch

from fedlada.methods import server
from fedlada.methods.local import LocalTransform
from fedlada.methods.method import FederatedMethod
from fedlada.training import checked_once
from fedlada.training.resolve import resolve_method


@dataclass(frozen=True)
class Frozen(LocalTransform):
    by: float = 2.0
    held: object = None

    def apply(self, update, local, step):
        return update * self.by, local


def mean(self, update, local, step):  # noqa: ARG001
    return update.mean(), local


class Mutable(LocalTransform):
    def apply(self, update, local, step):
        return 2 * update, local


@pytest.fixture
def checked(monkeypatch):
    seen = []
    real = checked_once.error_in_check
    monkeypatch.setattr(checked_once, "error_in_check", lambda part: (seen.append(part), real(part))[1])
    monkeypatch.setattr(checked_once, "_right_values", set())
    return seen


def resolve(part):
    resolve_method(FederatedMethod(name="own", local=(part,), server=server.SGD()))


def test_an_equal_one_is_not_checked_again(checked):
    for part in (Frozen(), Frozen(2.0), Frozen(3.0), Frozen(3.0)):
        resolve(part)
    assert checked == [Frozen(2.0), Frozen(3.0)]


def test_one_with_another_type_of_value_is(checked):
    for part in (Frozen(1.0), Frozen(1), Frozen(True)):
        resolve(part)
    assert len(checked) == 3


@pytest.mark.usefixtures("checked")
def test_one_with_another_call_is(monkeypatch):
    resolve(Frozen())
    monkeypatch.setattr(Frozen, "apply", mean)
    with pytest.raises(ValueError, match="an update of the shape it was given"):
        resolve(Frozen())


@pytest.mark.parametrize("make", [Mutable, lambda: Frozen(2.0, torch.ones(3)), lambda: Frozen(2.0, [1, 2])])
def test_what_may_change_or_is_large_is_known_by_itself_alone(checked, make):
    part = make()
    for one in (part, part, make()):
        resolve(one)
    assert len(checked) == 2
    assert not checked_once._right_values


@pytest.mark.usefixtures("checked")
def test_a_wrong_one_is_refused_each_time(monkeypatch):
    monkeypatch.setattr(Frozen, "apply", mean)
    for _ in range(2):
        with pytest.raises(ValueError, match="an update of the shape it was given"):
            resolve(Frozen())


@pytest.mark.usefixtures("checked")
def test_what_is_remembered_is_bounded(monkeypatch):
    monkeypatch.setattr(checked_once, "MOST", 3)
    for by in range(7):
        resolve(Frozen(by + 2))
    assert len(checked_once._right_values) <= 3
