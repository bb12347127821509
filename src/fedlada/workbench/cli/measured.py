"""The measures of a stored model that `fedlada evaluate` shows: of all samples, of each client, of each class."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from fedlada.data.samples import Samples
from fedlada.engines.classes import class_axis, exact_match
from fedlada.engines.evaluation import Loss, Metric, evaluate, predictions
from fedlada.federation.randomness import Ints
from fedlada.models.call import call
from fedlada.runs.client_metrics import read_values
from fedlada.runs.clients import Names
from fedlada.training.target import lower_is_better
from fedlada.workbench.cli.output import print_table

Report = dict[str, Any]
NOT_PRIVATE = (
    "The run is private, but its epsilon does not cover what is measured here on clients' data: keep it to yourself."
)


def unknown_loss(_output: Any, _y: Any) -> Tensor:
    """Stands for the loss of a run where it is not known: nothing of it is shown."""
    return torch.zeros(())


def measured(model: nn.Module, samples: Samples, loss: Loss | None = None) -> dict[str, float]:
    """Loss if it is known, and accuracy, exact match or regression errors, depending on the targets."""
    output, y = _first(model, samples)
    metrics: dict[str, Metric] = {}
    if isinstance(output, Tensor) and isinstance(y, Tensor) and output.shape == y.shape:
        if y.is_floating_point():
            metrics = {"mae": lambda output, y: float(F.l1_loss(output, y)), "rmse": _rmse}
        elif y.numel() > 1:
            metrics = {"exact_match": exact_match}
    found = evaluate(model, samples, loss, metrics=metrics)
    return {name: value for name, value in found.items() if name != "loss" or loss is not unknown_loss}


def first_of(measures: Iterable[Mapping[str, float]]) -> str:
    """The measure to show first, of those that all have; empty if there is none."""
    known = [set(one) for one in measures]
    order = ("accuracy", "loss", "exact_match", "mae")
    return next((name for name in order if known and all(name in one for one in known)), "")


def _rmse(output: Tensor, y: Tensor) -> float:
    return float(F.mse_loss(output, y).sqrt())


def _first(model: nn.Module, samples: Samples) -> tuple[Any, Any]:
    """The output and the target of one sample."""
    x, y = samples.batch(np.arange(1))
    with torch.no_grad():
        return call(model.eval(), x), y


def by_class(model: nn.Module, samples: Samples, names: Names) -> Report:
    """The accuracy of each class, for single-label classification."""
    output, y = _first(model, samples)
    axis = class_axis(output, y)
    if axis is None or y.ndim != 1 or output.shape[axis] < 2:
        return {}
    labels = samples.labels()
    hits = predictions(model, samples) == labels
    return {
        "per_class": {names.label(label): float(hits[labels == label].mean()) for label in np.unique(labels).tolist()}
    }


def by_client(
    model_of: Callable[[int], nn.Module],
    samples: Samples,
    clients: Sequence[Ints],
    names: Names,
    *,
    held_out: bool,
    loss: Loss | None = None,
) -> Report:
    """Accuracy where there is one, else loss, of each client's model on the client's samples."""
    found = {
        client: measured(model_of(client), samples.chosen(own), loss) for client, own in enumerate(clients) if len(own)
    }
    what = first_of(found.values())
    if not what:
        return {}
    values = {client: one[what] for client, one in found.items()}
    worst = (max if lower_is_better(what) else min)(values, key=lambda client: values[client])
    return {
        "clients_by": "held-out samples" if held_out else "own data",
        "per_client": {names.client(client): value for client, value in values.items()},
        "worst_client": {
            "client": names.client(worst) if names.clients else worst,
            what: values[worst],
            "samples": len(clients[worst]),
        },
    }


def without(samples: Samples, held_out: Sequence[Ints]) -> Samples:
    """The samples that no client holds out."""
    return samples.chosen(np.setdiff1d(np.arange(len(samples)), np.concatenate(held_out)))


def refuse_best_of_personal(folder: Any, *, best: bool, personal: bool) -> None:
    """Refuse the best model of a run with personal parameters, which are stored for the last round alone."""
    if best and personal:
        raise ValueError(
            f"{folder} has personal parameters, which are stored with the last model, not with the best one: leave "
            "--best out"
        )


def after_own_steps(folder: Any, names: Names) -> Report:
    """The last test of clients after fine-tuning, as recorded by the run."""
    for values in reversed(read_values(folder)):
        for what in ("personal_accuracy", "personal_loss"):
            if what in values:
                known = {names.client(client): one for client, one in enumerate(values[what]) if one is not None}
                return {"after_own_steps": {"round": values["round"], "per_client": known}}
    return {}


def is_private_run(config: Mapping[str, Any]) -> bool:
    """Whether a run's combiner is private, by its configuration."""
    return str(config.get("combiner")).lower().startswith("private")


def print_report(report: Report) -> None:
    """The report as a table."""
    sets = {name: report[key] for name, key in (("test set", "test"), ("training set", "train")) if key in report}
    worst = report.get("worst_client", {})
    what = first_of([*sets.values(), *([worst] if worst else [])])
    rows = [
        [name, f"{one[what]:.4f}", ", ".join(f"{key} {value:.4f}" for key, value in one.items() if key != what)]
        for name, one in sets.items()
    ]
    if worst:
        rows += _spread(f"clients' {report['clients_by']}", report["per_client"], what)
        other = "" if report.get("same_clients", True) else "; not the clients of the run"
        rows.append([f"worst client ({worst['client']})", f"{worst[what]:.4f}", f"{worst['samples']} samples{other}"])
    if (own := report.get("after_own_steps")) and what in ("accuracy", "loss"):  # the run recorded its accuracy or loss
        rows += _spread(f"after steps of their own in round {own['round']}", own["per_client"], what)
    per_class = report.get("per_class", {})
    rows += [[f"class {label}", f"{value:.4f}", "test set"] for label, value in per_class.items()]
    print_table(["", what, ""], rows, title=f"{report['folder']} after {report['rounds']} rounds")
    if "note" in report:
        print(report["note"])


def _spread(whose: str, per_client: dict[str, float], what: str) -> list[list[str]]:
    own = np.sort(list(per_client.values()))
    extreme = "highest" if lower_is_better(what) else "lowest"
    worst = (own[::-1] if extreme == "highest" else own)[: max(1, round(len(own) / 10))]
    return [
        [f"{whose}, mean", f"{own.mean():.4f}", f"{len(own)} clients, standard deviation {own.std():.4f}"],
        [f"{whose}, worst decile", f"{worst.mean():.4f}", f"the mean of the {extreme} tenth of the clients"],
    ]
