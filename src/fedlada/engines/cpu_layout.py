"""Images with the channels last in memory, for models on x86-64 processors that pool.

There torch's kernels for max-pooling compare a vector of channels at once, and convolutions read and write that layout
as it is (`benchmarks/cpu_steps.py`). GroupNorm and its kin are slow in that layout: models with them keep theirs.
"""

from __future__ import annotations

import platform
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import BackwardCFunction
from torch.nn.modules.batchnorm import _NormBase
from torch.overrides import TorchFunctionMode

from fedlada.engines.checkpointing import is_checkpointed
from fedlada.engines.cpu_pool import ChannelsLastPool
from fedlada.engines.tracing import eagerly, is_compiled, is_plain
from fedlada.federation.randomness import the_same_randomness
from fedlada.models.call import call

Forward = Callable[[nn.Module, Any], Any]
"""Calls a model with its inputs."""

LOOKS = frozenset({"size", "dim", "__get__", "numel", "stride", "is_contiguous", "__len__"})
"""Names of functions that read the shape."""
KEEPS = {
    *("max_pool2d", "conv2d", "dropout", "dropout1d", "dropout2d", "feature_dropout"),
    *("relu", "relu_", "leaky_relu", "elu", "selu", "gelu", "silu", "hardswish", "softplus", "tanh", "sigmoid", "erf"),
    *("add", "mul", "div", "__add__", "__radd__", "__mul__", "__rmul__", "__truediv__", "square"),
}  # fmt: skip
"""Names of functions whose kernels read that layout as fast and give images back in it."""
ENDS = frozenset({"flatten", "reshape", "view"})
"""Names of functions after which there are no images; on this layout they copy."""


def with_channels_last(x: Tensor) -> Tensor:
    """A copy in that layout; strides tell it also where an image has one channel."""
    return torch.empty_like(x, memory_format=torch.channels_last).copy_(x)


class ChannelsLast(TorchFunctionMode):
    """Lets a model call `view` on its images, which torch refuses in that layout, and keeps gradients in it."""

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        if func is Tensor.view and _has_channels_last(args[0]):
            args = (args[0].contiguous(), *args[1:])
        output = func(*args, **(kwargs or {}))
        if (
            getattr(func, "__name__", "") == "max_pool2d"
            and _has_channels_last(output)
            and output.requires_grad
            and is_plain(output)
        ):
            output.register_hook(_in_this_layout)  # with a gradient in the usual one, torch copies images twice
        return output


def _in_this_layout(gradient: Tensor) -> Tensor:
    return gradient.contiguous(memory_format=torch.channels_last)


def forward_for(module: nn.Module, x: Any) -> Forward:
    """How to call a model with inputs such as these: `call`, or a faster way on a CPU.

    It is tried with two samples. The choice depends on the model, the dtype and the kind of processor alone, because
    kernels affect the last bits; a model that branches on values, or at random, is judged by one pass of fixed seed.
    """
    trains = torch.is_grad_enabled()
    is_on_cpu = all(one.device.type == "cpu" for one in module.parameters())
    if not is_on_cpu or is_compiled(module) or not (trains or _may_gain(module, x)):
        return call
    gains = _may_gain(module, x)
    few = x[:2] if isinstance(x, Tensor) else x
    trial = _Trial(with_channels_last(few) if gains else few)
    with the_same_randomness(), _buffers_restored(module), eagerly(module):
        try:
            trial.run(module)
        except Exception:  # it will be told in the usual layout, if it is the model's
            return call
    if gains and trial.pools and not trial.shows:
        return _call_with_channels_last
    return _call_with_pools if trains and trial.pools else call


def _may_gain(module: nn.Module, x: Any) -> bool:
    is_x86 = platform.machine().lower() in ("x86_64", "amd64")
    has_norms = any(isinstance(one, (nn.GroupNorm, nn.LayerNorm, _NormBase)) for one in module.modules())
    return is_x86 and isinstance(x, Tensor) and x.ndim == 4 and x.dtype == torch.float32 and not has_norms


@contextmanager
def _buffers_restored(module: nn.Module) -> Iterator[None]:
    kept = [(one, one.clone()) for one in module.buffers()]
    try:
        yield
    finally:
        with torch.no_grad():
            for one, before in kept:
                one.copy_(before)


def _call_with_channels_last(module: nn.Module, x: Any) -> Any:
    with ChannelsLast():
        return call(module, with_channels_last(x))


def _call_with_pools(module: nn.Module, x: Any) -> Any:
    with ChannelsLastPool():
        return call(module, x)


class _Trial(TorchFunctionMode):
    """Follows the images of a forward pass."""

    def __init__(self, x: Any) -> None:
        super().__init__()
        self.x = x
        self.pools = self.shows = False
        self.unread = {id(one): one for one in _tensors(x) if _has_channels_last(one)}
        """Images that no known function has read: an extension of torch may, or the caller."""
        self.ended: dict[int, Tensor] = {}
        """Images of which there is a copy that would be a view in the usual layout."""
        self.made: list[weakref.ref[Tensor]] = []

    def run(self, module: nn.Module) -> None:
        """Call the model; then `shows` tells whether something depends, or may depend, on the layout."""
        with ChannelsLast(), self:
            output = call(module, self.x)
        known = isinstance(output, (Tensor, tuple, list, dict))
        self.shows |= bool(self.unread) or not known or any(map(_has_channels_last, _tensors(output)))
        self.shows |= any(_is_by_python(one.grad_fn) for one in _tensors(output))
        self.ended.clear()
        del output
        self.shows |= any(one() is not None for one in self.made)  # the model keeps it, for its loss or a hook

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        name = getattr(func, "__name__", "")
        self.pools |= name == "max_pool2d"
        images = [one for one in _tensors((args, kwargs)) if _has_channels_last(one)]
        output = func(*args, **kwargs)
        made = [one for one in _tensors(output) if _has_channels_last(one)]
        if name in LOOKS:
            self.shows |= bool(made)  # such as `data`, by which images are written unseen
            return output
        for one in images:
            self.unread.pop(id(one), None)
            self.shows |= id(one) in self.ended or name not in KEEPS | ENDS or is_checkpointed()
        self.ended |= {id(one): one for one in images if name in ENDS}
        self.unread |= {id(one): one for one in made}
        self.made += [weakref.ref(one) for one in made]
        return output


def _is_by_python(last: Any) -> bool:
    """Whether a function of the user's, whose backward pass is not tried, is among those that lead to this one."""
    found, seen = [last], set()
    while found:
        one = found.pop()
        if one is None or one in seen:
            continue
        if isinstance(one, BackwardCFunction):
            return True
        seen.add(one)
        found += [before for before, _ in one.next_functions]
    return False


def _has_channels_last(x: Any) -> bool:
    return isinstance(x, Tensor) and x.ndim == 4 and not x.is_contiguous()


def _tensors(values: Any) -> Iterator[Tensor]:
    if isinstance(values, Tensor):
        yield values
    elif isinstance(values, (tuple, list)):
        for one in values:
            yield from _tensors(one)
    elif isinstance(values, dict):
        yield from _tensors(tuple(values.values()))
