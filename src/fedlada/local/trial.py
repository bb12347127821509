"""A transform on trial before any round: what it returns, and whether clients can be stacked."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from fedlada.local.transform import LocalTransform
from fedlada.state import Round, Run, Step, Vectors

START = torch.tensor([0.5, -1.0, 2.0])
GRADIENTS = torch.tensor([[[0.3, -0.2, 0.1], [1.5, 0.7, -2.0]], [[-0.4, 0.9, 0.6], [0.1, -1.1, 0.8]]])
"""Of two steps of two clients."""


class Wrong(Exception):
    """What is to be said of the transform; any other error on trial is left to the run, where it has its place."""


def check_transform(part: LocalTransform) -> None:
    """Refuse a transform that breaks its contract, in one sentence: an engine would fail later, or compute nonsense."""
    whose = type(part).__name__
    try:
        with torch.random.fork_rng(devices=[]):  # what it draws here is no part of a run
            first, again, second = (one_round(part, whose, GRADIENTS[:, client]) for client in (0, 0, 1))
            stacked = one_round(part, whose, GRADIENTS)
        is_random = any(not torch.equal(*pair) for pair in zip(first, again, strict=True))
        apart = [torch.stack(pair) for pair in zip(first, second, strict=True)]
        if not is_random and not all(map(_agree, stacked, apart)):
            raise Wrong(
                f"{whose} treats clients that are stacked, [C, P], otherwise than each alone: "
                "reduce over the last axis and keep it (dim=-1, keepdim=True)"
            )
    except Wrong as error:
        raise ValueError(str(error)) from None
    except Exception:
        return


def one_round(part: LocalTransform, whose: str, gradients: Tensor) -> list[Tensor]:
    """Two steps of one client, or of two stacked; the updates and what is uploaded."""
    shape = gradients.shape[1:]
    first_shared = _vectors(f"{whose}.init_shared", part.init_shared(START), shape[-1:])
    shared = {name: value.expand(*shape[:-1], *value.shape) for name, value in first_shared.items()}
    first_kept = _vectors(f"{whose}.init_kept", part.init_kept(START), shape[-1:])
    kept = {name: value.expand(*shape[:-1], *value.shape) for name, value in first_kept.items()}
    params = anchor = START.expand(shape)
    local = _vectors(f"{whose}.begin", part.begin(shared, params), shape)
    seen = []
    for gradient in gradients:
        answer = _pair(
            f"{whose}.apply",
            "the update and the state",
            part.apply(gradient, local, Step(params, anchor, shared, kept)),
        )
        update = answer[0]
        if not isinstance(update, Tensor) or update.shape != shape:
            raise Wrong(
                f"{whose}.apply must return an update of the shape {list(shape)}, as it was given; got {_kind(update)}"
            )
        local = _vectors(f"{whose}.apply", answer[1], shape, names=local)
        params = params - 0.1 * update
        seen.append(update)
    run = Run(anchor - params, len(gradients), 0.1)
    answer = _pair(
        f"{whose}.finish",
        "what is uploaded and the memory",
        part.finish(local, run, Step(params, anchor, shared, kept)),
    )
    extra = _vectors(f"{whose}.finish", answer[0], shape)
    _vectors(f"{whose}.finish", answer[1], shape, names=kept)
    mean = {name: value.reshape(-1, value.shape[-1]).mean(dim=0) for name, value in extra.items()}
    delta = run.delta.reshape(-1, shape[-1]).mean(dim=0)
    merged = part.merge(first_shared, mean, Round(delta, len(gradients), 0.1, participation=0.5))
    _vectors(f"{whose}.merge", merged, shape[-1:], names=first_shared)
    return [*seen, *extra.values()]


def _pair(call: str, what: str, value: Any) -> tuple[Any, Any]:
    if not isinstance(value, tuple) or len(value) != 2:
        raise Wrong(f"{call} must return two things, {what}; got {_kind(value)}")
    return value


def _vectors(call: str, value: Any, shape: torch.Size, names: Vectors | None = None) -> Vectors:
    """The value, if it is a dict of tensors of that shape, and of these names."""
    if not isinstance(value, dict) or not all(isinstance(one, Tensor) for one in value.values()):
        raise Wrong(f"{call} must return a dict of tensors, got {_kind(value)}")
    if names is not None and set(value) != set(names):
        wanted = ", ".join(sorted(names)) or "nothing"
        raise Wrong(f"{call} must return the names it was given, {wanted}; got {', '.join(sorted(value)) or 'nothing'}")
    for name, one in value.items():
        if one.shape not in (shape, (*shape[:-1], 1)):
            raise Wrong(f"{call} must return tensors of the shape {list(shape)}; {name} has {list(one.shape)}")
    return value


def _agree(one: Tensor, other: Tensor) -> bool:
    return one.shape == other.shape and torch.allclose(one, other, rtol=1e-4, atol=1e-6, equal_nan=True)


def _kind(value: Any) -> str:
    return f"a tensor of the shape {list(value.shape)}" if isinstance(value, Tensor) else type(value).__name__
