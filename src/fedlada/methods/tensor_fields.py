"""Tensors that the parts of a method hold as fields, such as a mask over the parameters.

What transforms share and keep is in the engine's hands, and so are these: it puts them on its device in the model's
precision, and lays out those of the model's size as it lays out the parameters.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, TypeVar

from torch import Tensor

from fedlada.methods.state import has_tensors, held_by, map_object, tensors_inside

if TYPE_CHECKING:
    from fedlada.methods.combine import Combiner
    from fedlada.methods.local import LocalTransform
    from fedlada.methods.personal import Personal
    from fedlada.methods.server import ServerOptimizer

    Part = TypeVar("Part", Combiner, LocalTransform, Personal, ServerOptimizer)


def map_tensor_fields(function: Callable[[Tensor], Tensor], part: Part) -> Part:
    """The same part with `function` applied to each tensor that it holds; itself where there is none."""
    changed: Part = map_object(function, part) if has_tensors(held_by(part)) else part
    return changed


def suited(tensor: Tensor, like: Tensor) -> Tensor:
    """A copy of the tensor where the other one is, and in its precision if it has fractions at all."""
    return tensor.detach().to(like.device, like.dtype if tensor.is_floating_point() else None, copy=True)


def lengths(parts: Iterable[Combiner | LocalTransform | Personal | ServerOptimizer]) -> list[int]:
    """Of what the parts hold, the longest first: one of them may be the model's size."""
    held = (tensor for part in parts for _, tensor in tensors_inside("", held_by(part)))
    return sorted({tensor.shape[-1] for tensor in held if tensor.ndim}, reverse=True)


def cut(tensor: Tensor, size: int, whole: int) -> Tensor:
    """The tensor for a model of `size` parameters, if it is one for a model of `whole`."""
    return tensor[..., :size] if tensor.ndim and tensor.shape[-1] == whole else tensor
