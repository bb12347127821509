"""`fedlada evaluate` for runs that were made from Python: the user names the model and the data again."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from fedlada.data.samples import Samples
from fedlada.data.sources import load_dataset
from fedlada.engines.classes import class_axis
from fedlada.engines.evaluation import evaluate, predictions
from fedlada.engines.threads import cpu_threads
from fedlada.federation.client_test import hold_out
from fedlada.federation.randomness import Ints
from fedlada.methods.imported import imported
from fedlada.models.call import call
from fedlada.models.factory import model_factory
from fedlada.models.flat import trainable
from fedlada.runs.config import clients_digest, how_made
from fedlada.training.resolve import resolve_clients, resolve_test, resolve_train
from fedlada.training.target import is_better
from fedlada.workbench.cli.output import print_table
from fedlada.workbench.load import load_run

Report = dict[str, Any]


def measured_from_python(
    folder: Path,
    config: dict[str, Any],
    place: torch.device,
    *,
    model: str | None,
    data: str | None,
    dataset: str | None,
    data_dir: str | None,
    best: bool,
) -> Report:
    """Loss and accuracy on test and training data, and of each class and client where they are known."""
    if model is None or (data is None) == (dataset is None):
        raise ValueError(
            f"{folder} was {how_made(config)}: name its model (--model package.module:factory) and its data (--data "
            "package.module:function, which returns train and test, or --dataset npz --data-dir FILE)"
        )
    if config.get("personal"):
        raise ValueError(
            f"{folder} has personal parameters, so there is no single model: use load_run(...).client_model(client) in "
            "Python; client_metrics.jsonl has what each client measured"
        )
    stored = load_run(folder, model_factory(model))
    found, round = stored.best() if best else (stored.model, stored.round)
    numbers = next(iter(trainable(found).values())).dtype
    network = found.to(place)
    train, test, partition = _named_data(data) if data is not None else _dataset(str(dataset), data_dir)
    with cpu_threads(place, config.get("threads") or 1):
        samples, partition, inputs = resolve_train(train, partition, network, place, numbers, None)
        tests = resolve_test(test, place, numbers, None, inputs)
        if tests is None:
            raise ValueError(f"the data {data or dataset!r} have no test data")
        report: Report = {"folder": str(folder), "rounds": round, "test": _measured(network, tests, folder)}
        report["train"] = _measured(network, samples, folder)
        if partition is not None:
            clients, _ = resolve_clients(partition, samples, config.get("seed", 0))
            trained = tested = clients
            if isinstance(share := config.get("client_test"), float):
                trained, tested = hold_out(clients, share, config.get("seed", 0))
            report |= _by_client(network, samples, tested)
            report["same_clients"] = clients_digest(trained) == config.get("clients")
        if _has_class_scores(network, tests):
            labels = tests.labels()
            hits = predictions(network, tests) == labels
            report["per_class"] = {str(label): float(hits[labels == label].mean()) for label in np.unique(labels)}
    return report


def _named_data(name: str) -> tuple[Any, Any, Any]:
    made = imported("data", name)()
    if not isinstance(made, (tuple, list)) or len(made) not in (2, 3):
        kind = f"{len(made)} things" if isinstance(made, (tuple, list)) else type(made).__name__
        raise ValueError(f"the data {name!r} must be (train, test) or (train, test, partition), got {kind}")
    train, test, partition = (*made, None)[:3]
    return train, test, partition


def _dataset(name: str, data_dir: str | None) -> tuple[Any, Any, Any]:
    source = load_dataset(name, data_dir)
    return source.train, source.test, None


def _measured(model: nn.Module, samples: Samples, folder: Path) -> dict[str, float]:
    try:
        return evaluate(model, samples)
    except Exception as error:  # a user's own model can raise anything
        why = (str(error).splitlines() or [type(error).__name__])[0]
        raise ValueError(f"the model of {folder} cannot be measured on these data: {why}") from None


def _has_class_scores(model: nn.Module, samples: Samples) -> bool:
    """Whether each sample has one class and a score for each of several classes."""
    x, y = samples.batch(np.arange(1))
    with torch.no_grad():
        axis = class_axis(output := call(model.eval(), x), y)
    return axis is not None and y.ndim == 1 and output.shape[axis] > 1


def _by_client(model: nn.Module, samples: Samples, clients: Sequence[Ints]) -> Report:
    """Accuracy where there is one, else loss, on the training samples of each client."""
    values = {client: evaluate(model, samples.chosen(own)) for client, own in enumerate(clients) if len(own)}
    what = "accuracy" if all("accuracy" in one for one in values.values()) else "loss"
    worst = next(iter(values))
    for client in values:
        if is_better(what, values[worst][what], values[client][what]):
            worst = client
    return {
        "per_client": {str(client): one[what] for client, one in values.items()},
        "worst_client": {"client": worst, what: values[worst][what], "samples": len(clients[worst])},
    }


def print_from_python(report: Report) -> None:
    """The report as a table."""
    what = "accuracy" if "accuracy" in report["test"] else "loss"
    rows = [
        [name, f"{report[key][what]:.4f}", f"loss {report[key]['loss']:.4f}"]
        for name, key in (("test set", "test"), ("training set", "train"))
    ]
    if worst := report.get("worst_client"):
        own = np.array(list(report["per_client"].values()))
        other = "" if report["same_clients"] else "; not the clients of the run"
        rows += [
            ["clients' own data, mean", f"{own.mean():.4f}", f"{len(own)} clients, deviation {own.std():.4f}{other}"],
            [f"worst client ({worst['client']})", f"{worst[what]:.4f}", f"{worst['samples']} samples"],
        ]
    rows += [[f"class {label}", f"{value:.4f}", "test set"] for label, value in report.get("per_class", {}).items()]
    print_table(["", what, ""], rows, title=f"{report['folder']} after {report['rounds']} rounds")
