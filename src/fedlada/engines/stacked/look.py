"""Where a method looks, for all clients at once: one pass over memory before each gradient."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from fedlada.engines.stacked.compiling import compiled
from fedlada.methods.method import FederatedMethod
from fedlada.methods.state import Local, PerTransform, map_tensors

Write = Callable[[Local, Sequence[Tensor], Tensor], PerTransform]


@dataclass(frozen=True)
class Course:
    """How one look goes."""

    num_gradients: int
    """How many gradients it asks for, the last one not counted."""
    begins_at_params: bool


class Look:
    """The look of a method between the gradients that it asks for.

    A transform asks for gradients in the middle of its own function. That function is run again for each of them,
    with the gradients known by then; what it computes for nothing the compiler leaves out. A function that decides by
    numbers cannot be followed without them, and is run as it is.
    """

    def __init__(self, method: FederatedMethod, *, compiles: bool) -> None:
        self.method, self.compiles = method, compiles
        self.course: Course | None = None
        self.is_followed = True
        self.writes: list[Write] = []

    def __call__(
        self, local: Local, weights: Tensor, grads: Tensor, backward: Callable[[], Tensor]
    ) -> tuple[PerTransform, Tensor]:
        """Leave in `grads` the gradients where the method looks; the states after it, and the first losses.

        `weights` hold the parameters, and afterwards the point. `backward` computes `grads` there.
        """
        if self.course is None and self.is_followed:
            self._prepare(local)
        if self.course is None:
            return self._as_it_is(local, weights, grads, backward)
        states = local.states
        losses: list[Tensor] = []
        gradients: list[Tensor] = []
        for number, write in enumerate(self.writes):
            if number or not self.course.begins_at_params:
                states = write(local, gradients, weights)
            losses.append(backward())
            # The last of them is read before the next one is written in the same place.
            gradients.append(grads if number + 1 >= self.course.num_gradients else grads.clone())
        return states, losses[0]

    def _as_it_is(
        self, local: Local, weights: Tensor, grads: Tensor, backward: Callable[[], Tensor]
    ) -> tuple[PerTransform, Tensor]:
        losses: list[Tensor] = []

        def gradient_at(point: Tensor) -> Tensor:
            weights.copy_(point)
            losses.append(backward())
            return grads.to(point.dtype, copy=True)

        point, after = self.method.look(local, gradient_at)
        weights.copy_(point)
        losses.append(backward())
        return after.states, losses[0]

    def _prepare(self, local: Local) -> None:
        """Follow one look without numbers."""
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
        for _ in points:
            write = self._write
            self.writes.append(compiled(write, "the look") if self.compiles else write)

    @property
    def _write(self) -> Write:
        method = self.method

        def write(local: Local, gradients: Sequence[Tensor], weights: Tensor) -> PerTransform:
            points: list[Tensor] = []

            def gradient_at(point: Tensor) -> Tensor:
                points.append(point)
                if len(points) > len(gradients):
                    return torch.zeros_like(point)
                return gradients[len(points) - 1].to(point.dtype, copy=True)

            point, after = method.look(local, gradient_at)
            points.append(point)
            weights.copy_(points[len(gradients)])
            return after.states

        return write
