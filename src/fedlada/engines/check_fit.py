"""A look at model, loss and data before the first round, so that what does not fit is said at once."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fedlada.data.samples import ArraySamples, Samples
from fedlada.engines.evaluation import Loss, are_classes
from fedlada.models.flat import FlatModel


def default_loss(y: Any) -> Loss:
    """Cross-entropy where the targets are whole numbers, squared error where they are not."""
    if not isinstance(y, Tensor):
        raise ValueError(f"there is no default loss for targets of type {type(y).__name__}: give loss=")
    return F.mse_loss if y.is_floating_point() else F.cross_entropy


def check_fit(model: FlatModel, samples: Samples, loss: Loss | None, what: str) -> Loss:
    """Run one small batch through model and loss, in training mode; returns the loss to use."""
    module = model.module
    x, y = samples.batch(np.arange(min(2, len(samples))))
    chosen = loss or default_loss(y)
    before = {name: buffer.clone() for name, buffer in module.named_buffers()}
    model.train()
    device = next(module.parameters()).device
    with torch.no_grad(), torch.random.fork_rng(devices=[device] if device.type == "cuda" else []):
        try:
            output = module(x)
        except Exception as error:
            raise ValueError(f"the model cannot take a batch of the {what} data ({_shape(x)}): {error}") from error
        if chosen in (F.cross_entropy, F.mse_loss) or isinstance(chosen, (nn.CrossEntropyLoss, nn.MSELoss)):
            _check_default_loss(output, y, samples, what)
        try:
            value = chosen(output, y)
        except Exception as error:
            raise ValueError(
                f"the loss cannot compare outputs ({_shape(output)}) with {what} targets ({_shape(y)}): {error}"
            ) from error
    if not isinstance(value, Tensor) or value.ndim != 0:
        raise ValueError(f"the loss must give one number for a batch, got {_shape(value)}")
    _check_buffers(module, before)
    return chosen


def _check_default_loss(output: Any, y: Tensor, samples: Samples, what: str) -> None:
    if y.is_floating_point():
        if not isinstance(output, Tensor) or output.shape != y.shape:
            raise ValueError(
                f"outputs ({_shape(output)}) and {what} targets ({_shape(y)}) must have the same shape for the "
                "squared error: reshape y, or give loss="
            )
        return
    labels = _known_labels(samples) if are_classes(output, y) else None
    if labels is not None:
        low, high = int(labels.min()), int(labels.max())
        if low < 0 or high >= output.shape[1]:
            raise ValueError(
                f"{what} labels must be in 0..{output.shape[1] - 1} for a model with {output.shape[1]} outputs, "
                f"got {low}..{high}"
            )


def _known_labels(samples: Samples) -> np.ndarray[Any, Any] | None:
    """All labels, where they can be had without reading every sample."""
    if isinstance(samples, ArraySamples):
        return samples.labels()
    dataset = getattr(samples, "dataset", None)
    targets = getattr(dataset, "targets", None)
    if targets is None or len(targets) != len(samples) or getattr(dataset, "target_transform", None) is not None:
        return None  # a transform gives others
    labels = np.asarray(targets)
    return labels if np.issubdtype(labels.dtype, np.integer) else None


def _check_buffers(module: nn.Module, before: dict[str, Tensor]) -> None:
    for name, buffer in module.named_buffers():
        if name not in before or not torch.equal(buffer, before[name]):
            raise ValueError(
                f"the forward pass changes the buffer {name!r}, and no server averages buffers: make it a parameter, "
                "or convert BatchNorm with fedlada.models.group_norm(model)"
            )


def _shape(value: Any) -> str:
    if isinstance(value, Tensor):
        return f"{str(value.dtype).removeprefix('torch.')} of shape {tuple(value.shape)}"
    return type(value).__name__
