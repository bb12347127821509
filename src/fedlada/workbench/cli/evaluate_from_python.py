"""`fedlada evaluate` for runs that were made from Python: the user names the model and the data again."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import nn

from fedlada.data.samples import Samples
from fedlada.data.sources import load_dataset
from fedlada.engines.threads import cpu_threads
from fedlada.federation.client_test import hold_out
from fedlada.methods.imported import imported
from fedlada.models.factory import model_factory
from fedlada.models.flat import trainable
from fedlada.runs.clients import read_names
from fedlada.runs.config import clients_digest, how_made
from fedlada.training.resolve import resolve_clients, resolve_test, resolve_train
from fedlada.workbench.cli.measured import Report, by_class, by_client, measured
from fedlada.workbench.load import load_run


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
        names = read_names(folder)
        if partition is not None:
            clients, given = resolve_clients(partition, samples, config.get("seed", 0))
            trained = tested = clients
            if held_out := isinstance(share := config.get("client_test"), float):
                trained, tested = hold_out(clients, share, config.get("seed", 0))
            is_same = clients_digest(trained) == config.get("clients")
            names = replace(names, clients=given or (names.clients if is_same else ()))
            report |= by_client(lambda _: network, samples, tested, names, held_out=held_out)
            report["same_clients"] = is_same
        report |= by_class(network, tests, replace(names, classes=samples.class_names or names.classes))
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
        return measured(model, samples)
    except Exception as error:  # a user's own model can raise anything
        why = (str(error).splitlines() or [type(error).__name__])[0]
        raise ValueError(f"the model of {folder} cannot be measured on these data: {why}") from None
