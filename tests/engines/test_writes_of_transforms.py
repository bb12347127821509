"""A transform that writes to what a client was given ends the run, if the trial before it did not see that."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
import torch
from fedlada.testing import check_transform

import fedlada
from fedlada import FederatedMethod, LocalTransform, recipes
from tasks import blobs, small_net

SMALL = 10
"""More parameters than a trial has, and fewer than a model."""


@dataclass(frozen=True)
class WritesIfLarge(LocalTransform):
    """Writes to one of its vectors, but not in a trial on a few numbers."""

    vector: str = ""
    from_step: int = 0
    elementwise = True

    def init_shared(self, params):
        return {"c": torch.zeros_like(params)}

    def init_kept(self, params):
        return {"k": torch.zeros_like(params)}

    def begin(self, shared, kept, like):
        return {"own": torch.zeros_like(like), "like": like}

    def apply(self, update, local, step):
        given = {"params": step.params, "anchor": step.anchor, "like": local["like"], "own": local["own"]}
        given |= {"shared": step.shared["c"], "kept": step.kept["k"]}
        if self.vector and update.shape[-1] > SMALL and local["own"][0] >= self.from_step:
            given[self.vector].mul_(0.999)
        return update, {**local, "own": local["own"] + 1}


def run(transform, **changes):
    method = FederatedMethod(name="mine", local=(transform,), server=fedlada.server.SGD())
    check_transform(transform)
    return fedlada.simulate(small_net(), blobs(), method=method, rounds=2, lr=0.05, engine="sequential", **changes)


@pytest.mark.parametrize(
    ("vector", "name"),
    [("params", "params"), ("anchor", "params"), ("like", "params"), ("shared", "shared.0.c"), ("kept", "memory.0.k")],
)
def test_a_write_is_refused_in_the_first_round(vector, name):
    sentence = rf"a transform of mine changes the vector {name}, which other clients use too, in place: hooks return"
    with pytest.raises(ValueError, match=sentence):
        run(WritesIfLarge(vector))


def test_a_write_of_a_later_client_is_refused_too():
    clients = [range(8), range(8, 120)]
    with pytest.raises(ValueError, match="changes the vector params, which other clients use too") as refusal:
        run(WritesIfLarge("anchor", from_step=2), partition=clients, batch_size=4, local_epochs=1)
    assert refusal.value.__notes__ == ["in round 1, while client 1 was trained"]


def test_what_writes_to_nothing_of_others_runs():
    expected = fedlada.simulate(small_net(), blobs(), method=recipes.fedavg(), rounds=2, lr=0.05).server.params
    for vector in ("", "own"):
        torch.testing.assert_close(run(WritesIfLarge(vector)).server.params, expected)
