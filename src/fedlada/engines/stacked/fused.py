"""A function of torch.func recorded as one graph of plain operations, which the compiler fuses into few kernels."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves, tree_map

from fedlada.engines.stacked.compiling import sums_in_one_order
from fedlada.engines.tracing import tracing

Function = Callable[..., tuple[dict[str, Tensor], Tensor]]
"""From tensors whose first axis is the clients' to gradients by name and losses."""


def fused(function: Function, *arguments: Any) -> Function:
    """The function compiled for arguments of these shapes; the function itself where that is not possible or wrong."""
    others = tree_map(_reversed, arguments)
    try:
        graph = traced(function, *arguments)
        fast: Function = torch.compile(graph, fullgraph=True, dynamic=False, options=sums_in_one_order())
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # the compiler's own affairs
            is_right = _close(fast(*others), function(*others))
    except torch.OutOfMemoryError:
        raise
    except Exception:  # whatever a model does that no graph can hold
        return function
    return fast if is_right else function


def traced(function: Function, *arguments: Any) -> Function:
    """The operations that the function runs on these arguments."""
    from torch.fx.experimental.proxy_tensor import make_fx  # takes long to import

    with tracing():
        graph: Function = make_fx(lambda *given: function(*given))(*arguments)
    return graph


def _reversed(part: Any) -> Any:
    """Other values of the same shape: a graph may hold values of the arguments that it was recorded with."""
    return part.flip(0) if isinstance(part, Tensor) else part


def _close(found: Any, expected: Any) -> bool:
    """Equal to the rounding of the precision, tensor by tensor, in the norm."""
    pairs = list(zip(tree_leaves(found), tree_leaves(expected), strict=True))
    largest = max(float(right.double().norm()) for _, right in pairs)
    return all(
        float((left.double() - right.double()).norm()) <= _tolerance(right.dtype) * largest for left, right in pairs
    )


def _tolerance(dtype: torch.dtype) -> float:
    return {torch.float64: 1e-8, torch.float32: 1e-2}.get(dtype, 0.1)
