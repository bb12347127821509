"""Logits and class indices per sample, sequence position or pixel; and binary labels."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

IGNORED = -100
"""The target that torch's cross-entropy ignores by default."""


def class_axes(output: Any, y: Any) -> list[int]:
    """Candidates for the class axis: the second, as in torch, the last, or none."""
    are_tensors = isinstance(output, Tensor) and isinstance(y, Tensor)
    if not are_tensors or y.is_floating_point() or not output.is_floating_point() or y.ndim == 0:
        return []
    shapes = {axis: (*output.shape[:axis], *output.shape[axis + 1 :]) for axis in (1, y.ndim)}
    return [axis for axis, shape in shapes.items() if output.ndim == y.ndim + 1 and shape == tuple(y.shape)]


def class_axis(output: Any, y: Any) -> int | None:
    """The class axis; None if outputs are not logits or targets are not class indices."""
    return next(iter(class_axes(output, y)), None)


def cross_entropy_last(output: Tensor, y: Tensor) -> Tensor:
    """Cross-entropy of scores `[N, T, V]` and targets `[N, T]`: the mean over all positions that are not ignored."""
    return F.cross_entropy(output.flatten(0, -2), y.flatten())


def binary_cross_entropy(output: Tensor, y: Tensor) -> Tensor:
    """Binary cross-entropy of one logit for each label that is 0 or 1; `[N, 1]` outputs fit `[N]` targets."""
    return F.binary_cross_entropy_with_logits(output.reshape(y.shape), y.to(output.dtype))


def is_binary(loss: Any) -> bool:
    """Whether a loss takes one logit per binary label."""
    known = (binary_cross_entropy, F.binary_cross_entropy_with_logits)
    return loss in known or isinstance(loss, nn.BCEWithLogitsLoss)


def ignored_by(loss: Any) -> int:
    """The target that a loss ignores."""
    return int(getattr(loss, "ignore_index", IGNORED))


def class_weights(loss: Any) -> Tensor | None:
    """The weights of the classes in the mean of a loss of torch's, if it has any."""
    is_mean = isinstance(loss, (nn.CrossEntropyLoss, nn.NLLLoss)) and loss.reduction == "mean"
    return loss.weight if is_mean else None


def hits(output: Tensor, y: Tensor, axis: int, ignored: int = IGNORED) -> tuple[Tensor, Tensor]:
    """Number of correct predictions, and of targets that count."""
    counted = y != ignored
    return ((output.argmax(dim=axis) == y) & counted).sum(), counted.sum()


def binary_hits(output: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    """Number of binary labels that match their logit's sign, and of all labels."""
    correct = ((output.reshape(y.shape) > 0) == (y > 0.5)).sum()
    return correct, torch.full_like(correct, y.numel())


def exact_match(output: Tensor, y: Tensor) -> float:
    """The share of samples whose labels are all correct, for multi-label targets; a metric for `simulate`."""
    right = (output.reshape(y.shape) > 0) == (y > 0.5)
    return float(right.flatten(1).all(dim=1).double().mean())


def perplexity(output: Tensor, y: Tensor, ignore_index: int = IGNORED) -> float:
    """The exponential of the mean cross-entropy over all positions that are not ignored; a metric for `simulate`."""
    axis = class_axis(output, y)
    if axis is None:
        raise ValueError(f"perplexity needs logits and class indices, got {tuple(output.shape)} and {tuple(y.shape)}")
    scores = output.movedim(axis, -1).flatten(0, -2)
    return float(torch.exp(F.cross_entropy(scores.double(), y.flatten(), ignore_index=ignore_index)))
