"""How good a model is on given samples."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from fedlada.data.samples import Samples, as_samples
from fedlada.engines.classes import class_axis, hits, ignored_by
from fedlada.methods.validation import count, option
from fedlada.models.call import call

Loss = Callable[[Any, Any], Tensor]
Metric = Callable[[Tensor, Tensor], float]
"""A function of all outputs and all targets."""


@dataclass(frozen=True, kw_only=True)
class EvaluationOptions:
    """When and how the global model is evaluated."""

    eval_every: int = option(1, "evaluate after so many rounds, and after the last")
    eval_train_every: int | None = option(None, "also evaluate on all that the clients hold, after so many rounds")
    eval_batch_size: int = option(1000, "samples per batch of an evaluation: fewer need less memory")
    client_test: float | None = option(
        None, "hold out this share of each client's samples and test the model on it, client by client"
    )
    personal_steps: int | None = option(
        None, "also test each client's model after so many local steps of its own, on its held-out samples"
    )
    personal_every: int | None = option(None, "rounds between these tests, by default those between evaluations")

    def __post_init__(self) -> None:
        count("eval_every", self.eval_every)
        if self.eval_train_every is not None:
            count("eval_train_every", self.eval_train_every)
        count("eval_batch_size", self.eval_batch_size)
        if self.client_test is not None and not 0 < self.client_test < 1:
            raise ValueError(f"client_test must be in (0, 1), got {self.client_test}")
        for name in ("personal_steps", "personal_every"):
            if (value := getattr(self, name)) is not None:
                count(name, value)
        if self.personal_every is not None and self.personal_steps is None:
            raise ValueError("personal_every needs personal_steps: how many steps each client takes")


AS_USUAL = EvaluationOptions()


class Totals:
    """Sums over batches, made where they are computed: asking for each number would make a GPU wait for the host.

    Targets that are ignored do not count, so that the means are those of one batch of all samples.
    """

    def __init__(self, loss: Loss, device: torch.device) -> None:
        self.loss, self.ignored = loss, ignored_by(loss)
        self.sum = torch.zeros((), device=device, dtype=torch.float64)
        self.correct, self.counted = (torch.zeros((), device=device, dtype=torch.int64) for _ in range(2))
        self.is_classification = False

    def clear(self) -> None:
        """Begin again, in the same place."""
        for one in (self.sum, self.correct, self.counted):
            one.zero_()

    def add(self, output: Any, y: Any, num_samples: int) -> None:
        """Count a batch."""
        value, axis = self.loss(output, y).double(), class_axis(output, y)
        self.is_classification = axis is not None
        if axis is None:
            self.sum += value * num_samples
            self.counted += num_samples
            return
        correct, counted = hits(output, y, axis, self.ignored)
        self.sum += torch.where(counted > 0, value * counted, 0.0)
        self.correct += correct
        self.counted += counted

    def means(self) -> dict[str, float]:
        """Loss, and accuracy where targets are classes."""
        counted = max(1, int(self.counted))
        result = {"loss": float(self.sum) / counted}
        return {**result, "accuracy": int(self.correct) / counted} if self.is_classification else result


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
    totals = Totals(loss, first.device)
    outputs, targets = [], []
    with torch.no_grad():
        for start in range(0, len(samples), batch_size):
            indices = np.arange(start, min(start + batch_size, len(samples)))
            x, y = samples.batch(indices)
            output = call(module, x)
            totals.add(output, y, len(indices))
            if metrics:
                outputs.append(output.cpu())
                targets.append(y.cpu())
    module.train(was_training)
    for one, mode in modes:  # parts of it may be in another mode than the whole
        one.training = mode
    result = totals.means()
    for name, metric in (metrics or {}).items():
        result[name] = float(metric(torch.cat(outputs), torch.cat(targets)))
    return result


def predictions(
    module: nn.Module, samples: Samples, *, batch_size: int = AS_USUAL.eval_batch_size
) -> np.ndarray[Any, Any]:
    """The class with the highest score, for each sample."""
    module.eval()
    with torch.no_grad():
        parts = [
            call(module, samples.batch(np.arange(start, min(start + batch_size, len(samples))))[0]).argmax(dim=1).cpu()
            for start in range(0, len(samples), batch_size)
        ]
    return torch.cat(parts).numpy()
