"""The operations that a transform runs, by which an engine knows what a short trial may not show.

A transform may begin to use positions or means after some rounds or steps. Both branches of `torch.where` are computed
in every step, so that the operations of one step are those of all.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from fedlada.methods.local import LocalTransform
from fedlada.methods.state import Step


def _names(text: str) -> frozenset[str]:
    return frozenset(text.split())


PLAIN = _names(
    "alias clone copy_ detach detach_ _to_copy lift_fresh lift_fresh_copy expand fill_ zero_ "
    "empty empty_like full full_like new_empty new_full new_ones new_zeros ones ones_like "
    "zeros zeros_like"
)
"""Besides elementwise ones: they treat all numbers alike, however many there are."""
REDUCTIONS = _names(
    "all amax amin aminmax any count_nonzero dot kthvalue linalg_vector_norm logsumexp max mean median min nansum "
    "norm prod std std_mean sum var var_mean vdot"
)
"""They do not depend on the order, but may on the number."""
SHAPES = _names("_unsafe_view cat permute repeat reshape select slice squeeze stack transpose unsqueeze view")
"""They do not depend on the order if the last axis stays whole."""


STEPS = ("look", "apply", "finish")
"""The hooks that get vectors as they lie in an engine."""
CLIENT = ("begin", *STEPS)
"""The hooks that a client calls."""
READS = _names("__array__ __dlpack__ __repr__ __str__ data_ptr numpy tolist untyped_storage")
"""Calls of a tensor that bring its numbers to Python without an operation of torch's."""


class Blended(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Gives a mixture of both branches of `torch.where`."""

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        if func is torch.ops.aten.where.self and args[1].is_floating_point():
            return 0.75 * args[1] + 0.5 * args[2]
        return func(*args, **(kwargs or {}))


class Operations(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Names of the operations on vectors of some size that depend on their order, and that may on their number.

    Numbers that are read in Python count as both.
    """

    def __init__(self, size: int) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.size = size
        self.notes_reads_alone = False
        self.by_position: list[str] = []
        self.by_number: list[str] = []
        self.own: dict[int, Tensor] = {}
        """Vectors that a client has of its own, and what was computed with them, by their id."""
        self.reads_own = False
        """Whether Python read a number of these, which no stack of clients has."""
        self.reads = Reads(self)

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        result = func(*args, **(kwargs or {}))
        is_own = self._is_own((args, kwargs))
        if is_own:
            self.add_own(result)
        if _is_read(func, args):
            self.note_read(is_own)
        if self.notes_reads_alone:
            return result
        given, made = self._wide((args, kwargs)), self._wide(result)
        name = func.overloadpacket.__name__
        if not (given or made) or torch.Tag.pointwise in func.tags or name in PLAIN:
            return result
        self.by_number.append(name)
        keeps_axis = name in SHAPES and all(one.shape[-1:] == (self.size,) for one in _tensors((args, kwargs, result)))
        if name not in REDUCTIONS and not keeps_axis:
            self.by_position.append(f"torch's {name}")
        return result

    def add_own(self, values: Any) -> None:
        """Note vectors that differ between clients."""
        self.own.update((id(one), one) for one in _tensors(values))

    def _is_own(self, values: Any) -> bool:
        return any(id(one) in self.own for one in _tensors(values))

    def note_read(self, is_own: bool) -> None:
        """A branch of Python may take any way in a later round."""
        self.reads_own = self.reads_own or is_own
        self.by_position.append("numbers in Python")
        self.by_number.append("numbers in Python")

    def _wide(self, values: Any) -> list[Tensor]:
        return [one for one in _tensors(values) if one.shape[-1:] == (self.size,)]


class Reads(TorchFunctionMode):
    """Tells the operations of every number that is read in Python."""

    def __init__(self, operations: Operations) -> None:
        super().__init__()
        self.operations = operations

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        if getattr(func, "__name__", "") in READS:
            self.operations.note_read(self.operations._is_own((args, kwargs)))
        return func(*args, **(kwargs or {}))


def _is_read(func: Any, args: tuple[Any, ...]) -> bool:
    """Whether Python sees numbers, or a shape that depends on them: nothing shows what it makes of them."""
    if func.overloadpacket is torch.ops.aten.index:
        return any(one.dtype in (torch.bool, torch.uint8) for one in _tensors(args[1]))
    return torch.Tag.data_dependent_output in func.tags or torch.Tag.dynamic_output_shape in func.tags


def _own_of(hook: str, arguments: Sequence[Any]) -> list[Any]:
    """The arguments of a hook that differ between clients: all but x^t and what the server has sent."""
    if hook == "begin":
        return [arguments[1]]
    found: list[Any] = []
    for one in arguments:
        found += [one.params, one.kept] if isinstance(one, Step) else [getattr(one, "delta", one)]
    return found


def _tensors(values: Any) -> list[Tensor]:
    return [one for one in tree_leaves(values) if isinstance(one, Tensor)]


def recorded(part: LocalTransform, operations: Operations, hooks: Sequence[str]) -> LocalTransform:
    """A copy of the transform whose hooks note their operations, and all that a client calls what they read."""
    kind = type(part)

    def noted(hook: str) -> Callable[..., Any]:
        def call(self: LocalTransform, *arguments: Any) -> Any:
            operations.notes_reads_alone = hook not in hooks
            operations.add_own(_own_of(hook, arguments))
            with operations.reads, operations:
                return getattr(kind, hook)(self, *arguments)

        return call

    made = copy.copy(part)
    object.__setattr__(made, "__class__", type(kind.__name__, (kind,), {hook: noted(hook) for hook in CLIENT}))
    return made
