"""Evaluation of a model on given samples."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_flatten, tree_map, tree_unflatten

from fedlada.data.given import Collate
from fedlada.data.samples import Samples
from fedlada.engines.classes import binary_hits, class_axis, class_weights, hits, ignored_by, is_binary
from fedlada.engines.cpu_layout import Forward, forward_for
from fedlada.engines.default_loss import (
    WORDS,
    check_labels,
    check_loss,
    check_same_shape,
    default_loss,
    labels_of,
    shape_of,
)
from fedlada.engines.inputs import AS_GIVEN, Inputs, inputs_for
from fedlada.engines.refusal import refused
from fedlada.methods.validation import count, option

Loss = Callable[[Any, Any], Tensor]
Metric = Callable[[Any, Any], float]
"""A function of all outputs and all targets."""
AS_TRAINED = ", or ask the run that scaled them: result.evaluate(data), load_run(...).evaluate(data)"
NOT_SCALED = "bytes, or floats that are scaled already to fedlada.evaluate(model, data)"
BUILT_IN = ("loss", "accuracy")
"""Names of the built-in metrics."""


@dataclass(frozen=True, kw_only=True)
class EvaluationOptions:
    """Options of the evaluation of the global model."""

    eval_every: int = option(1, "Rounds between evaluations; the last round is always evaluated.")
    eval_train_every: int | None = option(None, "Rounds between evaluations on all clients' training data.")
    eval_batch_size: int = option(1000, "Samples per evaluation batch; fewer need less memory.")
    client_test: float | None = option(
        None, "Hold out this share of each client's samples and test the model on each client."
    )
    personal_steps: int | None = option(
        None, "Local steps of fine-tuning, after which each client's model is tested on its held-out samples again."
    )
    personal_every: int | None = option(None, "Rounds between these tests; by default as --eval-every.")

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
    """Sums over batches, kept on the device: reading each number would synchronise the GPU.

    Targets that are ignored do not count, and classes count by their weights in the loss, so that the means are those
    of one batch of all samples.
    """

    def __init__(self, loss: Loss, device: torch.device) -> None:
        self.loss, self.ignored, self.is_binary = loss, ignored_by(loss), is_binary(loss)
        self.class_weights = class_weights(loss)
        self.sum, self.weight = (torch.zeros((), device=device, dtype=torch.float64) for _ in range(2))
        self.correct, self.counted = (torch.zeros((), device=device, dtype=torch.int64) for _ in range(2))
        self.is_classification = False

    def clear(self) -> None:
        """Reset the sums in place."""
        for one in (self.sum, self.weight, self.correct, self.counted):
            one.zero_()

    def add(self, output: Any, y: Any, num_samples: int) -> None:
        """Count a batch."""
        value, axis = self.loss(output, y).double(), class_axis(output, y)
        if axis is not None and output.shape[axis] == 1:
            axis = None  # one output is not a choice between classes
        self.is_classification = self.is_binary or axis is not None
        if self.is_binary:
            correct, counted = binary_hits(output, y)
        elif axis is not None:
            correct, counted = hits(output, y, axis, self.ignored)
        else:
            self.sum += value * num_samples
            self.weight += num_samples
            return
        weight = counted.double() if self.class_weights is None else self._weight_of(y)
        self.sum += torch.where(weight > 0, value * weight, 0.0)
        self.weight += weight
        self.correct += correct
        self.counted += counted

    def _weight_of(self, y: Tensor) -> Tensor:
        """The sum of the weights of these targets, without those that are ignored."""
        assert self.class_weights is not None
        counts = y != self.ignored
        return (self.class_weights.double()[torch.where(counts, y, 0)] * counts).sum()

    def means(self) -> dict[str, float]:
        """Loss, and accuracy if targets are classes or binary labels; NaN where no target counts."""
        weight, counted = float(self.weight), int(self.counted)
        result = {"loss": float(self.sum) / weight if weight else math.nan}
        accuracy = int(self.correct) / counted if counted else math.nan
        return {**result, "accuracy": accuracy} if self.is_classification else result


class Gathered:
    """All outputs and targets on the host, for metrics of a user's own; without any, nothing is kept."""

    def __init__(self, metrics: Mapping[str, Metric] | None) -> None:
        self.metrics = metrics or {}
        self.outputs: list[Any] = []
        self.targets: list[Any] = []

    def add(self, output: Any, y: Any) -> None:
        """Keep a batch."""
        if self.metrics:
            self.outputs.append(_on_host(output))
            self.targets.append(_on_host(y))

    def measured(self) -> dict[str, float]:
        """The value of each metric; one that fails is an error."""
        return {name: _measured_by(name, one, self.outputs, self.targets) for name, one in self.metrics.items()}

    def measured_if_possible(self) -> dict[str, float]:
        """The value of each metric; NaN for one that fails, as on too few samples."""
        found = {}
        for name, one in self.metrics.items():
            try:
                found[name] = _measured_by(name, one, self.outputs, self.targets)
            except ValueError:
                found[name] = math.nan
        return found


def evaluate(
    module: nn.Module,
    samples: Any,
    loss: Loss | None = None,
    *,
    metrics: Mapping[str, Metric] | None = None,
    batch_size: int = AS_USUAL.eval_batch_size,
    collate_fn: Collate | None = None,
) -> dict[str, float]:
    """Mean loss, accuracy where the targets are classes or labels, and the metrics, in batches that fit in memory.

    `samples` is anything that `simulate` takes as `test`, with its `collate_fn`; `loss` is by default that of
    `simulate`. Images in bytes that a run scaled need what it scaled them by: `result.evaluate(samples)` has it.
    """
    check_loss(loss)
    count("batch_size", batch_size)
    gathered = Gathered(None if metrics is None else check_metrics(metrics))
    first = _first_parameter(module)
    if not isinstance(samples, Samples):
        samples = AS_GIVEN.read(samples, first.device, first.dtype, collate_fn)
        samples = inputs_for(module, samples, first.device, first.dtype, scaled=False, way_out=AS_TRAINED).of(samples)
    totals: Totals | None = None
    with _evaluating(module):
        for output, y, number in _outputs(module, samples, batch_size):
            if totals is None:
                labels = None if loss else labels_of(samples, y)
                loss = loss or default_loss(output, y, samples)
                check_labels(loss, output, y, samples)
                check_same_shape(loss, output, y, "targets", labels=labels)
                totals = Totals(loss, first.device)
            totals.add(output, y, number)
            gathered.add(output, y)
    assert totals is not None, "there are always samples"
    means = totals.means()
    if twice := [name for name in gathered.metrics if name in means]:
        raise ValueError(replaces_built_in(twice[0]))
    return means | gathered.measured()


def _first_parameter(module: nn.Module) -> Tensor:
    """It has the model's device and dtype; a model without parameters is on the CPU."""
    if not isinstance(module, nn.Module):
        raise ValueError(f"model must be an nn.Module, and not a function that makes one, got {module!r}")
    return next(module.parameters(), torch.empty(0))


@contextmanager
def _evaluating(module: nn.Module) -> Iterator[None]:
    """A model in evaluation mode without gradients; its parts, which may be in several modes, are put back."""
    was_training, modes = module.training, [(one, one.training) for one in module.modules()]
    module.eval()
    try:
        with torch.no_grad():
            yield
    finally:
        module.train(was_training)
        for one, mode in modes:
            one.training = mode


def _outputs(module: nn.Module, samples: Samples, batch_size: int) -> Iterator[tuple[Any, Any, int]]:
    """Outputs, targets and number of samples, batch by batch; inputs that the model cannot take are named."""
    forward: Forward | None = None
    for start in range(0, len(samples), batch_size):
        indices = np.arange(start, min(start + batch_size, len(samples)))
        x, y = samples.batch(indices)
        try:
            forward = forward or forward_for(module, x)
            output = forward(module, x)
        except torch.OutOfMemoryError:
            raise
        except Exception as error:
            raise refused(module, x, "data", error) from error
        yield output, y, len(indices)


def is_given_loss(name: str) -> bool:
    """Whether a run's loss was given to it: its name is not that of a default one."""
    return bool(name) and name not in {one.__qualname__ for one in WORDS}


def evaluate_trained(
    module: nn.Module,
    data: Any,
    loss: Loss | None,
    *,
    inputs: Inputs,
    trained_by: str,
    metrics: Mapping[str, Metric] | None,
    batch_size: int,
    collate_fn: Collate | None,
) -> dict[str, float]:
    """`evaluate` for the model of a run: images in bytes are scaled as its `inputs` were, `trained_by` is its loss."""
    check_loss(loss)
    if loss is None and is_given_loss(trained_by):
        raise ValueError(f"the run was trained with the loss {trained_by}: give it here too, loss=")
    if inputs.mean and not isinstance(data, Samples):
        first = _first_parameter(module)
        data = replace(inputs, dtype=first.dtype).read(data, first.device, first.dtype, collate_fn, way_out=NOT_SCALED)
    return evaluate(module, data, loss, metrics=metrics, batch_size=batch_size, collate_fn=collate_fn)


def check_metrics(metrics: Any) -> dict[str, Metric]:
    """The metrics by name; refuses anything else. Whether an accuracy is built in depends on outputs and targets."""
    if not isinstance(metrics, Mapping) or not all(callable(one) for one in metrics.values()):
        raise ValueError(f"metrics must be a dict of functions by name, as in {{'f1': f1}}, got {metrics!r}")
    if "loss" in metrics:
        raise ValueError(replaces_built_in("loss"))
    return dict(metrics)


def replaces_built_in(name: str) -> str:
    """The error of a metric with the name of a built-in one."""
    return f"the metric {name!r} would replace the built-in one: call it 'my_{name}', say"


def _on_host(value: Any) -> Any:
    return tree_map(lambda one: one.cpu() if isinstance(one, Tensor) else one, value)


def _measured_by(name: str, metric: Metric, outputs: list[Any], targets: list[Any]) -> float:
    """A metric of all outputs and targets; its errors name the metric and its inputs."""
    all_outputs, all_targets = (_joined(name, what, one) for what, one in (("outputs", outputs), ("targets", targets)))
    try:
        return float(metric(all_outputs, all_targets))
    except Exception as error:
        raise ValueError(
            f"the metric {name!r} failed: {type(error).__name__}: {error}; it is given all outputs as they are "
            f"({shape_of(all_outputs)}) and all targets ({shape_of(all_targets)}), and must return one number"
        ) from error


def _joined(name: str, what: str, batches: list[Any]) -> Any:
    """Batches concatenated: tensors, or dicts and tuples of them."""
    leaves, structures = zip(*(tree_flatten(one) for one in batches), strict=True)
    parts = list(zip(*leaves, strict=True))
    for part in parts:
        if not all(isinstance(one, Tensor) for one in part):
            raise ValueError(
                f"the metric {name!r} needs {what} that are tensors, or dicts and tuples of tensors, got "
                f"{type(part[0]).__name__}: return tensors from the model, or leave the metric out"
            )
    whole = [torch.stack(part) if part[0].ndim == 0 else torch.cat(part) for part in parts]
    return tree_unflatten(whole, structures[0])


def predictions(
    module: nn.Module, samples: Samples, *, batch_size: int = AS_USUAL.eval_batch_size
) -> np.ndarray[Any, Any]:
    """The class with the highest score, for each sample."""
    with _evaluating(module):
        parts = [output.argmax(dim=1).cpu() for output, _, _ in _outputs(module, samples, batch_size)]
    return torch.cat(parts).numpy()
