"""Checks of a transform's contract."""

from __future__ import annotations

import copy
import inspect
from contextlib import suppress
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor

from fedlada.methods.forms import other_form
from fedlada.methods.local import LocalTransform
from fedlada.methods.local.transform import HOOKS as METHODS_OF_A_TRANSFORM
from fedlada.methods.local.transform import declares
from fedlada.methods.random_state import randomness_restored
from fedlada.methods.state import (
    ClientRound,
    Round,
    Step,
    Vectors,
    tensors_inside,
)
from fedlada.methods.tensor_fields import cut, lengths, map_tensor_fields, suited
from fedlada.methods.testing.fields import changed_field, fields_of, refuse_generator
from fedlada.methods.testing.on_cpu import on_cpu

WIDTH = 3
GRADIENTS = (((0.3, -0.2, 0.1), (1.5, 0.7, -2.0)), ((-0.4, 0.9, 0.6), (0.1, -1.1, 0.8)))
"""Of two steps of two clients, for `WIDTH` parameters."""
START = (0.5, -1.0, 2.0)
"""The parameters."""
WIDE = 4096
"""Parameters for a transform that does not work on so few."""
SCALES = (1.0, 2.0**10, 2.0**-10)
"""Of the gradients: a transform may do nothing below a bound, or above it."""


HOOKS = {
    name: tuple(inspect.signature(getattr(LocalTransform, name)).parameters)[1:] for name in METHODS_OF_A_TRANSFORM
}
"""The calls of the contract, with the names of their arguments."""


class Trial(NamedTuple):
    """One round of one client, or of several stacked."""

    seen: list[Tensor]
    """The updates, what is uploaded and the new memory."""
    shared: Vectors
    """The merged state, of which all clients have the same."""
    kept: Vectors


class Wrong(Exception):
    """A violation of the transform's contract; any other error in a check is left to the run."""


def check_transform(part: LocalTransform) -> None:
    """Refuse a transform that violates its contract or its declarations.

    Call it in the tests of a transform; `simulate` calls it too. It takes two steps of two clients on a copy,
    separately and stacked, with gradients of several sizes, and leaves the random state as it was.
    """
    if problem := error_in_check(part):
        raise ValueError(f"{type(part).__name__} cannot take a step of {WIDTH} or {WIDE} parameters: {problem}")


def error_in_check(part: LocalTransform) -> str:
    """Check a transform; its own error if it cannot take a step of any small model, which the run will report."""
    if all(getattr(type(part), call) is getattr(LocalTransform, call) for call in ("apply", "look", "finish", "merge")):
        raise ValueError(f"{type(part).__name__} implements neither apply nor look: it would change nothing")
    _check_signatures(part)
    refuse_generator(part)
    with on_cpu():  # whatever the user's default is
        return _tried(part)


def _tried(part: LocalTransform) -> str:
    here = map_tensor_fields(partial(suited, like=gradients()), part)
    problem = ""
    held = lengths([part])  # what it holds may be of a model's size
    sizes = [(size, whole) for size in (WIDTH, WIDE) for whole in (size, *held)] + [(whole, whole) for whole in held]
    for size, whole in sizes:
        tried = map_tensor_fields(partial(cut, size=size, whole=whole), here)
        try:
            _compare(tried, gradients(size))
            for scale in SCALES[1:]:
                with suppress(ArithmeticError, ValueError, RuntimeError):  # a bound of its own
                    _compare(tried, scale * gradients(size))
        except Wrong as error:
            raise ValueError(f"{type(part).__name__} {error}") from None
        except Exception as error:
            problem = problem or f"{type(error).__name__}: {error}"
            continue
        return ""
    return problem


def _check_signatures(part: LocalTransform) -> None:
    """Refuse another number of parameters than the contract has, or its names at other places."""
    for call, wanted in HOOKS.items():
        try:
            own = inspect.signature(getattr(part, call))
        except (TypeError, ValueError):  # not every callable has one
            continue
        try:
            own.bind(*wanted)
            fits = all(wanted.index(name) == place for place, name in enumerate(own.parameters) if name in wanted)
        except TypeError:
            fits = False
        if not fits:
            raise ValueError(
                f"{type(part).__name__} has {call}({', '.join(['self', *own.parameters])}), which is called as "
                f"{call}({', '.join(['self', *wanted])})"
            )


def _compare(part: LocalTransform, given: Tensor) -> None:
    """Compare two clients run separately and stacked."""
    one, other = given[:, 0], given[:, 1]
    with randomness_restored() as drawn:
        tried = copy.deepcopy(part)
        first = one_round(tried, one)
        fields = fields_of(tried)
        again = one_round(tried, one)
        is_random = part.draws_random_numbers or drawn()
        if not is_random and not all(map(partial(agree, rtol=0, atol=0), first.seen, again.seen)):
            raise Wrong(
                "gives other results when it is called again: hold state in begin, init_kept or init_shared, not in "
                "its fields; if it draws random numbers, declare draws_random_numbers = True"
            )
        if changed := changed_field(fields, tried):
            raise Wrong(f"changes its field {changed!r}: hold state in begin, init_kept or init_shared")
        second = one_round(copy.deepcopy(part), other)
        stacked = one_round(copy.deepcopy(part), given)
        # States are often zeros at first, and show nothing.
        later = [
            one_round(copy.deepcopy(part), own, (first.shared, done.kept))
            for own, done in ((one, first), (other, second), (given, stacked))
        ]
        is_elementwise = declares(part, "elementwise")
        flipped = _reversed(part, given.shape[-1]) if is_elementwise else part
        backwards = one_round(flipped, one.flip(-1), flipped=True) if is_elementwise else first
    if is_random:
        return
    if is_elementwise and not all(map(agree, (_flipped(each, given.shape[-1]) for each in backwards.seen), first.seen)):
        raise Wrong("declares elementwise = True, but its result depends on the order of the parameters")
    for alone, beside, both in ((first, second, stacked), later):
        apart = [torch.stack(pair) for pair in zip(alone.seen, beside.seen, strict=True)]
        if not all(map(agree, both.seen, apart)):
            raise Wrong(
                "gives different results for stacked clients, [C, P], and for each alone: "
                "reduce over the last axis and keep it (dim=-1, keepdim=True)"
            )


def _reversed(part: LocalTransform, size: int) -> LocalTransform:
    """The same part for parameters in reverse order."""
    return map_tensor_fields(partial(_flipped, size=size), copy.deepcopy(part))


def _flipped(tensor: Tensor, size: int) -> Tensor:
    return tensor.flip(-1) if tensor.ndim and tensor.shape[-1] == size else tensor


def one_round(
    part: LocalTransform, gradients: Tensor, begun: tuple[Vectors, Vectors] | None = None, *, flipped: bool = False
) -> Trial:
    """Two steps of one client, [P], or of two stacked, [C, P], from a shared state and a memory, or from the first."""
    shape = gradients.shape[1:]
    clients = shape[:-1]
    start = _start(shape[-1])
    start = start.flip(-1) if flipped else start
    if begun is None:
        first_shared = _vectors("init_shared", _called(part, "init_shared", start.clone()))
        kept = _for_each(_vectors("init_kept", _called(part, "init_kept", start.clone())), clients)
    else:
        first_shared, kept = begun
    shared = _for_each(first_shared, clients)
    params, anchor = start.expand(shape).clone(), start.expand(shape).clone()
    local = _vectors("begin", _called(part, "begin", shared, kept, params.clone()))
    local_at_first = local
    # As the engines have them: one client's are numbers, those of stacked ones tensors.
    lr: Any = torch.tensor(0.1) if clients else 0.1
    num_steps: Any = torch.full((*clients, 1), float(len(gradients))) if clients else len(gradients)
    seen = []
    for gradient in gradients:
        step = Step(params, anchor, shared, kept)
        gradient_at = partial(_gradient_at, gradient)
        point, state = _two("look", _called(part, "look", params, local, step, gradient_at))
        if not isinstance(point, Tensor) or point.shape != shape:
            raise Wrong(f"must return from look a point of the shape it was given; got {_kind(point)}")
        local = _in_form("look", local, state, clients)
        update, state = _two("apply", _called(part, "apply", gradient_at(point), local, step))
        if not isinstance(update, Tensor) or update.shape != shape:
            wanted = "[C, P]" if clients else "[P]"
            raise Wrong(f"must return from apply an update of the shape it was given, {wanted}; got {_kind(update)}")
        if update.dtype != gradient.dtype:
            wanted = str(gradient.dtype)
            raise Wrong(f"must return from apply an update in the dtype it was given, {wanted}; got {update.dtype}")
        local = _in_form("apply", local, state, clients)
        params = params - lr * update
        seen.append(update.clone())
    for name, value in local_at_first.items():
        if value.shape[: len(clients)] != clients and not agree(value, local[name]):
            raise _without_rows(name, value, clients)
    done = ClientRound(anchor - params, num_steps, lr)
    extra, memory = _two("finish", _called(part, "finish", local, done, Step(params, anchor, shared, kept)))
    extra, memory = _vectors("finish", extra), _in_form("finish", kept, memory)
    for name, value in extra.items():
        if value.shape[: len(clients)] != clients:
            raise Wrong(
                f"must return from finish {name!r} with one row for each stacked client, [C, ...]; "
                f"got {tuple(value.shape)} for {len(gradients[0])} clients"
            )
        if not value.is_floating_point():
            raise Wrong(
                f"must return from finish {name!r} in a floating-point dtype, as the server averages it: "
                f"{name}.to(done.delta.dtype); got {value.dtype}"
            )
    _check_positive(part, local, {"init_shared": first_shared, "finish": extra})
    mean = {name: value.mean(dim=0) if clients else value for name, value in extra.items()}
    delta = done.delta.mean(dim=0) if clients else done.delta
    round = Round(delta, float(len(gradients)), 0.1, participation=0.5)
    merged = _in_form("merge", first_shared, _called(part, "merge", first_shared, mean, round))
    return Trial([*seen, *extra.values(), *(memory[name] for name in kept)], merged, memory)


def _called(part: LocalTransform, hook: str, *given: Any) -> Any:
    """The result of a hook, if it left all of its arguments as they were."""
    arguments = dict(zip(HOOKS[hook], given, strict=True))
    before = [(name, one, one._version, one.clone()) for name, one in _tensors(arguments)]
    result = getattr(part, hook)(*given)
    after = {name: one for name, one in _tensors(arguments) if not name.startswith("local.")}  # its own dict
    for name, tensor, version, value in before:
        is_same = torch.equal(tensor, value) or torch.allclose(tensor, value, rtol=0, atol=0, equal_nan=True)
        if tensor._version != version or not is_same or after.get(name, tensor) is not tensor:
            raise Wrong(f"changes {name} in place in {hook}: hooks return new tensors")
    return result


def _tensors(arguments: dict[str, Any]) -> list[tuple[str, Tensor]]:
    return [one for name, value in arguments.items() for one in tensors_inside(name, value)]


def _start(size: int) -> Tensor:
    return torch.tensor(START, device="cpu") if size == WIDTH else torch.linspace(-1, 2, size, device="cpu")


def gradients(size: int = WIDTH) -> Tensor:
    """Of two steps of two clients: [step, client, parameter]."""
    if size == WIDTH:
        return torch.tensor(GRADIENTS, dtype=torch.float32, device="cpu")
    generator = torch.Generator(device="cpu").manual_seed(0)
    drawn = torch.randn(2, 2, size, generator=generator, dtype=torch.float32, device="cpu")
    return drawn * torch.tensor([[0.5], [2.0]])


def _gradient_at(gradient: Tensor, point: Tensor) -> Tensor:
    return gradient * (1 + 0.1 * point)


def _for_each(vectors: Vectors, clients: torch.Size) -> Vectors:
    return {name: value.expand((*clients, *value.shape)).clone() for name, value in vectors.items()}


def _two(call: str, value: Any) -> tuple[Any, Any]:
    what = {"look": "the point and the state", "apply": "the update and the state"}.get(
        call, "what is uploaded and the memory"
    )
    if not isinstance(value, (tuple, list)) or len(value) != 2:
        raise Wrong(f"must return two things from {call}, {what}; got {_kind(value)}")
    return value[0], value[1]


def _vectors(call: str, value: Any) -> Vectors:
    """The value, if it is a dict of tensors."""
    if not isinstance(value, dict):
        raise Wrong(f"must return a dict of tensors from {call}, got {_kind(value)}")
    if others := [(name, one) for name, one in value.items() if not isinstance(one, Tensor)]:
        name, one = others[0]
        raise Wrong(f"must return a dict of tensors from {call}, but {name!r} is of type {_kind(one)}")
    return value


def _in_form(call: str, old: Vectors, value: Any, clients: tuple[int, ...] = ()) -> Vectors:
    """The value, if its vectors are like the old."""
    new = _vectors(call, value)
    if problem := other_form(call, old, new):
        for name, was in old.items():
            if name in new and new[name].shape != was.shape and was.shape[: len(clients)] != clients:
                raise _without_rows(name, was, clients)
        raise Wrong(problem)
    return new


def _check_positive(part: LocalTransform, local: Vectors, sent: dict[str, Vectors]) -> None:
    """Refuse vectors that are declared positive and are sent with zeros, or that there are not."""
    if isinstance(part.positive, str):
        raise Wrong(f"must declare positive as a set of names, frozenset({{{part.positive!r}}})")
    if unknown := sorted(set(part.positive).difference(local, *sent.values())):
        raise Wrong(f"declares positive = {{{unknown[0]!r}}}, but no hook returned a vector of that name")
    for hook, vectors in sent.items():
        for name in part.positive:
            if name in vectors and not bool((vectors[name] > 0).all()):
                raise Wrong(f"declares positive = {{{name!r}}}, but {hook} returned {name!r} with a zero or less")


def _without_rows(name: str, value: Tensor, clients: tuple[int, ...]) -> Wrong:
    return Wrong(
        f"must return from begin {name!r} with one row for each stacked client, as torch.zeros_like(like) and "
        f"torch.zeros_like(like[..., :1]) have; got {tuple(value.shape)} for {clients[0]} clients"
    )


def agree(one: Tensor, other: Tensor, rtol: float = 1e-4, atol: float = 1e-6) -> bool:
    """Whether two results are equal up to rounding."""
    if one.shape != other.shape or not one.is_floating_point():
        return torch.equal(one, other)
    return torch.allclose(one, other, rtol=rtol, atol=atol, equal_nan=True)


def _kind(value: Any) -> str:
    return f"a tensor of {value.ndim} axes" if isinstance(value, Tensor) else type(value).__name__
