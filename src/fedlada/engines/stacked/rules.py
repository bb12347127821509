"""Replacements for torch functions that a stacked form does not support, or only slowly."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F
from torch.overrides import TorchFunctionMode

from fedlada.engines.attention import attention
from fedlada.engines.opened import OPENED, opened
from fedlada.engines.stacked.not_stackable import NotStackable
from fedlada.engines.stacked.recurrent import KINDS, recurrent


class VmapRules(TorchFunctionMode):
    """Replaces them inside a function that vmap transforms; dropout is handled by the enclosing mode."""

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        if func in OPENED:
            with self:
                return opened(func)(*args, **(kwargs or {}))
        replaced = REPLACED.get(func)
        if replaced is None:
            return func(*args, **(kwargs or {}))
        return replaced(func, *args, **(kwargs or {}))


class ViewsOfAnyLayout(TorchFunctionMode):
    """Lets `view` copy the output of a stacked layer, which may lie channels-last where the model's own does not."""

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        if func not in (Tensor.view, Tensor.view_as):
            return func(*args, **(kwargs or {}))
        try:
            return func(*args, **(kwargs or {}))
        except RuntimeError:
            return func(args[0].contiguous(), *args[1:], **(kwargs or {}))


def _attention(
    func: Any, query: Tensor, key: Tensor, value: Tensor, attn_mask: Tensor | None = None, dropout_p: float = 0.0,
    is_causal: bool = False, **options: Any,
) -> Tensor:  # fmt: skip
    if dropout_p > 0:
        result: Tensor = func(query, key, value, attn_mask, dropout_p, is_causal, **options)
        return result
    return attention(query, key, value, attn_mask, is_causal, **options)


def _recurrent(kind: str, _func: Any, input: Tensor, hx: Any, params: Any, *rest: Any) -> tuple[Tensor, ...]:
    if not isinstance(rest[0], bool):
        _packed()
    return recurrent(kind, input, hx, params, *rest)


def _packed(*_: Any) -> Any:
    raise NotStackable("packed sequences have no stacked form: pad and mask")


REPLACED: dict[Any, Callable[..., Any]] = {
    F.scaled_dot_product_attention: _attention,
    torch._VF._pack_padded_sequence: _packed,
    **{getattr(torch, kind): partial(_recurrent, kind) for kind in KINDS},
}
