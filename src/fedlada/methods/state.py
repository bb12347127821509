"""State and messages of a method: frozen dataclasses of tensors and of dicts of tensors.

P parameters, C clients: a vector is `[P]` (one client) or `[C, P]` (stacked clients). A tuple of dicts has one dict
for each transform of the method's chain, in its order.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from dataclasses import dataclass, fields, is_dataclass, replace
from typing import Any, TypeVar

from torch import Tensor

Vectors = dict[str, Tensor]
PerTransform = tuple[Vectors, ...]
Scalar = float | Tensor
"""A Python number or a 0-dim tensor; `[C, 1]` where clients differ."""
GradientAt = Callable[[Tensor], Tensor]
"""This step's stochastic gradient as a function of the point, which is shaped like the parameters."""


@dataclass(frozen=True)
class Broadcast:
    """The server's message to every client of a cohort: x^t and the vectors that transforms share."""

    params: Tensor
    shared: PerTransform


@dataclass(frozen=True)
class Server:
    """The server's state between rounds."""

    params: Tensor
    shared: PerTransform
    optimizer: Vectors

    @property
    def broadcast(self) -> Broadcast:
        """The server's message at the start of a round."""
        return Broadcast(self.params, self.shared)


@dataclass(frozen=True)
class Kept:
    """A client's private state between the rounds it takes part in; it is never sent."""

    memory: PerTransform


@dataclass(frozen=True)
class Local:
    """A client's state during local training."""

    params: Tensor
    anchor: Tensor
    lr: Scalar
    states: PerTransform
    shared: PerTransform
    kept: PerTransform


@dataclass(frozen=True)
class Upload:
    """A client's message to the server: `delta` = x_{i,0} - x_{i,K}, and a dict of extra vectors per transform."""

    delta: Tensor
    extra: PerTransform


@dataclass(frozen=True)
class Step:
    """A transform's view of the client at one local step."""

    params: Tensor
    anchor: Tensor
    shared: Vectors
    kept: Vectors


@dataclass(frozen=True)
class ClientRound:
    """One client's finished round, seen by a transform in `finish`."""

    delta: Tensor
    num_steps: Scalar
    lr: Scalar


@dataclass(frozen=True)
class Round:
    """The cohort's finished round on average, seen by a transform in `merge` and by the server optimizer."""

    delta: Tensor
    num_steps: Scalar
    lr: Scalar
    participation: float


State = TypeVar("State", Broadcast, Server, Kept, Local, Upload)


def map_tensors(function: Callable[[Tensor], Tensor], state: State) -> State:
    """The same state with `function` applied to each of its tensors."""
    return replace(state, **{field.name: map_inside(function, getattr(state, field.name)) for field in fields(state)})


def map_inside(function: Callable[[Tensor], Any], value: Any) -> Any:
    """The same value with `function` applied to each tensor inside its tuples, lists, dicts and dataclasses.

    A value without tensors is returned itself.
    """
    # Not a closure that calls itself: such a cycle would keep the function's vectors until a garbage collection.
    if isinstance(value, Tensor):
        return function(value)
    if not has_tensors(value):
        return value
    if isinstance(value, dict):
        return {name: map_inside(function, item) for name, item in value.items()}
    if isinstance(value, (tuple, list)):
        inside = [map_inside(function, item) for item in value]
        is_named = hasattr(value, "_fields")
        return type(value)(*inside) if is_named else inside if isinstance(value, list) else tuple(inside)
    return map_object(function, value)


def map_object(function: Callable[[Tensor], Any], value: Any) -> Any:
    """A copy of an object, frozen or not, with `function` applied to each tensor that it holds."""
    changed = copy.copy(value)
    for name, item in held_by(value).items():
        object.__setattr__(changed, name, map_inside(function, item))
    return changed


def held_by(value: object) -> dict[str, Any]:
    """The attributes of an object: a dataclass's fields, also with slots, and any others set on it."""
    own = [one.name for one in fields(value)] if is_dataclass(value) else []
    return {name: getattr(value, name) for name in own if hasattr(value, name)} | getattr(value, "__dict__", {})


def has_tensors(value: object) -> bool:
    """Whether the value has a tensor inside its tuples, lists, dicts and dataclasses."""
    return any(True for _ in tensors_inside("", value))


def named_tensors(state: Broadcast | Server | Kept | Local | Upload) -> Iterator[tuple[str, Tensor]]:
    """Each tensor of a state with a stable name such as `params`, `shared.1.direction` or `optimizer.m`."""
    for field in fields(state):
        yield from tensors_inside(field.name, getattr(state, field.name))


def tensors_inside(name: str, value: object) -> Iterator[tuple[str, Tensor]]:
    """Each tensor inside a value's tuples, lists, dicts and dataclasses, with its path."""
    if isinstance(value, Tensor):
        yield name, value
    elif isinstance(value, (tuple, list)):
        for index, item in enumerate(value):
            yield from tensors_inside(f"{name}.{index}", item)
    elif isinstance(value, dict):
        for key, item in value.items():
            yield from tensors_inside(f"{name}.{key}", item)
    elif is_dataclass(value) and not isinstance(value, type):
        for key, item in held_by(value).items():
            yield from tensors_inside(f"{name}.{key}", item)


def all_finite(state: Broadcast | Server | Kept | Local | Upload) -> bool:
    """Whether no tensor of the state holds a NaN or an infinity."""
    return all(is_finite(tensor) for _, tensor in named_tensors(state))


def is_finite(tensor: Tensor) -> bool:
    """Whether a tensor holds no NaN and no infinity."""
    # A sum is one pass, many times as fast on a CPU as a look at each element; a NaN or an infinity stays in it. Where
    # finite numbers overflow, the elements decide.
    return bool(tensor.sum().isfinite()) or bool(tensor.isfinite().all())


def num_bytes(state: Broadcast | Upload | Kept) -> int:
    """The size of all tensors of a message or state, uncompressed."""
    return sum(tensor.numel() * tensor.element_size() for _, tensor in named_tensors(state))
