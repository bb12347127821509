"""A state of one's own keeps its dtype and shape in every engine, or is refused by the transform's name."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import pytest
import torch
from fedlada.testing import check_transform

import fedlada
from fedlada import FederatedMethod, LocalTransform, data
from fedlada.methods.forms import in_form_of
from tasks import blobs, small_net


def run(transform, engine):
    method = FederatedMethod(name="mine", local=(transform,), server=fedlada.server.SGD())
    settings = {"partition": data.IID(num_clients=4), "cohort_size": 2, "local_steps": 3, "batch_size": 8}
    return fedlada.simulate(small_net(), blobs(), method=method, engine=engine, lr=0.05, rounds=4, **settings)


@dataclass(frozen=True)
class Remembers(LocalTransform):
    """Keeps a vector between rounds, made, used and renewed by these."""

    first: Callable
    use: Callable
    renew: Callable

    def init_kept(self, params):
        return {"k": self.first(params)}

    def apply(self, update, local, step):
        return self.use(update, step.kept["k"]), local

    def finish(self, local, done, step):
        return {}, {"k": self.renew(step.kept["k"], done.delta)}


MEMORIES = {
    "a mask": Remembers(
        partial(torch.zeros_like, dtype=torch.bool),
        lambda update, mask: torch.where(mask, 0.1 * update, update),
        lambda _, delta: delta > 0,
    ),
    "whole numbers that float32 does not hold": Remembers(
        lambda params: torch.full_like(params, 2**24 + 1, dtype=torch.int64),
        lambda update, number: update * (1 + number % 7),
        lambda number, _: number + 1,
    ),
    "a count": Remembers(
        lambda _: torch.zeros(1, dtype=torch.int64),
        lambda update, count: update / (1 + count // 2),
        lambda count, _: count + 1,
    ),
    "the last two": Remembers(
        lambda params: torch.zeros(2, len(params)),
        lambda update, last: update + 0.1 * last[..., 0, :],
        lambda last, delta: torch.stack([last[..., 1, :], delta], dim=-2),
    ),
}


@pytest.mark.parametrize("name", MEMORIES)
def test_a_memory_is_the_same_in_both_engines(name):
    check_transform(MEMORIES[name])
    one, other = run(MEMORIES[name], "sequential"), run(MEMORIES[name], "stacked")
    assert other.engine == "stacked"
    torch.testing.assert_close(one.server.params, other.server.params)
    for client, memory in one.kept.items():
        torch.testing.assert_close(memory.memory, other.kept[client].memory)


@dataclass(frozen=True)
class Changes(LocalTransform):
    """Returns a state in another form than it was given."""

    hook: str
    first: Callable = torch.zeros_like
    change: Callable = torch.clone

    def init_shared(self, params):
        return {"s": self.first(params)}

    def init_kept(self, params):
        return {"s": self.first(params)}

    def begin(self, shared, kept, like):
        return {"s": self.first(like)}

    def changed(self, hook, state):
        return {"s": self.change(state["s"])} if hook == self.hook else state

    def look(self, point, local, step, gradient_at):
        return point, self.changed("look", local)

    def apply(self, update, local, step):
        return update, self.changed("apply", local)

    def finish(self, local, done, step):
        return {}, self.changed("finish", step.kept)

    def merge(self, shared, mean, round):
        return self.changed("merge", shared)


def whole(vector):
    return torch.zeros_like(vector, dtype=torch.int64)


def one_number(vector):
    return torch.zeros_like(vector[..., :1])


@pytest.mark.parametrize("hook", ["look", "apply", "finish", "merge"])
@pytest.mark.parametrize(
    ("first", "change", "said"),
    [
        (whole, lambda state: state + 0.5, "int64 of shape (3,); got float32 of shape (3,)"),
        (torch.zeros_like, torch.Tensor.double, "float32 of shape (3,); got float64 of shape (3,)"),
        (one_number, lambda state: state.expand(3), "float32 of shape (1,); got float32 of shape (3,)"),
    ],
)
def test_a_state_in_another_form_is_refused_before_the_run(hook, first, change, said):
    wrong = Changes(hook, first, change)
    sentence = f"Changes must return from {hook} 's' in the form that it was given, {said}"
    for refuse in (check_transform, partial(run, engine="sequential")):
        with pytest.raises(ValueError) as error:
            refuse(wrong)
        assert str(error.value) == sentence


@pytest.mark.parametrize("engine", ["sequential", "stacked"])
def test_what_changes_its_form_only_in_the_run_is_named_too(engine):
    def longer(state):
        return state.double() if state.shape[-1] > 10 else state  # as the model is, and no trial

    with pytest.raises(ValueError, match="Changes must return from apply 's' in the form that it was given, float32"):
        run(Changes("apply", change=longer), engine)


def test_an_update_in_another_dtype_is_refused():
    @dataclass(frozen=True)
    class Signs(LocalTransform):
        def apply(self, update, local, step):
            return update.sign().int(), local

    said = r"Signs must return from apply an update in the dtype it was given, torch\.float32; got torch\.int32"
    with pytest.raises(ValueError, match=said):
        check_transform(Signs())


def test_the_sentences_on_states_that_are_none():
    old = {"m": torch.zeros(2)}
    for new, said in (
        (None, "must return from apply the names that it was given, m; got NoneType"),
        ({}, "the names that it was given, m; got nothing"),
        ({"m": 0.0}, r"'m' in the form that it was given, float32 of shape \(2,\); got float"),
    ):
        with pytest.raises(ValueError, match=said):
            in_form_of(old, new, LocalTransform(), "apply")
    assert list(in_form_of({"a": old["m"], "b": old["m"]}, {"b": old["m"], "a": old["m"]}, None, "")) == ["a", "b"]


def test_nothing_is_compared_while_a_graph_is_traced():
    """Comparing dictionaries splits a step's graph in some versions of torch. A trial before the run compares them."""
    like = torch.zeros(2)

    def formed(new):
        return in_form_of({"m": like}, {"m": new}, LocalTransform(), "apply")["m"]

    other = torch.zeros(3, dtype=torch.float64)
    with pytest.raises(ValueError, match="in the form that it was given"):
        formed(other)
    assert torch.compile(formed, backend="eager", fullgraph=True)(other) is other
