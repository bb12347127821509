"""A look at model, loss and data before the first round, so that what does not fit is said at once."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fedlada.data.samples import ArraySamples, Samples
from fedlada.engines.classes import IGNORED, class_axes, class_axis, cross_entropy_last, ignored_by
from fedlada.engines.evaluation import Loss
from fedlada.models.call import call, has_own_loss, own_loss
from fedlada.models.flat import FlatModel


def default_loss(output: Any, y: Any) -> Loss:
    """The model's own, or cross-entropy where the targets are whole numbers, squared error where they are not."""
    if has_own_loss(output):
        return own_loss
    if not isinstance(y, Tensor):
        raise ValueError(f"there is no default loss for targets of type {type(y).__name__}: give loss=")
    if y.is_floating_point():
        return F.mse_loss
    axes = class_axes(output, y)
    if len(axes) > 1:
        raise ValueError(
            f"outputs ({_shape(output)}) do not say which axis is that of the classes: give loss=F.cross_entropy for "
            "the second, or a loss of your own"
        )
    return F.cross_entropy if axes in ([], [1]) else cross_entropy_last


def check_fit(model: FlatModel, samples: Samples, loss: Loss | None, what: str) -> Loss:
    """Run one small batch through model and loss, in training mode; returns the loss to use."""
    module = model.module
    x, y = samples.batch(np.arange(min(2, len(samples))))
    before = {name: buffer.clone() for name, buffer in module.named_buffers()}
    model.train()
    device = next(module.parameters()).device
    with torch.no_grad(), torch.random.fork_rng(devices=[device] if device.type == "cuda" else []):
        try:
            output = call(module, x)
        except Exception as error:
            raise ValueError(f"the model cannot take a batch of the {what} data ({_shape(x)}): {error}") from error
        chosen = loss or default_loss(output, y)
        if chosen in (F.cross_entropy, cross_entropy_last, F.mse_loss) or isinstance(
            chosen, (nn.CrossEntropyLoss, nn.MSELoss)
        ):
            _check_default_loss(output, y, samples, what, ignored_by(chosen))
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


def _check_default_loss(output: Any, y: Tensor, samples: Samples, what: str, ignored: int = IGNORED) -> None:
    if y.is_floating_point():
        if not isinstance(output, Tensor) or output.shape != y.shape:
            raise ValueError(
                f"outputs ({_shape(output)}) and {what} targets ({_shape(y)}) must have the same shape for the "
                "squared error: reshape y, or give loss="
            )
        return
    axis = class_axis(output, y)
    labels = _known_labels(samples) if axis is not None else None
    if axis is None or labels is None:
        return
    labels = labels[labels != ignored] if y.ndim > 1 else labels
    if not labels.size:
        raise ValueError(f"all {what} targets are ignored")
    low, high, num_classes = int(labels.min()), int(labels.max()), output.shape[axis]
    if low < 0 or high >= num_classes:
        raise ValueError(
            f"{what} labels must be in 0..{num_classes - 1} for a model with {num_classes} outputs, got {low}..{high}"
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
