"""`fedlada evaluate`."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import click
import numpy as np
import torch
from torch import nn

from fedlada.data.samples import ChosenSamples, Samples, as_samples
from fedlada.data.sources import DATASETS, Source
from fedlada.engines.evaluation import evaluate as measure
from fedlada.engines.evaluation import predictions
from fedlada.engines.threads import cpu_threads
from fedlada.federation.client_test import hold_out
from fedlada.federation.randomness import Ints
from fedlada.runs.client_metrics import read_values
from fedlada.runs.clients import Names, read_names
from fedlada.runs.config import is_experiment, read_config
from fedlada.training.resolve import resolve_device
from fedlada.workbench.cli.evaluate_from_python import measured_from_python, print_from_python
from fedlada.workbench.cli.flags import NearestChoice, model_flag, trust_flag
from fedlada.workbench.cli.output import print_table
from fedlada.workbench.experiment import DTYPES, Experiment
from fedlada.workbench.load import StoredRun, load_run, stored_experiment


@click.command()
@click.argument("folder", type=click.Path(path_type=Path))
@click.option("--best", is_flag=True, help="Evaluate the best model instead of the last.")
@click.option("--device", default="auto", show_default=True, help="cpu, cuda, cuda:1, ...")
@click.option("--dataset", type=NearestChoice(tuple(DATASETS)), help="Evaluate on another data set than the run's.")
@click.option("--data-dir", help="Folder of the data: of --dataset, or of the run's own data if they were moved.")
@click.option("--data", help="package.module:function that returns (train, test), for a run made from Python.")
@model_flag
@trust_flag
@click.option("--json", "as_json", is_flag=True, help="Print as JSON.")
def evaluate(
    folder: Path,
    best: bool,
    device: str,
    dataset: str | None,
    data_dir: str | None,
    data: str | None,
    model: str | None,
    trust: bool,
    as_json: bool,
) -> None:
    """Evaluate a stored run's model: on the test set, by class, and on each client's own data.

    A run made from Python needs --model and its data: --data, or --dataset. The function of --data may return
    (train, test, partition), as simulate was given them.

    \b
    Example:
      fedlada run --rounds 20 --out runs/first
      fedlada evaluate runs/first
    """
    place = resolve_device(device)
    if not is_experiment(config := read_config(folder)):
        named: Any = {"model": model, "data": data, "dataset": dataset, "data_dir": data_dir, "best": best}
        found = measured_from_python(folder, config, place, **named)
        print(json.dumps(found)) if as_json else print_from_python(found)
        return
    if data is not None:
        raise ValueError(f"{folder} names its own data: leave --data out, or use --dataset")
    as_stored = stored_experiment(folder, config, model=model, trust=trust, trains=False)
    trained, experiment = _experiments(as_stored, dataset, data_dir)
    with cpu_threads(place, trained.threads):
        report = _measured(folder, trained, experiment, place, best=best)
    print(json.dumps(report)) if as_json else _print(report)


def _measured(
    folder: Path, trained: Experiment, experiment: Experiment, place: torch.device, *, best: bool
) -> dict[str, Any]:
    own = trained.load_data()
    if (stored_classes := read_names(folder).classes) and stored_classes != own.class_names:
        raise ValueError(
            f"{folder} was trained on the classes {_listed(stored_classes)}, but the data have "
            f"{_listed(own.class_names)}: give the data of then with --data-dir"
        )
    stored = load_run(folder, trained.build_model(own))
    source = own if experiment is trained else experiment.load_data()
    dtype = DTYPES[experiment.dtype]
    found, round = stored.best() if best else (stored.model, stored.round)
    model = found.to(place, dtype)
    train, test = (as_samples(one, place, dtype) for one in (source.train, source.test))
    _check_fit(model, test, source, f"the model of {folder}, trained on {trained.dataset}", experiment.dataset)
    labels = train.labels()
    if labels.dtype.kind == "f" or labels.ndim > 1:
        raise ValueError(
            f"the targets of {experiment.dataset} are no classes, whose accuracy evaluate measures: "
            f"the test loss of each round is in {folder / 'metrics.jsonl'}, and fedlada report shows it"
        )
    partition = experiment.build_partition(source)
    names = Names(partition.client_names(), source.class_names)
    clients = partition.assign(labels, experiment.seed)
    if is_held_out := experiment is trained and trained.client_test is not None:
        _, clients = hold_out(clients, trained.client_test or 0.0, trained.seed)
    if trained.personal:  # there is no single model
        by_client, for_all = _by_own_models(stored, train, clients, place, dtype), {}
    else:
        own_hits = predictions(model, train) == labels
        by_client = {client: float(own_hits[own].mean()) for client, own in enumerate(clients) if len(own)}
        for_all = _for_all(model, train, test, names)
    worst = min(by_client, key=lambda client: by_client[client])
    return {
        "folder": str(folder),
        "rounds": round,
        **for_all,
        "clients_by": "held-out samples" if is_held_out else "own data",
        "per_client": {names.client(client): accuracy for client, accuracy in by_client.items()},
        "worst_client": {
            "client": names.client(worst) if names.clients else worst,
            "accuracy": by_client[worst],
            "samples": len(clients[worst]),
        },
        **_after_own_steps(folder, names),
    }


def _for_all(model: nn.Module, train: Samples, test: Samples, names: Names) -> dict[str, Any]:
    """The one model on all test and training samples, and on each class."""
    labels = test.labels()
    hits = predictions(model, test) == labels
    return {
        "test": measure(model, test, torch.nn.functional.cross_entropy),
        "train": measure(model, train, torch.nn.functional.cross_entropy),
        "per_class": {names.label(label): float(hits[labels == label].mean()) for label in np.unique(labels).tolist()},
    }


def _by_own_models(
    stored: StoredRun, samples: Samples, clients: Sequence[Ints], place: torch.device, dtype: torch.dtype
) -> dict[int, float]:
    """The accuracy of each client's model, with its personal parameters, on the samples of that client."""
    labels, accuracies = samples.labels(), {}
    for client, own in enumerate(clients):
        if len(own):
            found = predictions(stored.client_model(client).to(place, dtype), ChosenSamples(samples, own))
            accuracies[client] = float((found == labels[own]).mean())
    return accuracies


def _after_own_steps(folder: Path, names: Names) -> dict[str, Any]:
    """The last test of clients after steps of their own, as the run recorded it."""
    values = [one for one in read_values(folder) if "personal_accuracy" in one]
    if not values:
        return {}
    known = {client: one for client, one in enumerate(values[-1]["personal_accuracy"]) if one is not None}
    by_name = {names.client(client): one for client, one in known.items()}
    return {"after_own_steps": {"round": values[-1]["round"], "per_client": by_name}}


def _listed(names: Sequence[str]) -> str:
    return ", ".join(names[:8]) + (f" and {len(names) - 8} more" if len(names) > 8 else "")


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
    worst = report["worst_client"]
    rows = [
        [f"{name} set", f"{report[key]['accuracy']:.4f}", f"loss {report[key]['loss']:.4f}"]
        for name, key in (("test", "test"), ("training", "train"))
        if key in report
    ]
    rows += _spread(f"clients' {report['clients_by']}", report["per_client"])
    rows.append([f"worst client ({worst['client']})", f"{worst['accuracy']:.4f}", f"{worst['samples']} samples"])
    if own := report.get("after_own_steps"):
        rows += _spread(f"after steps of their own in round {own['round']}", own["per_client"])
    per_class = report.get("per_class", {})
    rows += [[f"class {label}", f"{accuracy:.4f}", "test set"] for label, accuracy in per_class.items()]
    print_table(["", "accuracy", ""], rows, title=f"{report['folder']} after {report['rounds']} rounds")


def _spread(what: str, per_client: dict[str, float]) -> list[list[str]]:
    own = np.sort(list(per_client.values()))
    lowest = own[: max(1, round(len(own) / 10))]
    return [
        [f"{what}, mean", f"{own.mean():.4f}", f"{len(own)} clients, standard deviation {own.std():.4f}"],
        [f"{what}, worst decile", f"{lowest.mean():.4f}", "the mean of the lowest tenth of the clients"],
    ]
