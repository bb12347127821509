"""One loss for each client of a stack, from a loss that knows batches alone."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from fedlada.engines.stacking.kernels import by_client
from fedlada.evaluation import Loss

ClientLosses = Callable[[Tensor, Tensor, Tensor], Tensor]
"""Outputs and targets `[C * B, ...]` and the weight of each sample `[C, B]` (0 for padding) to losses `[C]`."""


def client_losses(loss: Loss, output: Tensor, y: Tensor) -> tuple[ClientLosses, bool]:
    """The stacked form of a loss, and whether it can leave samples out; seen on one batch of the data.

    A loss that is the mean over its samples can be weighted sample by sample, so that clients with short batches fit
    beside others. Any other is computed on whole batches, which must then be of one size.
    """
    if loss is F.cross_entropy or (isinstance(loss, nn.CrossEntropyLoss) and _is_plain(loss)):
        smoothing = loss.label_smoothing if isinstance(loss, nn.CrossEntropyLoss) else 0.0
        return _cross_entropy(smoothing), True
    if _is_mean(loss, output, y):
        return _per_sample(loss), True
    return _per_batch(loss), False


def _is_plain(loss: nn.CrossEntropyLoss) -> bool:
    return loss.reduction == "mean" and loss.weight is None and loss.ignore_index == -100


def _is_mean(loss: Loss, output: Tensor, y: Tensor) -> bool:
    with torch.no_grad():
        whole = loss(output, y)
        try:
            single = torch.stack([loss(output[i : i + 1], y[i : i + 1]) for i in range(len(y))])
        except Exception:  # a loss that compares samples with each other may not take one alone
            return False
    return bool(torch.isclose(single.mean(), whole, rtol=1e-5, atol=1e-7)) and len(y) > 1


def _cross_entropy(smoothing: float) -> ClientLosses:
    def losses(output: Tensor, y: Tensor, weights: Tensor) -> Tensor:
        each = F.cross_entropy(output, y, reduction="none", label_smoothing=smoothing)
        return (each.reshape(len(each), -1).mean(dim=1).view_as(weights) * weights).sum(dim=1)

    return losses


def _per_sample(loss: Loss) -> ClientLosses:
    def one(output: Any, y: Any) -> Tensor:
        return loss(output[None], y[None])

    def losses(output: Tensor, y: Tensor, weights: Tensor) -> Tensor:
        each = torch.vmap(one)(output, y)
        # A weight of zero must also silence a loss that is infinite on padding.
        kept = torch.where(weights > 0, each.view_as(weights), torch.zeros_like(weights))
        return (kept * weights).sum(dim=1)

    return losses


def _per_batch(loss: Loss) -> ClientLosses:
    def losses(output: Tensor, y: Tensor, weights: Tensor) -> Tensor:
        clients = len(weights)
        return torch.vmap(loss)(by_client(output, clients), by_client(y, clients))

    return losses
