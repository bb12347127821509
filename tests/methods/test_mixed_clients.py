"""Hooks that mix clients only in what they look at, remember or upload; or only once there is a state."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
import torch

from fedlada.methods.local import LocalTransform
from fedlada.methods.testing.transforms import check_transform

ONES = "gives different results for stacked clients"


class Memory(LocalTransform):
    def init_kept(self, params):
        return {"m": torch.zeros_like(params)}

    def begin(self, shared, kept, like):
        return {"m": kept["m"]}

    def apply(self, update, local, step):
        return update + 0.1 * local["m"], {"m": 0.9 * local["m"] + update}

    def finish(self, local, done, step):
        return {}, {"m": local["m"]}


class Looks(LocalTransform):
    def look(self, point, local, step, gradient_at):
        gradient = gradient_at(point)
        return point + 0.5 * gradient / gradient.norm(), local


class Remembers(Memory):
    def finish(self, local, done, step):
        return {}, {"m": local["m"] - local["m"].mean()}


class Begins(Memory):
    def begin(self, shared, kept, like):
        return {"m": kept["m"] / (1 + kept["m"].norm())}


class Shared(LocalTransform):
    def init_shared(self, params):
        return {"g": torch.zeros_like(params)}

    def merge(self, shared, mean, round):
        return {"g": round.delta}

    def apply(self, update, local, step):
        g = step.shared["g"]
        return update + 0.3 * g / (1 + g.norm()), local


class Uploads(LocalTransform):
    def finish(self, local, done, step):
        return {"n": done.delta.norm() * torch.ones_like(done.delta[..., :1])}, {}


class UploadsOne(LocalTransform):
    def finish(self, local, done, step):
        return {"n": done.delta.norm().reshape(1)}, {}


class Shrinks(Memory):
    def finish(self, local, done, step):
        return {}, {"m": done.delta.sum(dim=-1, keepdim=True)}


@dataclass(frozen=True)
class Cumulates(LocalTransform):
    elementwise = True

    def look(self, point, local, step, gradient_at):
        return point + 0.05 * point.cumsum(-1), local


class CumulatesMemory(Memory):
    elementwise = True

    def finish(self, local, done, step):
        return {}, {"m": done.delta.cumsum(-1)}


@pytest.mark.parametrize(
    ("part", "sentence"),
    [
        (Looks(), ONES),
        (Remembers(), ONES),
        (Begins(), ONES),
        (Shared(), ONES),
        (Uploads(), ONES),
        (
            UploadsOne(),
            r"must return from finish 'n' with one row for each stacked client, .*; got \(1,\) for 2",
        ),
        (Shrinks(), r"must return from finish 'm' in the form that it was given, .*; got float32 of shape \(1,\)"),
        (Cumulates(), "declares elementwise = True, but"),
        (CumulatesMemory(), "declares elementwise = True, but"),
    ],
    ids=lambda one: type(one).__name__ if isinstance(one, LocalTransform) else "",
)
def test_it_is_refused(part, sentence):
    with pytest.raises(ValueError, match=f"{type(part).__name__} {sentence}"):
        check_transform(part)


def test_what_is_kept_for_each_client_alone_is_right():
    check_transform(Memory())


def test_the_default_device_changes_nothing():
    torch.set_default_device("meta")
    try:
        check_transform(Memory())
        with pytest.raises(ValueError, match=ONES):
            check_transform(Looks())
    finally:
        torch.set_default_device(None)
