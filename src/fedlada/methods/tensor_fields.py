"""Tensors that the parts of a method hold as fields, such as a mask over the parameters.

An engine manages them as it manages shared and private state: it moves them to its device and dtype, and lays out
those of the model's size like the parameters.
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
    """The same part with `function` applied to each of its tensors; the part itself if it has none."""
    changed: Part = map_object(function, part) if has_tensors(held_by(part)) else part
    return changed


def suited(tensor: Tensor, like: Tensor) -> Tensor:
    """A copy of the tensor on the device of `like`, and in its dtype if it is floating-point."""
    return tensor.detach().to(like.device, like.dtype if tensor.is_floating_point() else None, copy=True)


def lengths(parts: Iterable[Combiner | LocalTransform | Personal | ServerOptimizer]) -> list[int]:
    """Lengths of the tensors that parts hold, longest first: one of them may be the model's size."""
    held = (tensor for part in parts for _, tensor in tensors_inside("", held_by(part)))
    return sorted({tensor.shape[-1] for tensor in held if tensor.ndim}, reverse=True)


def cut(tensor: Tensor, size: int, whole: int) -> Tensor:
    """The tensor cut to a model of `size` parameters, if it has the length `whole`."""
    return tensor[..., :size] if tensor.ndim and tensor.shape[-1] == whole else tensor
