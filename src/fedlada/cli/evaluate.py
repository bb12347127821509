"""`fedlada evaluate`."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import click
import numpy as np
import torch

from fedlada.api import resolve_device
from fedlada.cli.flags import NearestChoice
from fedlada.cli.output import print_table
from fedlada.data.samples import as_samples
from fedlada.data.sources import DATASETS
from fedlada.evaluation import evaluate as measure
from fedlada.evaluation import predictions
from fedlada.experiment import DTYPES
from fedlada.runs.load import open_run


@click.command()
@click.argument("folder", type=click.Path(path_type=Path))
@click.option("--best", is_flag=True, help="The best model instead of the last.")
@click.option("--device", default="auto", show_default=True, help="Where to compute.")
@click.option("--dataset", type=NearestChoice(tuple(DATASETS)), help="Other data than the run was trained on.")
@click.option("--data-dir", help="Where the data sets lie, if no longer where they were.")
@click.option("--json", "as_json", is_flag=True, help="As JSON.")
def evaluate(folder: Path, best: bool, device: str, dataset: str | None, data_dir: str | None, as_json: bool) -> None:
    """Measure a stored run's model: test set, each class, each client's own data.

    \b
    Example:
      fedlada run --rounds 20 --out runs/first
      fedlada evaluate runs/first
    """
    stored = open_run(folder, data_dir=data_dir)
    experiment = stored.experiment if dataset is None else replace(stored.experiment, dataset=dataset)
    source = experiment.load_data()
    place, dtype = resolve_device(device), DTYPES[experiment.dtype]
    model = (stored.best_model() if best else stored.model).to(place, dtype)
    train, test = (as_samples(one, place, dtype) for one in (source.train, source.test))
    labels, test_labels = train.labels(), test.labels()
    hits = predictions(model, test) == test_labels
    own_hits = predictions(model, train) == labels
    clients = experiment.build_partition(source).assign(labels, experiment.seed)
    by_client = {client: float(own_hits[own].mean()) for client, own in enumerate(clients) if len(own)}
    worst = min(by_client, key=lambda client: by_client[client])
    report = {
        "folder": str(folder),
        "rounds": len(stored.history),
        "test": measure(model, test, torch.nn.functional.cross_entropy),
        "train": measure(model, train, torch.nn.functional.cross_entropy),
        "per_class": {str(label): float(hits[test_labels == label].mean()) for label in np.unique(test_labels)},
        "per_client": {str(client): accuracy for client, accuracy in by_client.items()},
        "worst_client": {"client": worst, "accuracy": by_client[worst], "samples": len(clients[worst])},
    }
    print(json.dumps(report)) if as_json else _print(report)


def _print(report: dict[str, Any]) -> None:
    own = np.array(list(report["per_client"].values()))
    worst = report["worst_client"]
    rows = [
        ["test set", f"{report['test']['accuracy']:.4f}", f"loss {report['test']['loss']:.4f}"],
        ["training set", f"{report['train']['accuracy']:.4f}", f"loss {report['train']['loss']:.4f}"],
        ["clients' own data, mean", f"{own.mean():.4f}", f"{len(own)} clients, standard deviation {own.std():.4f}"],
        [f"worst client ({worst['client']})", f"{worst['accuracy']:.4f}", f"{worst['samples']} samples"],
    ]
    rows += [[f"class {label}", f"{accuracy:.4f}", "test set"] for label, accuracy in report["per_class"].items()]
    print_table(["", "accuracy", ""], rows, title=f"{report['folder']} after {report['rounds']} rounds")
