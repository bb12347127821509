"""torch's own Python functions, run so that a `TorchFunctionMode` sees the calls inside them."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from types import FunctionType
from typing import Any

from torch.nn import functional as F

OPENED: frozenset[Any] = frozenset(
    {
        F.multi_head_attention_forward,
        F.dropout,
        F.dropout1d,
        F.dropout2d,
        F.dropout3d,
        F.alpha_dropout,
        F.feature_alpha_dropout,
    }
)
"""Functions with dropout or attention inside."""


@cache
def opened(function: FunctionType) -> Callable[..., Any]:
    """The function without its own mode dispatch, which would recurse; calls inside it are still dispatched."""
    unasked = {"has_torch_function": _no, "has_torch_function_unary": _no, "has_torch_function_variadic": _no}
    twin = FunctionType(function.__code__, function.__globals__ | unasked, function.__name__, function.__defaults__)
    twin.__kwdefaults__ = function.__kwdefaults__
    return twin


def _no(*_: object) -> bool:
    return False
