"""One loss per client of a stack, from a loss function of a single batch."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from fedlada.engines.classes import IGNORED, cross_entropy_last
from fedlada.engines.evaluation import Loss
from fedlada.engines.stacked.kernels import by_client

MOST_SCORES = 4_000_000
"""With more scores than this, not all classes and targets are tried."""
CHUNK = 256
"""Targets that are tried together."""

ClientLosses = Callable[[Tensor, Tensor, Tensor], Tensor]
"""Outputs and targets `[C * B, ...]` and the weight of each sample `[C, B]` (0 for padding) to losses `[C]`."""


def client_losses(
    loss: Loss, output: Tensor, y: Tensor, classes: Tensor | None = None, targets: Callable[[], Tensor] | None = None
) -> tuple[ClientLosses, bool]:
    """The stacked form of a loss, and whether it can leave samples out, as tested on one batch and on many targets.

    A loss that is the mean over its samples can be weighted sample by sample, so that clients with short batches fit
    in the same stack. Any other is computed on whole batches, which must then have equal size.
    """
    if loss is F.cross_entropy or loss is cross_entropy_last:
        return _cross_entropy(classes_last=loss is cross_entropy_last), True
    if type(loss) is nn.CrossEntropyLoss and loss.reduction == "mean":
        return _cross_entropy(loss.label_smoothing, loss.ignore_index, weight=loss.weight), True
    if type(loss) is nn.NLLLoss and loss.reduction == "mean":
        return _mean_of_counted(F.nll_loss, loss.ignore_index, loss.weight), True
    # torch's own losses are known, not their subclasses; others are tested.
    is_mean = _is_plain_mean(loss) or (
        _is_mean(loss, output, y, classes) and (targets is None or _is_mean_of_all(loss, output, targets()))
    )
    return (_per_sample(loss), True) if is_mean else (_per_batch(loss), False)


def _is_plain_mean(loss: Loss) -> bool:
    """Whether it is a loss of torch's in which all samples have equal weight, without ignored targets."""
    if not isinstance(loss, nn.modules.loss._Loss) or type(loss).__module__ != nn.modules.loss.__name__:
        return False
    weighted = any(getattr(loss, name, None) is not None for name in ("weight", "pos_weight", "ignore_index"))
    return loss.reduction == "mean" and not weighted


def _is_mean(loss: Loss, output: Tensor, y: Tensor, classes: Tensor | None) -> bool:
    """Whether it is the mean over these samples, and over samples of all classes, which may have different weights."""
    if not _is_mean_over(loss, output, y):
        return False
    if classes is None or len(classes) < 2 or output.ndim != 2 or y.ndim != 1:
        return True
    some = classes[: max(2, MOST_SCORES // output.shape[1])]
    generator = torch.Generator("cpu").manual_seed(0)
    scores = torch.randn(len(some), output.shape[1], generator=generator, device="cpu")
    return _is_mean_over(loss, scores.to(output), some)


def _is_mean_over(loss: Loss, output: Tensor, y: Tensor) -> bool:
    with torch.no_grad():
        whole = loss(output, y)
        try:
            single = torch.stack([loss(output[i : i + 1], y[i : i + 1]) for i in range(len(y))])
        except Exception:  # a loss that compares samples with each other may not take one alone
            return False
    return bool(torch.isclose(single.mean(), whole, rtol=1e-5, atol=1e-7)) and len(y) > 1


def _is_mean_of_all(loss: Loss, output: Tensor, targets: Tensor) -> bool:
    """Whether it is the mean over samples with any of these targets: few of them may be masked, or weigh more."""
    for y in torch.split(targets, CHUNK):
        outputs = output[torch.arange(len(y), device=output.device) % len(output)]
        try:
            with torch.no_grad():
                whole, each = loss(outputs, y), torch.vmap(partial(_of_one, loss))(outputs, y)
        except Exception:
            return False
        if not torch.isclose(each.mean(), whole, rtol=1e-5, atol=1e-7):
            return False
    return True


def _cross_entropy(
    smoothing: float = 0.0, ignored: int = IGNORED, classes_last: bool = False, weight: Tensor | None = None
) -> ClientLosses:
    def each_of(output: Tensor, y: Tensor, **options: Any) -> Tensor:
        options["label_smoothing"] = smoothing
        if classes_last:
            return F.cross_entropy(output.flatten(0, -2), y.flatten(), **options).view_as(y)
        return F.cross_entropy(output, y, **options)

    return _mean_of_counted(each_of, ignored, weight)


def _mean_of_counted(each_of: Callable[..., Tensor], ignored: int, weight: Tensor | None) -> ClientLosses:
    """The mean over positions that are not ignored, by the weights of their classes, as in torch."""

    def losses(output: Tensor, y: Tensor, weights: Tensor) -> Tensor:
        by_class = None if weight is None else weight.to(output)
        each = each_of(output, y, weight=by_class, reduction="none", ignore_index=ignored)
        is_class = each.shape == y.shape
        counted = y != ignored if is_class else torch.ones_like(each, dtype=torch.bool)
        taken = (weights > 0).flatten().view(-1, *([1] * (each.ndim - 1))) & counted
        sums = torch.where(taken, each, torch.zeros_like(each)).view(len(weights), -1).sum(dim=1)
        number = taken.view(len(weights), -1).sum(dim=1)
        if by_class is not None and is_class:
            shares = torch.where(taken, by_class[torch.where(counted, y, 0)], torch.zeros_like(each))
            number = shares.view(len(weights), -1).sum(dim=1)
        # A batch with only ignored targets has no mean, as in torch; pure padding must not divide by zero.
        return sums / torch.where((weights > 0).any(dim=1), number, 1)

    return losses


def _of_one(loss: Loss, output: Tensor, y: Tensor) -> Tensor:
    return loss(output[None], y[None])


def _per_sample(loss: Loss) -> ClientLosses:
    def losses(output: Tensor, y: Tensor, weights: Tensor) -> Tensor:
        each = torch.vmap(partial(_of_one, loss))(output, y)
        # A weight of zero must also remove a loss that is infinite on padding.
        kept = torch.where(weights > 0, each.view_as(weights), torch.zeros_like(weights))
        return (kept * weights).sum(dim=1)

    return losses


def _per_batch(loss: Loss) -> ClientLosses:
    def losses(output: Tensor, y: Tensor, weights: Tensor) -> Tensor:
        clients = len(weights)
        return torch.vmap(loss)(by_client(output, clients), by_client(y, clients))

    return losses
