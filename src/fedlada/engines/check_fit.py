"""Checks of model, loss and data before the first round, so that mismatches are reported at once."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fedlada.data.samples import Samples
from fedlada.engines import processes
from fedlada.engines.classes import binary_cross_entropy
from fedlada.engines.default_loss import (
    broadcasts,
    check_labels,
    check_loss,
    check_same_shape,
    default_loss,
    known_labels,
    labels_of,
    shape_of,
)
from fedlada.engines.evaluation import Loss
from fedlada.engines.refusal import refused
from fedlada.engines.untrained import Untrained
from fedlada.federation.randomness import Ints, bits, permutation
from fedlada.models.call import call, only_logits
from fedlada.models.flat import FlatModel

TRAINING = "training"
TRIED = (2, 32, 256)
"""Batch sizes on which a non-zero gradient is sought."""
MOST_NAMED = 5


def check_fit(model: FlatModel, samples: Samples, loss: Loss | None, what: str) -> Loss:
    """Run one small batch through model and loss, in training mode; returns the loss to use.

    On training data the gradient is checked too: a model that would never be trained is refused.
    """
    check_loss(loss)
    module = model.module
    untrained = Untrained(module)
    model.train()
    with torch.set_grad_enabled(what == TRAINING), _own_randomness(module):
        chosen, value = _tried(module, samples, np.arange(min(TRIED[0], len(samples))), loss, what)
        if what == TRAINING:
            _check_parameters(model, chosen, value)
            _check_gradient(model, samples, chosen, value)
            if processes.is_first():
                _say_doubts(chosen, loss is None, module, samples)
    _check_memory(model)
    untrained.check(thoroughly=True)
    return chosen


def _check_memory(model: FlatModel) -> None:
    """Refuse a model that computes with other memory than its parameters' own: that would never be trained."""
    pairs = zip(model.parameters.items(), model.places, strict=True)
    moved = [name for (name, one), place in pairs if one.numel() and one.data_ptr() != place.data_ptr()]
    if moved:
        raise ValueError(
            f"the model replaces the memory of {', '.join(moved[:MOST_NAMED])} in its forward pass, and would not be "
            "trained there: write into it, as in weight.data.copy_(...)"
        )


def _own_randomness(module: nn.Module) -> Any:
    device = next(module.parameters()).device
    return torch.random.fork_rng(devices=[device] if device.type == "cuda" else [])


def _tried(module: nn.Module, samples: Samples, rows: Ints, loss: Loss | None, what: str) -> tuple[Loss, Tensor]:
    """The loss to use, and its value on these samples."""
    x, y = samples.batch(rows)
    try:
        output = call(module, x)
    except Exception as error:
        raise refused(module, x, f"{what} data", error) from error
    chosen = loss or default_loss(output, y, samples)
    if check_labels(chosen, output, y, samples, f"{what} ") == 0:
        raise ValueError(f"all {what} targets are ignored")
    check_same_shape(chosen, output, y, f"{what} targets", labels=None if loss else labels_of(samples, y))
    writes = y._version if isinstance(y, Tensor) else 0
    try:
        value = chosen(output, y)
    except Exception as error:
        raise ValueError(
            f"the loss cannot compare outputs ({shape_of(output)}) with {what} targets ({shape_of(y)}): {error}"
            f"{_way_out(chosen, output, y) or (loss and only_logits(module, x)) or ''}"
        ) from error
    if not isinstance(value, Tensor) or value.ndim != 0:
        raise ValueError(f"the loss must give one number for a batch, got {shape_of(value)}")
    if isinstance(y, Tensor) and y._version != writes:
        raise ValueError("the loss writes to its targets, which may be read again: write to a copy, y.clone()")
    return chosen, value


def _check_parameters(model: FlatModel, loss: Loss, value: Tensor) -> None:
    """Refuse a loss that computes with the user's model, of which a copy is trained; warn of parameters of its own."""
    used = _leaves(value)
    if wrong := [name for name, one in model.given.named_parameters() if one.requires_grad and id(one) in used]:
        raise ValueError(
            f"the loss computes with {wrong[0]!r} of the model that was given, and a copy of it is trained: return "
            "from forward what the loss needs"
        )
    own = [name for name, one in loss.named_parameters() if id(one) in used] if isinstance(loss, nn.Module) else []
    if own and processes.is_first():
        warnings.warn(
            f"the loss has parameters of its own ({', '.join(own[:MOST_NAMED])}), which are not trained: make them "
            "part of the model",
            stacklevel=2,
        )


def _leaves(value: Tensor) -> set[int]:
    """The identities of the tensors that would get a gradient."""
    waiting, seen = [value.grad_fn], set[Any]()
    while waiting:
        node = waiting.pop()
        if node is not None and node not in seen:
            seen.add(node)
            waiting.extend(following for following, _ in node.next_functions)
    return {id(node.variable) for node in seen if hasattr(node, "variable")}


def _way_out(loss: Loss, output: Any, y: Any) -> str:
    """The end of an error message, if a small change to the targets is enough."""
    if not isinstance(y, Tensor) or not isinstance(output, Tensor) or y.is_floating_point():
        return ""
    try:
        loss(output, y.to(output.dtype))
    except Exception:
        return ""
    return "; it takes float targets: make y float"


def _check_gradient(model: FlatModel, samples: Samples, loss: Loss, value: Tensor) -> None:
    """Refuse a model without any gradient; warn about parameters that are never used."""
    gradients = _gradients(model, value)
    unused = [name for name, one in zip(model.parameters, gradients, strict=True) if one is None]
    if unused and len(unused) < len(gradients) and processes.is_first():
        others = f" and {len(unused) - MOST_NAMED} more" if len(unused) > MOST_NAMED else ""
        warnings.warn(
            f"the loss of a training batch does not depend on {', '.join(unused[:MOST_NAMED])}{others}: they are sent "
            "and not trained; freeze them with requires_grad_(False), or leave them out",
            stacklevel=2,
        )
    # One batch may have a zero gradient: dead units, or only ignored targets. Others are tried, from all over the
    # data.
    for size in TRIED[1:]:
        if any(one is not None and bool(one.ne(0).any()) for one in gradients):
            return
        rows = np.sort(permutation(bits(0, "gradient"), len(samples))[:size])
        gradients = _gradients(model, _tried(model.module, samples, rows, loss, TRAINING)[1])
    if not any(one is not None and bool(one.ne(0).any()) for one in gradients):
        raise ValueError(
            f"the gradient of the loss is zero for every parameter, on {min(TRIED[-1], len(samples))} samples: nothing "
            "would be trained; look for argmax, round, detach or a saturated layer in forward and loss, and for other "
            "initial weights"
        )


def _gradients(model: FlatModel, value: Tensor) -> list[Tensor | None]:
    if not value.requires_grad:
        raise ValueError(
            "the loss of a training batch has no gradient: nothing would be trained; look for torch.no_grad, "
            "detach and .data in the model's forward and in the loss"
        )
    try:
        return model.gradients_of(value)  # as in training: some models work with `backward` alone
    except torch.OutOfMemoryError:
        raise
    except Exception as error:
        raise ValueError(f"the gradient of a training batch cannot be computed: {error}") from error


def _say_doubts(loss: Loss, is_default: bool, module: nn.Module, samples: Samples) -> None:
    """Warn of likely mistakes that may be intended."""
    x, y = samples.batch(np.arange(min(TRIED[0], len(samples))))
    if broadcasts(loss, output := call(module, x), y):
        warnings.warn(
            f"the loss broadcasts outputs ({shape_of(output)}) and targets ({shape_of(y)}): reshape y like the "
            "outputs, unless every output is to be compared with every target",
            stacklevel=2,
        )
    labels = known_labels(samples) if is_default and loss in (F.mse_loss, binary_cross_entropy) else None
    if labels is None or not np.isin(labels, (0, 1)).all():
        return
    if labels.ndim == 2 and labels.shape[1] > 1 and (labels.sum(axis=1) == 1).all():
        how = "as a regression" if loss is F.mse_loss else "as independent labels"
        warnings.warn(
            f"every row of the targets has exactly one 1, trained {how}: for classes give y.argmax(1), else give loss= "
            "to say that this is meant",
            stacklevel=2,
        )
    elif loss is F.mse_loss:
        warnings.warn(
            "the targets are floats that are all 0 or 1, trained as a regression with the squared error: for labels "
            "with one logit each make y integers, or give loss=nn.BCEWithLogitsLoss()",
            stacklevel=2,
        )
