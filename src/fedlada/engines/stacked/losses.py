"""One loss per client of a stack, from a loss function of a single batch."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from fedlada.engines.classes import IGNORED, cross_entropy_last
from fedlada.engines.evaluation import Loss
from fedlada.engines.stacked.kernels import by_client

MOST_SCORES = 4_000_000
"""With more classes than this, not all of them are tried."""

ClientLosses = Callable[[Tensor, Tensor, Tensor], Tensor]
"""Outputs and targets `[C * B, ...]` and the weight of each sample `[C, B]` (0 for padding) to losses `[C]`."""


def client_losses(loss: Loss, output: Tensor, y: Tensor, classes: Tensor | None = None) -> tuple[ClientLosses, bool]:
    """The stacked form of a loss, and whether it can leave samples out, as tested on one batch of the data.

    A loss that is the mean over its samples can be weighted sample by sample, so that clients with short batches fit
    in the same stack. Any other is computed on whole batches, which must then have equal size.
    """
    if loss is F.cross_entropy or loss is cross_entropy_last:
        return _cross_entropy(classes_last=loss is cross_entropy_last), True
    if type(loss) is nn.CrossEntropyLoss and loss.weight is None and loss.reduction == "mean":
        return _cross_entropy(loss.label_smoothing, loss.ignore_index), True
    # torch's own losses are known; others are tested on a batch.
    is_mean = _is_plain_mean(loss) if isinstance(loss, nn.modules.loss._Loss) else _is_mean(loss, output, y, classes)
    return (_per_sample(loss), True) if is_mean else (_per_batch(loss), False)


def _is_plain_mean(loss: nn.modules.loss._Loss) -> bool:
    """Whether all samples have equal weight: no weights of classes or positions, no ignored targets."""
    weighted = any(getattr(loss, name, None) is not None for name in ("weight", "pos_weight"))
    return loss.reduction == "mean" and not weighted and getattr(loss, "ignore_index", IGNORED) == IGNORED


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


def _cross_entropy(smoothing: float = 0.0, ignored: int = IGNORED, classes_last: bool = False) -> ClientLosses:
    def losses(output: Tensor, y: Tensor, weights: Tensor) -> Tensor:
        options: dict[str, Any] = {"reduction": "none", "label_smoothing": smoothing, "ignore_index": ignored}
        if classes_last:
            each = F.cross_entropy(output.flatten(0, -2), y.flatten(), **options).view_as(y)
        else:
            each = F.cross_entropy(output, y, **options)
        counted = y != ignored if each.shape == y.shape else torch.ones_like(each, dtype=torch.bool)
        taken = (weights > 0).flatten().view(-1, *([1] * (each.ndim - 1))) & counted
        # The mean over positions that are not ignored, as in torch.
        sums = torch.where(taken, each, torch.zeros_like(each)).view(len(weights), -1).sum(dim=1)
        number = taken.view(len(weights), -1).sum(dim=1)
        # A batch with only ignored targets has no mean, as in torch; pure padding must not divide by zero.
        return sums / torch.where((weights > 0).any(dim=1), number, 1)

    return losses


def _per_sample(loss: Loss) -> ClientLosses:
    def one(output: Any, y: Any) -> Tensor:
        return loss(output[None], y[None])

    def losses(output: Tensor, y: Tensor, weights: Tensor) -> Tensor:
        each = torch.vmap(one)(output, y)
        # A weight of zero must also remove a loss that is infinite on padding.
        kept = torch.where(weights > 0, each.view_as(weights), torch.zeros_like(weights))
        return (kept * weights).sum(dim=1)

    return losses


def _per_batch(loss: Loss) -> ClientLosses:
    def losses(output: Tensor, y: Tensor, weights: Tensor) -> Tensor:
        clients = len(weights)
        return torch.vmap(loss)(by_client(output, clients), by_client(y, clients))

    return losses
