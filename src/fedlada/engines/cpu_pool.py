"""Max-pooling on a CPU with the channels last in memory: the same bits as torch's, in less time.

torch's kernel for contiguous images compares one number at a time, its kernel for images with the channels last a
vector of channels.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F
from torch.overrides import TorchFunctionMode

from fedlada.engines.checkpointing import is_checkpointed
from fedlada.engines.tracing import is_plain

SIZES = (2, 3)
"""Sizes of a window that gain; larger ones, and strides that skip pixels, were slower."""
FEWEST_CHANNELS, FEWEST_NUMBERS = 16, 2**16
"""Below, copying into the other layout costs as much as it saves."""
ARGUMENTS: dict[str, Any] = {
    "input": None,
    "kernel_size": None,
    "stride": None,
    "padding": 0,
    "dilation": 1,
    "ceil_mode": False,
    "return_indices": False,
}
"""The arguments of `max_pool2d` in their order, with torch's defaults."""


class ChannelsLastPool(TorchFunctionMode):
    """Replaces `max_pool2d`, in modules and functions, where it pays."""

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        if func is not F.max_pool2d and func is not torch.max_pool2d:
            return func(*args, **kwargs)
        given = {**dict(zip(ARGUMENTS, args, strict=False)), **kwargs}
        window = _window(given) if len(args) + len(kwargs) == len(given) and given.keys() <= ARGUMENTS.keys() else None
        if window is None or not _pays(given.get("input")):
            return func(*args, **kwargs)
        return _Pooled.apply(given["input"], *window)  # type: ignore[no-untyped-call]


def _window(given: dict[str, Any]) -> tuple[Any, ...] | None:
    """The settings of a pool, if they are of a kind that gains and written as most are."""
    _, kernel_size, stride, padding, dilation, ceil_mode, return_indices = (ARGUMENTS | given).values()
    size, steps, margin = _pair(kernel_size), _pair(kernel_size if stride is None else stride), _pair(padding)
    is_usual = size and steps and margin and _pair(dilation) == (1, 1) and ceil_mode is False and not return_indices
    if not is_usual or any(one not in SIZES or not 0 < step <= one for one, step in zip(size, steps, strict=True)):
        return None
    return size, steps, margin, (1, 1), False


def _pair(value: Any) -> tuple[int, ...]:
    """A setting for both axes; nothing if it is anything else than whole numbers."""
    both = (value, value) if type(value) is int else value
    is_pair = isinstance(both, (tuple, list)) and len(both) == 2 and all(type(one) is int for one in both)
    return tuple(both) if is_pair else ()


def _pays(x: Any) -> bool:
    return (
        is_plain(x)
        and x.requires_grad
        and x.device.type == "cpu"
        and x.dtype == torch.float32
        and x.ndim == 4
        and x.shape[1] >= FEWEST_CHANNELS
        and x.numel() >= FEWEST_NUMBERS
        and x.is_contiguous()
        and torch.is_grad_enabled()
        and not is_checkpointed()
    )


class _Pooled(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, *window: Any) -> Tensor:
        last = x.contiguous(memory_format=torch.channels_last)
        # A copy in any case: both layouts may have the same strides, and what follows looks at these.
        both: tuple[Tensor, Tensor] = torch.ops.aten.max_pool2d_with_indices(last, *window)
        values, places = (one.clone(memory_format=torch.contiguous_format) for one in both)
        ctx.save_for_backward(x, places)
        ctx.save_for_forward(places)
        ctx.window = window
        return values

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Any:
        x, places = ctx.saved_tensors
        own = torch.ops.aten.max_pool2d_with_indices_backward(grad, x, *ctx.window, places)
        return own, *(None for _ in ctx.window)

    @staticmethod
    def jvp(ctx: Any, tangent: Tensor, *_: Any) -> Any:
        (places,) = ctx.saved_tensors
        return tangent.flatten(2).gather(2, places.flatten(2)).view(places.shape)
