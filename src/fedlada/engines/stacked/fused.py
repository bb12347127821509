"""A function of torch.func recorded as one graph of plain operations, which the compiler fuses into few kernels."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_map

from fedlada.engines.deterministic import deterministic_algorithms
from fedlada.engines.refusal import first_line
from fedlada.engines.stacked.compiling import fixed_choices
from fedlada.engines.stacked.kernels import by_client
from fedlada.engines.tracing import tracing

Result = tuple[dict[str, Tensor], Tensor]
"""Gradients by name, and losses."""

Function = Callable[..., Result]
"""From tensors whose first axis is the clients'."""

TOLERANCES = {torch.float64: 1e-8, torch.float32: 1e-2}
"""Relative error by precision; float32 may multiply in TF32. Lower precisions have 0.1."""


def traced(function: Function, *arguments: Any) -> Function:
    """The operations that the function runs on these arguments."""
    from torch.fx.experimental.proxy_tensor import make_fx  # takes long to import

    function(*arguments)  # what is made once and kept is not to be recorded
    with tracing():
        graph: Function = make_fx(lambda *given: function(*given))(*arguments)
    return graph


def fused(function: Function, example: Example, like: Any) -> Function:
    """The function compiled for arguments like these; itself, with a warning, where that fails."""
    try:
        with deterministic_algorithms():
            graph = traced(function, *example.arguments(like, 0))
            compiled: Function = torch.compile(graph, fullgraph=True, dynamic=False, options=fixed_choices())
            wrong = _wrong(compiled, function, example, like)
    except torch.OutOfMemoryError:
        wrong = "there is no memory left to check it"
    except Exception as error:  # whatever a model does that no graph can hold
        wrong = first_line(error)
    if wrong:
        warnings.warn(f"the gradient could not be compiled and runs as it is: {wrong}", stacklevel=2)
        return function

    def fast(*arguments: Any) -> Result:
        with deterministic_algorithms():  # another setting would have it compiled again
            return compiled(*arguments)

    return fast


def why_not_recorded(function: Function, example: Example, like: Any) -> str:
    """Why a graph of the function would not be the function; nothing if it is."""
    try:
        return _wrong(traced(function, *example.arguments(like, 0)), function, example, like)
    except torch.OutOfMemoryError:
        raise  # says nothing of the model
    except Exception as error:
        return first_line(error)


def _wrong(found: Function, expected: Function, example: Example, like: Any) -> str:
    """The values differ from those that the graph was recorded with: it may hold some of them."""
    arguments = example.arguments(like, 1)
    name = differs(found(*arguments), expected(*arguments))
    return name and f"{name} would differ"


@dataclass(frozen=True)
class Example:
    """Parameters and samples to record and to check a graph with, the same however far a run has come."""

    parameters: Mapping[str, Tensor]
    x: Any
    y: Tensor

    def arguments(self, like: Any, turn: int) -> Any:
        """Arguments of these shapes and this layout in memory, which compiled code depends on; other ones each turn."""
        weights, _, _, sample_weights, keys = like
        clients, batch = sample_weights.shape
        numbers = torch.arange(clients, device=self.y.device) + turn
        factors = 1 + 0.01 * (numbers % 7)
        rows = (torch.arange(clients * batch, device=self.y.device) + turn) % len(self.y)
        uneven = torch.arange(1 + turn, 1 + turn + batch, device=self.y.device) / (batch * (1 + turn + batch))
        values = (
            {name: self.parameters[name] * factors.view(-1, *[1] * (one.ndim - 1)) for name, one in weights.items()},
            *tree_map(lambda part: by_client(part[rows], clients), (self.x, self.y)),
            uneven.expand(clients, batch),
            None if keys is None else numbers + 1,
        )
        return tree_map(_laid_out_as, like, values)


def _laid_out_as(place: Any, value: Any) -> Any:
    if not isinstance(place, Tensor):
        return value
    return torch.empty_strided(place.shape, place.stride(), dtype=place.dtype, device=place.device).copy_(value)


def differs(found: Result, expected: Result) -> str:
    """The first result that differs by more than rounding, in the norm of its own; nothing if none does."""
    grads, losses = found
    right_grads, right_losses = expected
    largest = max(map(_norm, right_grads.values()))
    tolerance = max(TOLERANCES.get(one.dtype, 0.1) for one in right_grads.values())
    pairs = {"the loss": (losses, right_losses), **{name: (grads[name], one) for name, one in right_grads.items()}}
    for name, (one, right) in pairs.items():
        # A gradient that is zero but for rounding has no norm to compare with.
        if not _norm(one.double() - right.double()) <= tolerance * (_norm(right) + 0.01 * largest):
            return name
    return ""


def _norm(x: Tensor) -> float:
    return float(torch.linalg.vector_norm(x, dtype=torch.float64))
