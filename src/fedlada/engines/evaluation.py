"""How good a model is on given samples."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from fedlada.data.samples import Samples, as_samples
from fedlada.methods.validation import count, option

Loss = Callable[[Any, Any], Tensor]
Metric = Callable[[Tensor, Tensor], float]
"""A function of all outputs and all targets."""


@dataclass(frozen=True, kw_only=True)
class EvaluationOptions:
    """When and how the global model is evaluated."""

    eval_every: int = option(1, "evaluate after so many rounds, and after the last")
    eval_train_every: int | None = option(None, "also evaluate on all that the clients hold, after so many rounds")
    eval_batch_size: int = option(1000, "samples per batch of an evaluation: fewer need less memory")

    def __post_init__(self) -> None:
        count("eval_every", self.eval_every)
        if self.eval_train_every is not None:
            count("eval_train_every", self.eval_train_every)
        count("eval_batch_size", self.eval_batch_size)


AS_USUAL = EvaluationOptions()


def evaluate(
    module: nn.Module,
    samples: Any,
    loss: Loss,
    *,
    metrics: Mapping[str, Metric] | None = None,
    batch_size: int = AS_USUAL.eval_batch_size,
) -> dict[str, float]:
    """Mean loss, accuracy where the targets are classes, and the given metrics, in batches that fit in memory.

    `samples` is an `(x, y)` pair of arrays, a torch `Dataset`, or `Samples`.
    """
    first = next(module.parameters())
    samples = as_samples(samples, first.device, first.dtype)
    was_training, modes = module.training, [(one, one.training) for one in module.modules()]
    module.eval()
    # Summed where they are computed: asking for each number would make a GPU wait for the host.
    total_loss = torch.zeros((), device=first.device, dtype=torch.float64)
    correct = torch.zeros((), device=first.device, dtype=torch.int64)
    is_classification = False
    outputs, targets = [], []
    with torch.no_grad():
        for start in range(0, len(samples), batch_size):
            indices = np.arange(start, min(start + batch_size, len(samples)))
            x, y = samples.batch(indices)
            output = module(x)
            total_loss += loss(output, y).double() * len(indices)
            is_classification = are_classes(output, y)
            if is_classification:
                correct += (output.argmax(dim=1) == y).sum()
            if metrics:
                outputs.append(output.cpu())
                targets.append(y.cpu())
    module.train(was_training)
    for one, mode in modes:  # parts of it may be in another mode than the whole
        one.training = mode
    result = {"loss": float(total_loss) / len(samples)}
    if is_classification:
        result["accuracy"] = int(correct) / len(samples)
    for name, metric in (metrics or {}).items():
        result[name] = float(metric(torch.cat(outputs), torch.cat(targets)))
    return result


def are_classes(output: Any, y: Any) -> bool:
    """Whether outputs are scores of classes and targets are class numbers."""
    return (
        isinstance(output, Tensor)
        and isinstance(y, Tensor)
        and output.ndim == 2
        and y.ndim == 1
        and not y.is_floating_point()
    )


def predictions(
    module: nn.Module, samples: Samples, *, batch_size: int = AS_USUAL.eval_batch_size
) -> np.ndarray[Any, Any]:
    """The class with the highest score, for each sample."""
    module.eval()
    with torch.no_grad():
        parts = [
            module(samples.batch(np.arange(start, min(start + batch_size, len(samples))))[0]).argmax(dim=1).cpu()
            for start in range(0, len(samples), batch_size)
        ]
    return torch.cat(parts).numpy()
