"""The points at which a method takes gradients, for all clients at once: one pass over memory before each gradient."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from fedlada.engines.stacked.compiling import compiled
from fedlada.methods.method import FederatedMethod
from fedlada.methods.state import Local, PerTransform, map_tensors

Write = Callable[[Local, Sequence[Tensor], Tensor, Tensor | None], None]


@dataclass(frozen=True)
class Course:
    """The plan of one look."""

    num_gradients: int
    """Number of gradients it needs, not counting the last."""
    begins_at_params: bool


class Look:
    """A method's `look`, split at the gradients that it asks for.

    A transform asks for gradients in the middle of its own function. That function is run again for each of them, with
    the gradients known so far, and the compiler removes what is not used. A function with control flow that depends on
    values cannot be traced, and is run as it is.
    """

    def __init__(self, method: FederatedMethod, *, compiles: bool, needs_copies: bool) -> None:
        self.method, self.compiles, self.needs_copies = method, compiles, needs_copies
        self.course: Course | None = None
        self.is_followed = True
        self.writes: list[Write] = []

    def __call__(
        self, local: Local, weights: Tensor, grads: Tensor, active: Tensor | None, backward: Callable[[], Tensor]
    ) -> Tensor:
        """Write the gradients at the method's point into `grads` and its states into `local`; returns the first losses.

        `weights` hold the parameters, and afterwards that point. `backward` computes `grads` at `weights`.
        """
        if self.course is None and self.is_followed:
            self._prepare(local)
        if self.course is None:
            return self._as_it_is(local, weights, grads, active, backward)
        losses: list[Tensor] = []
        gradients: list[Tensor] = []
        for number, write_point in enumerate(self.writes):
            if number or not self.course.begins_at_params:
                write_point(local, gradients, weights, active)
            losses.append(backward())
            # Each is read before the next one is written to the same buffer.
            gradients.append(grads if number + 1 >= self.course.num_gradients else grads.clone())
        return losses[0]

    def _as_it_is(
        self, local: Local, weights: Tensor, grads: Tensor, active: Tensor | None, backward: Callable[[], Tensor]
    ) -> Tensor:
        losses: list[Tensor] = []

        def gradient_at(point: Tensor) -> Tensor:
            weights.copy_(point)
            losses.append(backward())
            return grads.to(point.dtype, copy=True)

        point, after = self.method.look(local, gradient_at)
        weights.copy_(point)
        write(moved_states(local.states, after.states, active, needs_copies=self.needs_copies))
        losses.append(backward())
        return losses[0]

    def _prepare(self, local: Local) -> None:
        """Trace one look on tensors without data."""
        shapes = map_tensors(lambda tensor: tensor.to("meta"), local)
        points: list[Tensor] = []

        def gradient_at(point: Tensor) -> Tensor:
            points.append(point)
            return torch.empty_like(point)

        try:
            points.append(self.method.with_tensor_fields(lambda one: one.to("meta")).look(shapes, gradient_at)[0])
        except Exception:
            self.is_followed = False
            return
        self.course = Course(len(points) - 1, points[0] is shapes.params)
        for number in range(len(points)):
            write_point = self._write(is_last=number + 1 == len(points))
            self.writes.append(compiled(write_point, "the look") if self.compiles else write_point)

    def _write(self, *, is_last: bool) -> Write:
        method, needs_copies = self.method, self.needs_copies

        def write_point(local: Local, gradients: Sequence[Tensor], weights: Tensor, active: Tensor | None) -> None:
            points: list[Tensor] = []

            def gradient_at(point: Tensor) -> Tensor:
                points.append(point)
                if len(points) > len(gradients):
                    return torch.zeros_like(point)
                return gradients[len(points) - 1].to(point.dtype)

            point, after = method.look(local, gradient_at)
            points.append(point)
            weights.copy_(points[len(gradients)])
            if is_last:
                write(moved_states(local.states, after.states, active, needs_copies=needs_copies))

        return write_point


Moves = list[tuple[Tensor, Tensor]]
"""Buffers, and the values to write into them."""


def moved_states(old: PerTransform, new: PerTransform, active: Tensor | None, *, needs_copies: bool = False) -> Moves:
    """Pairs of an old state's buffer and its new value; clients that have finished keep their state.

    With `needs_copies` a new state may be a view of an old one or of the parameters, and is copied before those are
    overwritten.
    """
    pairs = [(state[name], fresh[name]) for state, fresh in zip(old, new, strict=True) for name in state]
    return [
        (place, (value.clone() if needs_copies else value) if active is None else torch.where(active, value, place))
        for place, value in pairs
        if value is not place
    ]


def write(moves: Moves) -> None:
    """Write all; the values may depend on any of the buffers."""
    for place, value in moves:
        place.copy_(value)
