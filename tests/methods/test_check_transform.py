"""A new transform that breaks its contract is one sentence before the first round, not nonsense in a run."""

from __future__ import annotations

import random
import re
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import pytest
import torch

from fedlada import FederatedMethod, LocalTransform, data, server, simulate
from fedlada.methods.state import tensors_inside
from fedlada.methods.testing.transforms import GRADIENTS, check_transform, one_round
from fedlada.training.resolve import resolve_method
from method_table import METHODS
from tasks import blobs, small_net


@dataclass(frozen=True)
class Mine(LocalTransform):
    """Right but for what `wrong` names."""

    wrong: str = ""

    def init_shared(self, params):
        return torch.zeros(3) if self.wrong == "shared" else {"c": params * 0, "rounds": torch.zeros(())}

    def init_kept(self, params):
        return {"k": 0.0} if self.wrong == "kept" else {"k": params * 0}

    def begin(self, shared, kept, like):
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

    def finish(self, local, done, step):
        if self.wrong == "no memory":
            return {"v": done.delta}
        return {"v": done.delta}, {"k": done.delta} if self.wrong != "other memory" else {}

    def merge(self, shared, mean, round):
        return {"c": mean["v"], "rounds": shared["rounds"] + 1} if self.wrong != "merge" else None


@pytest.mark.parametrize(
    ("wrong", "sentence"),
    [
        ("shared", "Mine must return a dict of tensors from init_shared, got a tensor of 1 axes"),
        ("kept", "Mine must return a dict of tensors from init_kept, but 'k' is of type float"),
        ("begin", "Mine must return a dict of tensors from begin, got NoneType"),
        ("one", "Mine must return two things from apply, the update and the state; got a tensor of 1 axes"),
        ("order", r"Mine must return from apply an update of the shape it was given, \[P\]; got dict"),
        ("sum", r"Mine must return from apply an update of the shape it was given, \[P\]; got a tensor of 0 axes"),
        ("forgets", "Mine must return from apply the names that it was given, count, m; got m"),
        ("all axes", r"Mine gives different results for stacked clients, \[C, P\], and for each alone: reduce over"),
        ("no memory", "Mine must return two things from finish, what is uploaded and the memory; got dict"),
        ("other memory", "Mine must return from finish the names that it was given, k; got nothing"),
        ("merge", "Mine must return a dict of tensors from merge, got NoneType"),
    ],
)
def test_what_is_wrong_is_named(wrong, sentence):
    check_transform(Mine())
    with pytest.raises(ValueError, match=sentence):
        check_transform(Mine(wrong))


class DoneFirst(Mine):
    def finish(self, done, local, step):
        return super().finish(local, done, step)


class WithoutDone(Mine):
    def finish(self, local, step):
        return super().finish(local, None, step)


class MeanFirst(Mine):
    def merge(self, mean, shared, round):
        return super().merge(shared, mean, round)


class OneMore(Mine):
    def begin(self, shared, kept, like, more):
        return {**super().begin(shared, kept, like), **more}


@pytest.mark.parametrize(
    ("kind", "sentence"),
    [
        (DoneFirst, "has finish(self, done, local, step), which is called as finish(self, local, done, step)"),
        (WithoutDone, "has finish(self, local, step), which is called as finish(self, local, done, step)"),
        (MeanFirst, "has merge(self, mean, shared, round), which is called as merge(self, shared, mean, round)"),
        (OneMore, "has begin(self, shared, kept, like, more), which is called as begin(self, shared, kept, like)"),
    ],
)
def test_parameters_in_another_order_are_named(kind, sentence):
    with pytest.raises(ValueError, match=re.escape(f"{kind.__name__} {sentence}")):
        check_transform(kind())


def test_parameters_may_have_other_names_and_defaults():
    class Named(Mine):
        def begin(self, sent, own, x, *, scale=1.0):
            return super().begin(sent, own, x * scale)

        def merge(self, *given, **more):
            return super().merge(*given)

    check_transform(Named())


def test_a_run_with_it_does_not_begin():
    method = FederatedMethod(name="mine", local=(Mine("all axes"),), server=server.SGD())
    x, y = torch.randn(40, 4), torch.randint(0, 2, (40,))
    with pytest.raises(ValueError, match="Mine gives different results for stacked clients"):
        simulate(lambda: torch.nn.Linear(4, 2), (x, y), method=method, partition=data.IID(num_clients=4), rounds=1)


@dataclass(frozen=True)
class Dropout(LocalTransform):
    """Two draws of it are often the same, so that the numbers do not tell that it is random."""

    source: str

    def apply(self, update, local, step):
        drawn = {"torch": torch.rand, "numpy": np.random.rand, "python": lambda _: random.random()}[self.source](1)
        return update * float(np.ravel(drawn)[0] > 0.05), local


@pytest.mark.parametrize("source", ["torch", "numpy", "python"])
def test_a_random_transform_is_let_through_and_draws_nothing_from_the_run(source):
    for seed in range(30):
        expected = draws(seed)
        assert draws(seed, lambda: check_transform(Dropout(source))) == expected


def draws(seed, between=lambda: None):
    """A number of each source, drawn after something else was done."""
    torch.manual_seed(seed)
    random.seed(seed)
    np.random.seed(seed)  # noqa: NPY002
    between()
    return torch.rand(1).item(), np.random.rand(), random.random()  # noqa: NPY002


@dataclass(frozen=True)
class InPlace(LocalTransform):
    """Works on what it is given, and writes down what it saw."""

    seen: list

    def apply(self, update, local, step):
        self.seen.append(update.norm().item())
        return update.mul_(1000), local


def test_what_a_transform_does_to_itself_or_its_arguments_is_undone():
    seen = []
    for _ in range(3):
        with pytest.raises(ValueError, match="InPlace changes update in place in apply: hooks return new tensors"):
            check_transform(InPlace(seen))
    assert seen == []
    with pytest.raises(
        ValueError, match="gives different results for stacked clients"
    ):  # the check's own numbers are as before
        check_transform(Mine("all axes"))


@dataclass(frozen=True)
class Writes(LocalTransform):
    """Writes to one of its arguments in one hook."""

    hook: str
    vector: str

    def write(self, hook, **arguments):
        if hook == self.hook:
            found = dict(one for name, value in arguments.items() for one in tensors_inside(name, value))
            found[self.vector].mul_(0.999)

    def init_shared(self, params):
        self.write("init_shared", params=params)
        return {"c": params * 0}  # a write to zeros changes no value, and is one

    def init_kept(self, params):
        self.write("init_kept", params=params)
        return {"k": params + 1}

    def begin(self, shared, kept, like):
        self.write("begin", shared=shared, kept=kept, like=like)
        return {"m": like * 0, "like": like}

    def look(self, point, local, step, gradient_at):
        self.write("look", point=point, local=local, step=step)
        return point + 0.1, local

    def apply(self, update, local, step):
        self.write("apply", update=update, local=local, step=step)
        return update, {**local, "m": update}

    def finish(self, local, done, step):
        self.write("finish", local=local, done=done, step=step)
        return {"v": done.delta + 0}, step.kept

    def merge(self, shared, mean, round):
        self.write("merge", shared=shared, mean=mean, round=round)
        return {"c": mean["v"]}


WRITES = [
    ("init_shared", "params"),
    ("init_kept", "params"),
    *(("begin", name) for name in ("shared.c", "kept.k", "like")),
    *(("look", name) for name in ("point", "local.m", "step.anchor", "step.shared.c", "step.kept.k")),
    *(("apply", name) for name in ("update", "local.m", "local.like", "step.params", "step.anchor", "step.shared.c")),
    *(("finish", name) for name in ("local.m", "done.delta", "step.params", "step.anchor", "step.kept.k")),
    *(("merge", name) for name in ("shared.c", "mean.v", "round.delta")),
]


@pytest.mark.parametrize(("hook", "vector"), WRITES)
def test_a_write_to_an_argument_is_named(hook, vector):
    check_transform(Writes("", ""))
    with pytest.raises(ValueError, match=f"Writes changes {vector} in place in {hook}: hooks return new tensors"):
        check_transform(Writes(hook, vector))


def test_another_vector_in_the_servers_dict_is_a_write_too():
    @dataclass(frozen=True)
    class SharedIsLocal(LocalTransform):
        def init_shared(self, params):
            return {"c": params * 0}

        def begin(self, shared, kept, like):
            return shared

        def apply(self, update, local, step):
            local["c"] = local["c"] + update
            return update, local

    with pytest.raises(ValueError, match=r"SharedIsLocal changes step\.shared\.c in place in apply"):
        check_transform(SharedIsLocal())


@dataclass(frozen=True)
class Rich(LocalTransform):
    """Everything that the engines allow: a list of two, a state for each layer, uploads of any size."""

    def begin(self, shared, kept, like):
        return {"layers": like.new_zeros(*like.shape[:-1], 5), "count": like[..., :1] * 0}

    def apply(self, update, local, step):
        return [update, {"layers": local["layers"] + 1, "count": local["count"] + 1}]

    def finish(self, local, done, step):
        return {"layers": local["layers"], "mean": done.delta.mean(dim=-1, keepdim=True) / done.num_steps}, step.kept


def test_what_engines_allow_is_allowed():
    check_transform(Rich())
    assert one_round(Rich(), torch.tensor(GRADIENTS))


def test_what_works_on_no_small_model_is_said():
    @dataclass(frozen=True)
    class ForSevenParameters(LocalTransform):
        def apply(self, update, local, step):
            return update.unflatten(-1, (7, 1)).flatten(-2), local

    with pytest.raises(ValueError, match="ForSevenParameters cannot take a step of 3 or 4096 parameters: RuntimeError"):
        check_transform(ForSevenParameters())


@dataclass(frozen=True)
class JointNorm(LocalTransform):
    """Clips the norm of all clients together, which matters only for gradients beyond the bound."""

    bound: float

    def apply(self, update, local, step):
        norm = update.norm()
        return (update * (self.bound / norm) if norm > self.bound else update), local


@dataclass(frozen=True)
class JointLargest(LocalTransform):
    """Keeps the largest tenth of all clients together; of three parameters that is none, which fails."""

    def apply(self, update, local, step):
        least = update.abs().flatten().topk(int(0.1 * update.numel())).values[-1]
        return torch.where(update.abs() >= least, update, 0.0), local


@pytest.mark.parametrize("mixes", [JointNorm(0.5), JointNorm(10.0), JointNorm(500.0), JointLargest()], ids=str)
def test_clients_that_are_mixed_only_sometimes_are_noticed(mixes):
    with pytest.raises(ValueError, match="gives different results for stacked clients"):
        check_transform(mixes)
    method = FederatedMethod(name="mixes", local=(mixes,), server=server.SGD())
    with pytest.raises(ValueError, match="gives different results for stacked clients"):
        simulate(small_net(), blobs(), method=method, lr=0.1, rounds=1)


@pytest.mark.parametrize("mask", [np.ones(67), [1.0] * 67], ids=["array", "list"])
def test_numbers_of_the_models_size_are_tensors(mask):
    @dataclass(frozen=True)
    class Mask(LocalTransform):
        mask: Any

        def apply(self, update, local, step):
            return update * self.mask, local

    method = FederatedMethod(name="masked", local=(Mask(mask),), server=server.SGD())
    with pytest.raises(ValueError, match=r"Mask\.mask is of type \w+, .* make it a tensor: torch\.as_tensor"):
        simulate(small_net(), blobs(), method=method, lr=0.1, rounds=1)


@pytest.mark.parametrize("name", METHODS)
def test_our_own_transforms_go_through_the_whole_trial(name):
    row = METHODS[name]
    for changes in ({}, *row.variants):
        for part in row.method(**changes).local:
            assert one_round(part, torch.tensor(GRADIENTS))  # nothing in it fails, which the trial would overlook


def test_a_method_that_is_resolved_again_is_tried_once():
    """As a node of a federation does for each message."""
    calls = []

    @dataclass(frozen=True, kw_only=True)
    class Counted(LocalTransform):
        is_wrong: bool = False

        def apply(self, update, local, step):
            calls.append(self)
            return (update.mean() if self.is_wrong else update), local

    method = FederatedMethod(name="counted", local=(Counted(),), server=server.SGD())
    resolve_method(method)
    num_calls = len(calls)
    resolve_method(method)
    assert len(calls) == num_calls > 0
    resolve_method(replace(method, local=(Counted(),)))  # another object
    assert len(calls) == 2 * num_calls
    wrong = replace(method, local=(Counted(is_wrong=True),))
    for _ in range(2):
        with pytest.raises(ValueError, match="Counted"):
            resolve_method(wrong)


@dataclass(frozen=True)
class Counts(LocalTransform):
    """State that no engine sees."""

    seen: dict = field(default_factory=dict)

    def apply(self, update, local, step):
        self.seen["calls"] = self.seen.get("calls", 0) + 1
        return update / self.seen["calls"], local


def test_state_in_a_field_is_refused():
    with pytest.raises(ValueError, match=r"Counts gives other results when it is called again: hold state in begin"):
        check_transform(Counts())


class BeginsWithOneNumber(LocalTransform):
    def begin(self, shared, kept, like):
        return {"t": torch.zeros(1)}

    def apply(self, update, local, step):
        return update / (1 + local["t"]), {"t": local["t"] + 1}


def test_a_state_of_one_number_for_all_stacked_clients_is_refused():
    said = r"must return from begin 't' with one row for each stacked client, .*like\[\.\.\., :1\].*; got \(1,\) for 2"
    with pytest.raises(ValueError, match=said):
        check_transform(BeginsWithOneNumber())


@dataclass(frozen=True)
class Moment(LocalTransform):
    """Divides by the root of a second moment that the server averages."""

    first: float = 1e-8
    uploads: Any = None
    positive = frozenset({"v"})

    def init_shared(self, params):
        return {"v": torch.full_like(params, self.first)}

    def begin(self, shared, kept, like):
        return {"v": shared["v"]}

    def apply(self, update, local, step):
        v = 0.9 * local["v"] + 0.1 * update * update
        return update / v.sqrt(), {"v": v}

    def finish(self, local, done, step):
        return {"v": local["v"] if self.uploads is None else self.uploads(done.delta)}, {}

    def merge(self, shared, mean, round):
        return mean


class NamedByAWord(Moment):
    positive = "second"


class Misspelt(Moment):
    positive = frozenset({"v", "second"})


@pytest.mark.parametrize(
    ("part", "said"),
    [
        (Moment(first=0.0), "declares positive = {'v'}, but init_shared returned 'v' with a zero or less"),
        (Moment(uploads=torch.clone), "declares positive = {'v'}, but finish returned 'v' with a zero or less"),
        (NamedByAWord(), "must declare positive as a set of names, frozenset({'second'})"),
        (Misspelt(), "declares positive = {'second'}, but no hook returned a vector of that name"),
        (
            Moment(uploads=torch.Tensor.long),
            "must return from finish 'v' in a floating-point dtype, as the server averages it: "
            "v.to(done.delta.dtype); got torch.int64",
        ),
    ],
)
def test_what_is_sent_is_as_declared_and_can_be_averaged(part, said):
    check_transform(Moment())
    with pytest.raises(ValueError, match=re.escape(f"{type(part).__name__} {said}")):
        check_transform(part)


def test_messages_name_the_declaration_that_is_missing():
    class Undeclared(Moment):
        positive = frozenset()

    settings = {"lr": 0.01, "rounds": 1, "messages": "lean"}
    for part, said in (
        (Moment(), None),
        (Undeclared(), "v may have negative numbers: use int8, or declare it positive"),
    ):
        method = FederatedMethod(name="own", local=(part,), server=server.SGD())
        if said is None:
            simulate(small_net(), blobs(), method=method, **settings)
            continue
        with pytest.raises(ValueError, match=said):
            simulate(small_net(), blobs(), method=method, **settings)
