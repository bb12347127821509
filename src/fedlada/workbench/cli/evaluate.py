"""`fedlada evaluate`."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import click
import numpy as np
import torch
from torch import nn

from fedlada.data.samples import Samples, as_samples
from fedlada.data.sources import DATASETS, Source
from fedlada.engines.evaluation import evaluate as measure
from fedlada.engines.evaluation import predictions
from fedlada.engines.threads import cpu_threads
from fedlada.runs.config import read_config
from fedlada.training.resolve import resolve_device
from fedlada.workbench.cli.flags import NearestChoice, model_flag, trust_flag
from fedlada.workbench.cli.output import print_table
from fedlada.workbench.experiment import DTYPES, Experiment
from fedlada.workbench.load import load_run, stored_experiment


@click.command()
@click.argument("folder", type=click.Path(path_type=Path))
@click.option("--best", is_flag=True, help="The best model instead of the last.")
@click.option("--device", default="auto", show_default=True, help="cpu, cuda, cuda:1, ...")
@click.option("--dataset", type=NearestChoice(tuple(DATASETS)), help="Other data than the run was trained on.")
@click.option("--data-dir", help="Where the data lie: those of --dataset, or the run's own if no longer there.")
@model_flag
@trust_flag
@click.option("--json", "as_json", is_flag=True, help="As JSON.")
def evaluate(
    folder: Path,
    best: bool,
    device: str,
    dataset: str | None,
    data_dir: str | None,
    model: str | None,
    trust: bool,
    as_json: bool,
) -> None:
    """Measure a stored run's model: test set, each class, each client's own data.

    \b
    Example:
      fedlada run --rounds 20 --out runs/first
      fedlada evaluate runs/first
    """
    place = resolve_device(device)
    as_stored = stored_experiment(folder, read_config(folder), model=model, trust=trust)
    trained, experiment = _experiments(as_stored, dataset, data_dir)
    with cpu_threads(place, trained.threads):
        report = _measured(folder, trained, experiment, place, best=best)
    print(json.dumps(report)) if as_json else _print(report)


def _measured(
    folder: Path, trained: Experiment, experiment: Experiment, place: torch.device, *, best: bool
) -> dict[str, Any]:
    own = trained.load_data()
    stored = load_run(folder, trained.build_model(own))
    source = own if experiment is trained else experiment.load_data()
    dtype = DTYPES[experiment.dtype]
    found, round = stored.best() if best else (stored.model, stored.round)
    model = found.to(place, dtype)
    train, test = (as_samples(one, place, dtype) for one in (source.train, source.test))
    _check_fit(model, test, source, f"the model of {folder}, trained on {trained.dataset}", experiment.dataset)
    labels, test_labels = train.labels(), test.labels()
    hits = predictions(model, test) == test_labels
    own_hits = predictions(model, train) == labels
    clients = experiment.build_partition(source).assign(labels, experiment.seed)
    by_client = {client: float(own_hits[own].mean()) for client, own in enumerate(clients) if len(own)}
    worst = min(by_client, key=lambda client: by_client[client])
    return {
        "folder": str(folder),
        "rounds": round,
        "test": measure(model, test, torch.nn.functional.cross_entropy),
        "train": measure(model, train, torch.nn.functional.cross_entropy),
        "per_class": {str(label): float(hits[test_labels == label].mean()) for label in np.unique(test_labels)},
        "per_client": {str(client): accuracy for client, accuracy in by_client.items()},
        "worst_client": {"client": worst, "accuracy": by_client[worst], "samples": len(clients[worst])},
    }


def _experiments(stored: Experiment, dataset: str | None, data_dir: str | None) -> tuple[Experiment, Experiment]:
    """The run as it was trained, and as it is measured: on its own data or on others, never augmented."""
    trained = replace(stored, augment="none")
    if dataset is None or dataset == trained.dataset:
        trained = trained if data_dir is None else replace(trained, data_dir=data_dir)
        return trained, trained
    # Other data may lie in the same folder; their images have a size of their own.
    return trained, replace(trained, dataset=dataset, data_dir=data_dir or trained.data_dir, image_size=None)


def _check_fit(model: nn.Module, test: Samples, source: Source, whose: str, dataset: str) -> None:
    """Refuse data of another shape, or with classes that the model does not know."""
    model.eval()
    try:
        with torch.no_grad():
            num_outputs = model(test.batch(np.arange(1))[0]).shape[1]
    except Exception as error:  # a user's own model can raise anything
        shape = "x".join(map(str, source.input_shape))
        why = (str(error).splitlines() or [type(error).__name__])[0]
        raise ValueError(f"{whose}, does not take the inputs of {dataset} ({shape}): {why}") from None
    if source.num_classes > num_outputs:
        raise ValueError(f"{whose}, knows {num_outputs} classes, but {dataset} has {source.num_classes}")


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
