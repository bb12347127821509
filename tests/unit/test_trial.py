"""A new transform that breaks its contract is one sentence where the method is made, not nonsense in a run."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
import torch

from fedlada import FederatedMethod, LocalTransform, server
from fedlada.local.trial import GRADIENTS, one_round
from method_table import METHODS


def method(part):
    return FederatedMethod(name="mine", local=(part,), server=server.SGD())


@dataclass(frozen=True)
class Mine(LocalTransform):
    """Right but for what `wrong` names."""

    wrong: str = ""

    def init_shared(self, params):
        return torch.zeros(3) if self.wrong == "shared" else {"c": params * 0}

    def init_kept(self, params):
        return {"k": torch.zeros(2)} if self.wrong == "kept" else {"k": params * 0}

    def begin(self, shared, like):
        return None if self.wrong == "begin" else {"m": like * 0, "count": like[..., :1] * 0}

    def apply(self, update, local, step):
        if self.wrong == "one":
            return update
        if self.wrong == "order":
            return local, update
        if self.wrong == "sum":
            return update.sum(), local
        if self.wrong == "forgets":
            return update, {"m": local["m"]}
        if self.wrong == "all axes":
            return update / update.norm(), local
        return update / update.norm(dim=-1, keepdim=True), {"m": update, "count": local["count"] + 1}

    def finish(self, local, run, step):
        if self.wrong == "no memory":
            return {"v": run.delta}
        return {"v": run.delta}, {"k": run.delta} if self.wrong != "other memory" else {}

    def merge(self, shared, mean, round):
        return {"c": mean["v"]} if self.wrong != "merge" else None


@pytest.mark.parametrize(
    ("wrong", "sentence"),
    [
        ("shared", r"Mine.init_shared must return a dict of tensors, got a tensor of the shape \[3\]"),
        ("kept", r"Mine.init_kept must return tensors of the shape \[3\]; k has \[2\]"),
        ("begin", "Mine.begin must return a dict of tensors, got NoneType"),
        ("one", r"Mine.apply must return two things, the update and the state; got a tensor of the shape \[3\]"),
        ("order", r"Mine.apply must return an update of the shape \[3\], as it was given; got dict"),
        (
            "sum",
            r"Mine.apply must return an update of the shape \[3\], as it was given; got a tensor of the shape \[\]",
        ),
        ("forgets", "Mine.apply must return the names it was given, count, m; got m"),
        (
            "all axes",
            r"Mine treats clients that are stacked, \[C, P\], otherwise than each alone: reduce over the last",
        ),
        ("no memory", "Mine.finish must return two things, what is uploaded and the memory; got dict"),
        ("other memory", "Mine.finish must return the names it was given, k; got nothing"),
        ("merge", "Mine.merge must return a dict of tensors, got NoneType"),
    ],
)
def test_what_is_wrong_is_named(wrong, sentence):
    method(Mine())
    with pytest.raises(ValueError, match=sentence):
        method(Mine(wrong))


@dataclass(frozen=True)
class Noise(LocalTransform):
    """As differential privacy has it."""

    def apply(self, update, local, step):
        return update + torch.randn_like(update), local


def test_a_random_transform_is_let_through_and_draws_nothing_from_the_run():
    torch.manual_seed(0)
    method(Noise())
    drawn = torch.rand(1)
    torch.manual_seed(0)
    assert torch.equal(drawn, torch.rand(1))


@dataclass(frozen=True, eq=False)
class Masked(LocalTransform):
    """Made for a model of another size than the trial's."""

    mask: torch.Tensor

    def apply(self, update, local, step):
        return update * self.mask, local


def test_what_fails_on_trial_alone_is_left_to_the_run():
    method(Masked(torch.ones(7)))


@pytest.mark.parametrize("name", METHODS)
def test_our_own_transforms_go_through_the_whole_trial(name):
    row = METHODS[name]
    for changes in ({}, *row.variants):
        for part in row.method(**changes).local:
            assert one_round(part, name, GRADIENTS)  # nothing in it fails, which the trial would overlook
