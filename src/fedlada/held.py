"""Tensors that the parts of a method hold as fields, such as a mask over the parameters.

What transforms share and keep is in the engine's hands, and so are these: it puts them on its device in the model's
precision, and lays out those of the model's size as it lays out the parameters.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar

from torch import Tensor

from fedlada.state import map_inside, tensors_inside

if TYPE_CHECKING:
    from fedlada.local import LocalTransform
    from fedlada.server import ServerOptimizer

    Part = TypeVar("Part", LocalTransform, ServerOptimizer)


def holds_tensors(part: LocalTransform | ServerOptimizer) -> bool:
    """Whether any field has one."""
    return any(True for _ in tensors_inside("", _fields(part)))


def map_held(function: Callable[[Tensor], Tensor], part: Part) -> Part:
    """The same part with `function` applied to each tensor that it holds; itself where there is none."""
    if not holds_tensors(part):
        return part
    changed = copy.copy(part)
    vars(changed).update(map_inside(function, vars(part)))  # dataclasses are frozen, and others need not be any
    return changed


def _fields(part: LocalTransform | ServerOptimizer) -> dict[str, Any]:
    return getattr(part, "__dict__", {})  # one with slots holds what it likes, and looks after it


def suited(tensor: Tensor, like: Tensor) -> Tensor:
    """The tensor where the other one is, and in its precision if it has fractions at all."""
    return tensor.to(like.device, like.dtype if tensor.is_floating_point() else None)


def cut(part: Part, size: int) -> Part:
    """The same part for a model of so few parameters: the longest of what it holds is of the model's size."""
    longest = max((tensor.shape[-1] for _, tensor in tensors_inside("", _fields(part)) if tensor.ndim), default=0)
    return map_held(lambda one: (one[..., :size] if one.ndim and one.shape[-1] == longest else one).cpu(), part)
