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

from fedlada.data.own import Named, is_own_data, refuse_untrusted_data
from fedlada.data.samples import Samples, as_samples
from fedlada.data.source import Source
from fedlada.data.sources import DATASETS
from fedlada.engines.refusal import first_line
from fedlada.engines.threads import cpu_threads
from fedlada.federation.client_test import hold_out
from fedlada.models.call import call
from fedlada.runs.clients import Names, read_names
from fedlada.runs.config import is_experiment, read_config
from fedlada.training.resolve import resolve_device
from fedlada.workbench.cli.evaluate_from_python import measured_from_python, measured_on
from fedlada.workbench.cli.flags import model_flag, trust_flag
from fedlada.workbench.cli.measured import (
    NOT_PRIVATE,
    after_own_steps,
    by_class,
    by_client,
    is_private_run,
    measured,
    print_report,
    refuse_best_of_personal,
    without,
)
from fedlada.workbench.cli.values import NearestChoice, UserPath
from fedlada.workbench.experiment import DTYPES, Experiment
from fedlada.workbench.load import check_class_names, load_run, refuse_moved_data, stored_experiment


@click.command()
@click.argument("folder", type=UserPath())
@click.option("--best", is_flag=True, help="Evaluate the best model instead of the last.")
@click.option("--device", default="auto", show_default=True, help="Device: cpu, cuda, cuda:1, ...")
@click.option("--dataset", type=NearestChoice(tuple(DATASETS)), help="Evaluate on another data set than the run's.")
@click.option("--data-dir", help="Folder of the data: of --dataset, or of the run's own data if they were moved.")
@click.option(
    "--data", help="Function that returns (train, test), package.module:function, for a run from Python or with --data."
)
@click.option(
    "--loss", help="The run's own loss, as package.module:function, for a run made from Python; else none is shown."
)
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
    loss: str | None,
    model: str | None,
    trust: bool,
    as_json: bool,
) -> None:
    """Evaluate a stored run's model: on the test set, by class, and on each client's own data.

    A run made from Python needs --model and its data: --data, or --dataset. The function of --data may return
    (train, test, partition) or (train, test, partition, client_test), as simulate was given them; None stands for
    what it was not given.

    \b
    Example:
      fedlada run --rounds 20 --out runs/first
      fedlada evaluate runs/first
    """
    place = resolve_device(device)
    if not is_experiment(config := read_config(folder)):
        named: Any = {"model": model, "data": data, "dataset": dataset, "data_dir": data_dir, "loss": loss}
        report = measured_from_python(folder, config, place, best=best, **named)
    else:
        is_own = is_own_data(config.get("dataset"))
        if data is not None and not is_own:
            raise ValueError(f"{folder} names its own data: leave --data out, or use --dataset")
        if loss is not None:
            raise ValueError(f"{folder} was not given a loss, its data decide: leave --loss out")
        as_stored = stored_experiment(folder, config, model=model, trust=trust, trains=False)
        if is_own:
            if dataset is not None or data_dir is not None:
                raise ValueError(f"{folder} was run on data of its own: leave --dataset and --data-dir out")
            refuse_untrusted_data(as_stored.dataset, folder, named=data, trust=trust)
            report = _measured_on_own(folder, config, as_stored, place, best=best)
        else:
            trained, experiment = _experiments(as_stored, dataset, data_dir)
            refuse_moved_data(folder, trained)
            with cpu_threads(place, trained.threads):
                report = _measured(folder, trained, experiment, place, best=best)
    if is_private_run(config):
        report["note"] = " ".join(filter(None, (report.get("note"), NOT_PRIVATE)))
    print(json.dumps(report)) if as_json else print_report(report)


def _measured_on_own(
    folder: Path, config: dict[str, Any], trained: Experiment, place: torch.device, *, best: bool
) -> dict[str, Any]:
    """The measures of a run on the data of a user's own function."""
    source = trained.load_data()
    made = Named(source.train, source.test, trained.build_partition(source), None)
    model = trained.build_model(source)
    return measured_on(folder, config, place, model=model, made=made, best=best, is_same=True)


def _measured(
    folder: Path, trained: Experiment, experiment: Experiment, place: torch.device, *, best: bool
) -> dict[str, Any]:
    refuse_best_of_personal(folder, best=best, personal=bool(trained.personal))
    own = trained.load_data()
    check_class_names(folder, read_names(folder).classes, own.class_names)
    stored = load_run(folder, trained.build_model(own))
    source = own if experiment is trained else experiment.load_data()
    dtype = DTYPES[experiment.dtype]
    found, round = stored.best() if best else (stored.model, stored.round)
    model = found.to(place, dtype)
    train, test = (as_samples(one, place, dtype) for one in (source.train, source.test))
    _check_fit(model, test, source, f"the model of {folder}, trained on {trained.dataset}", experiment.dataset)
    partition = experiment.build_partition(source)
    names = Names(partition.client_names(), source.class_names)
    clients, trained_on = partition.assign(train.labels(), experiment.seed), train
    if is_held_out := experiment is trained and trained.client_test is not None:
        _, clients = hold_out(clients, trained.client_test or 0.0, trained.seed)
        trained_on = without(train, clients)
    for_all = {}
    if not trained.personal:  # else there is no single model
        for_all = {"test": measured(model, test), "train": measured(model, trained_on), **by_class(model, test, names)}

    def model_of(client: int) -> nn.Module:
        return stored.client_model(client).to(place, dtype) if trained.personal else model

    return {
        "folder": str(folder),
        "rounds": round,
        **for_all,
        **by_client(model_of, train, clients, names, held_out=is_held_out),
        **after_own_steps(folder, names),
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
            num_outputs = call(model, test.batch(np.arange(1))[0]).shape[1]
    except Exception as error:  # a user's own model can raise anything
        shape = "x".join(map(str, source.input_shape))
        raise ValueError(f"{whose}, does not take the inputs of {dataset} ({shape}): {first_line(error)}") from None
    if source.num_classes > num_outputs:
        raise ValueError(f"{whose}, knows {num_outputs} classes, but {dataset} has {source.num_classes}")
