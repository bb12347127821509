"""The default loss, chosen by the outputs and the targets."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fedlada.data.given import targets_of
from fedlada.data.samples import ArraySamples, Samples
from fedlada.engines.classes import binary_cross_entropy, class_axes, class_axis, cross_entropy_last, ignored_by
from fedlada.federation.randomness import the_same_randomness
from fedlada.models.call import has_own_loss, own_loss

ELEMENTWISE = (F.mse_loss, F.l1_loss, F.smooth_l1_loss, F.huber_loss)
AS_NUMBERS = "for a regression make y float, in the shape of the outputs"
WORDS: dict[Any, str] = {
    F.cross_entropy: "cross-entropy, because the targets are class indices",
    cross_entropy_last: "cross-entropy over the last axis, because the targets are class indices",
    binary_cross_entropy: "binary cross-entropy, because the targets are 0 or 1 and each has one output",
    F.mse_loss: "squared error, because the targets are floats",
    own_loss: "the one that the model returns",
}
"""Description of each default loss, with the reason for it."""


def default_loss(output: Any, y: Any, samples: Samples | None = None) -> Callable[[Any, Any], Tensor]:
    """The model's own; squared error for floats, cross-entropy for class indices, its binary form for 0 and 1."""
    if has_own_loss(output):
        return own_loss
    if not isinstance(y, Tensor):
        raise ValueError(f"there is no default loss for targets of type {type(y).__name__}: give loss=")
    if y.is_floating_point():
        return F.mse_loss
    if isinstance(output, Tensor) and _has_one_output_each(output, y):
        return _of_one_output(output, y, samples)
    check_classes(output, y, "targets")
    axes = class_axes(output, y)
    if len(axes) > 1:
        raise ValueError(
            f"outputs ({shape_of(output)}) do not determine the class axis: give loss=F.cross_entropy for "
            "the second, or a loss of your own"
        )
    return F.cross_entropy if axes in ([], [1]) else cross_entropy_last


def _has_one_output_each(output: Tensor, y: Tensor) -> bool:
    """Whether each integer target has one output: as many labels as outputs, or one output per sample or pixel."""
    return output.shape == y.shape or (
        output.ndim == y.ndim + 1 and output.shape[1] == 1 and output[:, 0].shape == y.shape
    )


def _of_one_output(output: Tensor, y: Tensor, samples: Samples | None) -> Callable[[Any, Any], Tensor]:
    labels = y.cpu().numpy() if samples is None else known_labels(samples)
    shapes = f"targets are whole numbers ({shape_of(y)}) and outputs have one number for each ({shape_of(output)})"
    if labels is None:
        raise ValueError(
            f"{shapes}: give loss=nn.BCEWithLogitsLoss() with float targets for labels of 0 and 1; {AS_NUMBERS}"
        )
    low, high = int(labels.min()), int(labels.max())
    if low < 0 or high > 1:
        raise ValueError(
            f"{shapes}, from {low} to {high}: {AS_NUMBERS}; for classes give the model one output for each class"
        )
    return binary_cross_entropy


def check_loss(loss: Any) -> None:
    """Refuse what is no function of outputs and targets."""
    if isinstance(loss, type):
        raise ValueError(f"loss is the class {loss.__name__}: give an instance, loss=nn.{loss.__name__}()")
    if isinstance(loss, (Tensor, np.ndarray)):
        raise ValueError("loss must be a function of outputs and targets, got an array: give data as a pair, (x, y)")
    if loss is not None and not callable(loss):
        raise ValueError(f"loss must be a function of outputs and targets, such as F.cross_entropy, got {loss!r}")


def check_classes(output: Any, y: Any, targets: str) -> None:
    """Refuse whole numbers with as many axes as the outputs but another shape, which cross-entropy does not take."""
    if not (isinstance(output, Tensor) and isinstance(y, Tensor)) or y.is_floating_point() or y.ndim != output.ndim:
        return
    if y.ndim < 2 or y.shape == output.shape:
        return
    shapes = f"outputs ({shape_of(output)}) and {targets} ({shape_of(y)}) do not fit"
    if y.shape[-1] == 1:
        how = "y.flatten(), or y.iloc[:, 0] of a frame" if y.ndim == 2 else "y[..., 0]"
        raise ValueError(f"{shapes}: for classes flatten y to shape {tuple(y.shape[:-1])}, {how}")
    if y.ndim > 2 and y.shape[1] == 1:
        raise ValueError(f"{shapes}: for classes leave the second axis of y out, y[:, 0]")
    raise ValueError(
        f"{shapes}: classes are one whole number for each sample, and labels of 0 and 1 need one output each, here "
        f"{y.shape[-1]}"
    )


def check_labels(loss: Any, output: Any, y: Any, samples: Samples, whose: str = "") -> int | None:
    """Refuse labels outside the classes of the outputs; the number of labels that count, where it is known."""
    if loss is binary_cross_entropy:
        labels = known_labels(samples)
        if labels is not None and (labels.min() < 0 or labels.max() > 1):
            raise ValueError(
                f"{whose}labels must be 0 or 1 for the binary cross-entropy, got {labels.min()}..{labels.max()}"
            )
        return None
    if loss not in (F.cross_entropy, cross_entropy_last) and type(loss) is not nn.CrossEntropyLoss:
        return None
    check_classes(output, y, f"{whose}targets")
    axis = class_axis(output, y)
    labels = known_labels(samples) if axis is not None else None
    if axis is None or labels is None:
        return None
    labels = labels[labels != ignored_by(loss)]
    num_classes = output.shape[axis]
    if labels.size and (labels.min() < 0 or labels.max() >= num_classes):
        raise ValueError(
            f"{whose}labels must be in 0..{num_classes - 1} for a model with {num_classes} outputs, got "
            f"{labels.min()}..{labels.max()}"
        )
    return int(labels.size)


def check_same_shape(loss: Any, output: Any, y: Any, targets: str, *, labels: Any = None) -> None:
    """Refuse shapes that an elementwise loss would broadcast: `[N, 1]` and `[N]` to `[N, N]`.

    `labels` are all targets, as far as known, if the loss is the default: they may be meant as labels or classes.
    """
    is_elementwise = loss in ELEMENTWISE or type(loss) in (nn.MSELoss, nn.L1Loss, nn.SmoothL1Loss, nn.HuberLoss)
    if not is_elementwise or not isinstance(y, Tensor) or (isinstance(output, Tensor) and output.shape == y.shape):
        return
    name = getattr(loss, "__name__", type(loss).__name__)
    way_out = "reshape y"
    if isinstance(output, Tensor) and y.ndim and output.shape == (*y.shape, 1):
        way_out = "make y (N, 1): y[:, None]" if y.ndim == 1 else "add an axis to y: y[..., None]"
        if labels is not None and np.isin(labels, (0, 1)).all():
            way_out = f"for labels of 0 and 1 make y whole numbers; for a regression {way_out}"
    elif labels is not None and isinstance(output, Tensor) and _may_be_classes(output, y, labels):
        way_out = "for classes make y whole numbers, as y.long() or y.astype(int) does; for a regression reshape y"
    raise ValueError(
        f"outputs ({shape_of(output)}) and {targets} ({shape_of(y)}) must have the same shape for {name}: {way_out}, "
        "or give loss="
    )


def _may_be_classes(output: Tensor, y: Tensor, labels: Any) -> bool:
    """Whether floats may be meant as class indices: whole numbers, one for each of several outputs."""
    if y.ndim + 1 != output.ndim or output.shape[1] < 2:
        return False
    return bool((labels == np.round(labels)).all() and labels.min() >= 0)


def broadcasts(loss: Any, output: Any, y: Any) -> bool:
    """Whether a loss broadcasts outputs such as `[N, 1]` beside `[N]`: reshaped to `[N]` they give another value."""
    if not (isinstance(output, Tensor) and isinstance(y, Tensor)) or output.shape == y.shape or len(y) < 2:
        return False
    if output.numel() != y.numel():
        return False
    different = torch.arange(y.numel(), device=y.device)  # equal ones would hide it
    if not y.is_floating_point():  # classes beyond those that there are would end a GPU's process
        different = different % (int(y.max().clamp(min=0)) + 1)
    different = different.to(y.dtype).reshape(y.shape)
    values = []
    for one in (output, output.reshape(y.shape)):
        try:
            with torch.no_grad(), the_same_randomness():
                values.append(loss(one, different))
            values[-1].isnan().all()  # of a GPU the error comes with the value
        except Exception:  # a loss that accepts one of the shapes alone does not broadcast it
            return False
    return not torch.allclose(values[0], values[1], equal_nan=True)


def known_labels(samples: Samples) -> np.ndarray[Any, Any] | None:
    """All integer labels, if they are available without reading every sample."""
    if isinstance(samples, ArraySamples):
        return samples.labels()
    labels = targets_of(getattr(samples, "dataset", None))
    return labels if labels is not None and labels.dtype.kind in "biu" else None


def labels_of(samples: Samples, y: Any) -> np.ndarray[Any, Any] | None:
    """All labels where they are known, else those of a batch."""
    known = known_labels(samples)
    return y.cpu().numpy() if known is None and isinstance(y, Tensor) else known


def shape_of(value: Any) -> str:
    """A value's type and shape as text."""
    if isinstance(value, Tensor):
        return f"{str(value.dtype).removeprefix('torch.')} of shape {tuple(value.shape)}"
    return type(value).__name__
