"""`fedlada evaluate` for runs that were made from Python: the user names the model and the data again."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from fedlada.data.own import Named, named_data
from fedlada.data.samples import Samples
from fedlada.data.sources import load_dataset
from fedlada.engines.engine import RAN_BY
from fedlada.engines.evaluation import Loss, is_given_loss
from fedlada.engines.refusal import first_line
from fedlada.engines.threads import cpu_threads
from fedlada.federation.client_test import hold_out
from fedlada.federation.randomness import Ints
from fedlada.methods.imported import imported
from fedlada.models.factory import model_factory
from fedlada.models.flat import trainable
from fedlada.runs.clients import Names, read_names
from fedlada.runs.config import clients_digest, how_made, is_federation
from fedlada.training.resolve import Model, resolve_client_test, resolve_clients, resolve_test, resolve_train
from fedlada.workbench.cli.measured import (
    Report,
    after_own_steps,
    by_class,
    by_client,
    measured,
    refuse_best_of_personal,
    unknown_loss,
    without,
)
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
    loss: str | None,
    best: bool,
) -> Report:
    """Loss and accuracy on test and training data, and of each class and client where they are known."""
    if model is None or (data is None) == (dataset is None):
        raise ValueError(
            f"{folder} was {how_made(config)}: name its model (--model package.module:factory) and its data (--data "
            "package.module:function, which returns train and test, or --dataset npz --data-dir FILE)"
        )
    made = named_data(data) if data is not None else _dataset(str(dataset), data_dir)
    return measured_on(folder, config, place, model=model_factory(model), made=made, best=best, loss=loss)


def measured_on(
    folder: Path,
    config: dict[str, Any],
    place: torch.device,
    *,
    model: Model,
    made: Named,
    best: bool,
    loss: str | None = None,
    is_same: bool = False,
) -> Report:
    """The measures of a stored model on these data; `is_same` says that their clients are surely those of the run."""
    is_personal = bool(config.get("personal"))
    refuse_best_of_personal(folder, best=best, personal=is_personal)
    if is_personal and is_federation(config):
        raise ValueError(
            f"{folder} was made by a federation: its personal parameters stay on its nodes, and are measured there"
        )
    own_loss, note = _loss_of(config, loss)
    stored = load_run(folder, model)
    found, round = stored.best() if best else (stored.model, stored.round)
    numbers = next(iter(trainable(found).values())).dtype
    network = found.to(place)
    names = read_names(folder)
    report: Report = {"folder": str(folder), "rounds": round, **note}
    with cpu_threads(place, config.get("threads") or 1):
        samples, partition, inputs = resolve_train(made.train, made.partition, network, place, numbers, None)
        names = replace(names, classes=samples.class_names or names.classes)

        def read(given: Any, name: str = "client_test") -> Samples | None:
            return resolve_test(name, given, place, numbers, None, inputs)

        own = _clients(config, samples, partition, made.client_test, names, read, is_same=is_same)
        if is_personal and own is None:
            raise ValueError(
                f"{folder} has personal parameters, so each client is measured by itself, and the data do not say "
                "whose a sample is: return (train, test, partition) from --data, as simulate was given them"
            )
        tests = None if is_personal else read(made.test, "test")  # of personal parameters no model is everybody's
        with _failures_of(folder):
            if tests is not None:
                report["test"] = measured(network, tests, own_loss)
            if not is_personal:
                report["train"] = measured(network, samples if own is None else own.trained_on, own_loss)
            if own is not None:
                one = (lambda client: stored.client_model(client).to(place)) if is_personal else (lambda _: network)
                report |= by_client(one, own.samples, own.clients, own.names, held_out=own.held_out, loss=own_loss)
                report |= {"same_clients": own.is_same, **after_own_steps(folder, own.names)}
            if tests is not None:
                report |= by_class(network, tests, names)
    if note and not any(report.get(name) for name in ("test", "train", "per_client")):
        raise ValueError(f"{folder} has nothing to measure without its loss {_trained_by(config)}: name it with --loss")
    return report


def _trained_by(config: Mapping[str, Any]) -> str:
    """The name of the run's loss; empty if it is not known."""
    about = config.get(RAN_BY)
    return str(about.get("loss") or "") if isinstance(about, dict) else ""


def _loss_of(config: Mapping[str, Any], named: str | None) -> tuple[Loss | None, Report]:
    """The loss to measure, None for that of the targets, and a note if it is unknown and left out."""
    if named is not None:
        function: Any = imported("loss", named)
        found = function.__wrapped__  # as it is: torch's own losses are known by their class
        return (found() if isinstance(found, type) else found), {}
    if not is_given_loss(name := _trained_by(config)):
        return None, {}
    return unknown_loss, {
        "note": f"No loss is shown: the run was trained with {name}, which --loss package.module:function names here."
    }


@dataclass(frozen=True, eq=False)
class _Clients:
    """The samples on which each client is measured."""

    samples: Samples
    clients: Sequence[Ints]
    """Indices of the samples of each client."""
    trained_on: Samples
    """The training data without what the clients hold out."""
    names: Names
    held_out: bool
    """Whether nothing of it was trained on."""
    is_same: bool
    """Whether these are the clients of the run."""


def _clients(
    config: Mapping[str, Any],
    samples: Samples,
    partition: Any,
    client_test: Any,
    names: Names,
    read: Callable[[Any], Samples | None],
    *,
    is_same: bool,
) -> _Clients | None:
    """The clients that the data name, or those of a run without a partition; None if they are not known."""
    seed = config.get("seed", 0)
    clients, given = resolve_clients(partition, samples, seed)
    trained = tested = clients
    share = config.get("client_test")
    if isinstance(client_test, float) and client_test != share:
        raise ValueError(
            f"the data hold out {client_test:g} of each client's samples, and the run did not: clients were trained on "
            "them; leave client_test out of what --data returns"
        )
    if is_share := isinstance(share, float):
        trained, tested = hold_out(clients, share, seed)
    is_same = is_same or clients_digest(trained) == config.get("clients")
    if partition is None and not is_same:
        return None
    names = replace(names, clients=given or (names.clients if is_same else ()))
    if client_test is not None and not is_share:
        _, own = resolve_client_test(client_test, clients, names.clients, samples, seed, read)
        assert own is not None
        rows = [own.rows(client) for client in range(own.num_clients)]
        return _Clients(own.samples, rows, samples, names, held_out=True, is_same=is_same)
    rest = without(samples, tested) if is_share else samples
    return _Clients(samples, tested, rest, names, held_out=is_share, is_same=is_same)


def _dataset(name: str, data_dir: str | None) -> Named:
    source = load_dataset(name, data_dir)
    return Named(source.train, source.test, None, None)


@contextmanager
def _failures_of(folder: Path) -> Iterator[None]:
    """Say whose model it was that failed."""
    try:
        yield
    except Exception as error:  # a user's own model can raise anything
        raise ValueError(f"the model of {folder} cannot be measured on these data: {first_line(error)}") from None
