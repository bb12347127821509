"""Resolution of user arguments into objects: device, method, model, rates, messages, clients."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from fnmatch import fnmatchcase
from functools import cache
from inspect import isfunction
from numbers import Real
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.nn.parameter import is_lazy

from fedlada.data.by_client import by_client
from fedlada.data.given import Collate
from fedlada.data.joined import JoinedSamples
from fedlada.data.samples import Samples, as_samples
from fedlada.engines.clients import ClientTest
from fedlada.engines.inputs import AS_GIVEN, Inputs, inputs_for
from fedlada.engines.threads import cpu_threads
from fedlada.federation.batches import LocalWork
from fedlada.federation.client_test import hold_out
from fedlada.federation.cohorts import Cohorts, Everyone, FixedSize
from fedlada.federation.partition import IID, Given, Partition
from fedlada.federation.randomness import Ints, torch_seed
from fedlada.federation.schedules import Schedule, as_schedule
from fedlada.messages.spec import Messages, vectors
from fedlada.methods.method import FederatedMethod
from fedlada.methods.personal import Personal
from fedlada.methods.recipes import RECIPES
from fedlada.methods.validation import one_of, probability
from fedlada.models.flat import trainable
from fedlada.training.checked_once import check_once
from fedlada.training.observers import StopAt, StopWithout
from fedlada.training.simulation import Observer, Simulation
from fedlada.training.suggested import suggested
from fedlada.training.target import Target, judged_by, lower_is_better

Model = nn.Module | Callable[[], nn.Module]
Place = tuple[torch.device, torch.dtype]
"""The device and dtype of samples."""


def resolve_dtype(dtype: torch.dtype | str | None) -> torch.dtype | None:
    """The dtype of that name, or the given dtype."""
    named = {"float32": torch.float32, "float64": torch.float64}
    if isinstance(dtype, str):
        one_of("dtype", dtype, tuple(named))
        return named[dtype]
    return dtype


def resolve_device(device: str | torch.device) -> torch.device:
    """The device of that name; "auto" is a GPU if there is one."""
    if device == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        place = torch.device(device)
        torch.empty(0, device=place)
    except (RuntimeError, AssertionError) as error:
        reason = str(error).splitlines()[0]
        raise ValueError(f"device {str(device)!r} cannot be used here: {reason}") from None
    if place.type == "meta":
        raise ValueError("device 'meta' cannot be used here: its tensors hold no numbers")
    return place


def resolve_method(method: FederatedMethod | str) -> FederatedMethod:
    """The method, or the suggested one of that name."""
    if isinstance(method, FederatedMethod):
        for part in method.local:
            check_once(part)
        return method
    if not isinstance(method, str):
        got = (
            f"the function {method.__name__}: call it, method={method.__name__}()"
            if isfunction(method)
            else repr(method)
        )
        raise ValueError(f"method must be a FederatedMethod, as from fedlada.recipes, or a name, got {got}")
    if ":" in method:
        raise ValueError(
            f"method={method!r} is the shell's way of naming it: in Python import the function and give what it makes, "
            f"method={method.rpartition(':')[2]}()"
        )
    found: FederatedMethod = suggested(method)["method"]
    return found


def resolve_personal(personal: str | Sequence[str], method: FederatedMethod, model: nn.Module) -> FederatedMethod:
    """The method with the parameters that match these names or patterns, such as `head.*`, as personal ones."""
    own = personal_of(personal, model)
    return method if own is None else replace(method, personal=own)


def personal_of(personal: str | Sequence[str], model: nn.Module) -> Personal | None:
    """The model's parameters that match these names or patterns; text is split at commas."""
    words = personal.split(",") if isinstance(personal, str) else personal
    words = list(words) if isinstance(words, Iterable) else [words]
    if not all(isinstance(word, str) for word in words):
        raise ValueError(f"personal must be names of parameters, such as ('head.*',), got {personal!r}")
    patterns = [word.strip() for word in words if word.strip()]
    if not patterns:
        return None
    sizes = {name: parameter.numel() for name, parameter in trainable(model).items()}
    names: set[str] = set()
    for pattern in patterns:
        found = {name for name in sizes if fnmatchcase(name, pattern)}
        if not found:
            shown = list(sizes) if len(sizes) <= 12 else [*list(sizes)[:6], "...", *list(sizes)[-6:]]
            raise ValueError(f"personal: no trained parameter is named {pattern!r}; there are {', '.join(shown)}")
        names |= found
    if len(names) == len(sizes):
        raise ValueError("personal names every parameter, so nothing is left to train together: leave some out")
    return Personal.of(sizes, names)


def resolve_schedule(lr: float | Schedule | None, lr_decay: float | None, method: FederatedMethod | str) -> Schedule:
    """The learning-rate schedule; defaults come with the method's name, or with the method that it stands for."""
    name = method if isinstance(method, str) else _suggested_name(method) if lr is None else None
    values = suggested(name) if name is not None and not callable(lr) else {"lr_decay": 1.0}
    rate, decay = values.get("lr") if lr is None else lr, values["lr_decay"] if lr_decay is None else lr_decay
    if rate is None:
        named = getattr(method, "name", "")
        other = f"; method={named!r} has one, for the hyperparameters of fedlada.suggested({named!r})"
        raise ValueError(
            "lr must be given with a method object: only a built-in name comes with a default rate"
            + (other if named in RECIPES else "")
        )
    return as_schedule(rate, decay)


def _suggested_name(method: FederatedMethod) -> str | None:
    """The name that stands for exactly this method, if there is one."""
    if method.name not in RECIPES:
        return None
    return method.name if method == suggested(method.name)["method"] else None


def resolve_messages(messages: str | Messages, method: FederatedMethod) -> Messages:
    """The compression rules, checked against the method."""
    if not isinstance(messages, Messages):
        messages = Messages.parse(messages)
    messages.of(method)
    own = vectors(method)
    messages.check_names({*own, *_known_vectors()})
    return messages


@cache
def _known_vectors() -> frozenset[str]:
    return frozenset(path for recipe in RECIPES.values() for path in vectors(recipe()))


def resolve_model(model: Model, seed: int, dtype: torch.dtype | None) -> nn.Module:
    """The model, or the one that the function makes, with initial weights fixed by the seed."""
    if dtype not in (None, torch.float32, torch.float64):
        raise ValueError(f"dtype must be torch.float32 or torch.float64, got {dtype}")
    if isinstance(model, nn.Module):
        return _of_known_size(model)
    if not callable(model):
        built_in = ", such as one of fedlada.models, lambda: fedlada.models.mlp(10)" if isinstance(model, str) else ""
        raise ValueError(f"model must be an nn.Module or a function that makes one{built_in}, got {model!r}")
    # One thread: the last bits of some initializers (orthogonal_) depend on the number of threads.
    gpus = range(torch.cuda.device_count()) if torch.cuda.is_initialized() else ()  # type: ignore[no-untyped-call]
    with torch.random.fork_rng(devices=gpus), cpu_threads(torch.device("cpu"), 1):
        torch.manual_seed(torch_seed(seed, "first weights"))
        try:
            made = model()
        except Exception as error:
            raise ValueError(f"the model could not be made: {error}") from error
    if not isinstance(made, nn.Module):
        raise ValueError(f"model must be an nn.Module or a function that makes one, got {type(made).__name__}")
    return _of_known_size(made)


def _of_known_size(model: nn.Module) -> nn.Module:
    lazy = [name for name, one in model.named_parameters() if is_lazy(one)]
    if lazy:
        raise ValueError(
            f"the model has lazy layers, whose sizes are not known yet ({lazy[0]}): call it once on a batch in the "
            "function that makes it"
        )
    return model


def resolve_work(batch_size: int, local_epochs: int | None, local_steps: int | None) -> LocalWork:
    """The local work in epochs, by default one, or in steps."""
    if local_epochs is not None and local_steps is not None:
        raise ValueError("give local_epochs or local_steps, not both")
    return LocalWork(batch_size=batch_size, epochs=1 if local_epochs is None else local_epochs, steps=local_steps)


def resolve_targets(stop_at: Mapping[str, float] | None) -> list[Target]:
    """The targets that end a run, by the metrics' names."""
    if stop_at is not None and not isinstance(stop_at, Mapping):
        raise ValueError(f"stop_at must be a dict such as {{'test_loss': 0.1}}, got {stop_at!r}")
    return [Target(metric, value) for metric, value in (stop_at or {}).items()]


def check_stop(accuracy: float | None, *, has_data: bool) -> None:
    """Refuse an accuracy to stop at that is none, or that no data are there to measure."""
    if accuracy is None:
        return
    probability("stop_at_accuracy", accuracy)
    if not has_data:
        raise ValueError("stop_at_accuracy needs data to measure it on: give test, validation or client_test")


def _targets_of(simulation: Simulation, targets: Sequence[Target], accuracy: float | None) -> list[Target]:
    """The targets with that of the accuracy which judges the run; refuses one whose metric is not measured."""
    if accuracy is not None:
        metric = judged_by(simulation.measures.names())
        if lower_is_better(metric):
            raise ValueError(
                f"there is no accuracy to stop at with the loss {simulation.engine.loss_name}: use "
                f"stop_at={{{metric!r}: ...}}"
            )
        targets = [*targets, Target(metric, accuracy)]
    for target in targets:
        simulation.measures.check_judge(target.metric)
    return list(targets)


def resolve_stops(
    simulation: Simulation,
    targets: Sequence[Target],
    seconds: float | None,
    patience: int | None,
    accuracy: float | None = None,
) -> list[Observer]:
    """The observers that end the run; refuses a metric that nobody measures."""
    targets = _targets_of(simulation, targets, accuracy)
    stops: list[Observer] = [StopAt(targets, seconds)] if targets or seconds is not None else []
    if patience is not None:
        simulation.measures.check_judge(simulation.best or judged_by(simulation.measures.names()))
        stops.append(StopWithout(patience))
    return stops


def resolve_cohorts(cohorts: Cohorts | None, cohort_size: int | None) -> Cohorts:
    """The given client sampling, a fixed cohort size, or all clients."""
    if cohorts is not None and cohort_size is not None:
        raise ValueError("give cohort_size or cohorts, not both")
    if cohorts is not None and not isinstance(cohorts, Cohorts):
        got = f"the function {cohorts.__name__}" if isfunction(cohorts) else repr(cohorts)
        raise ValueError(
            "cohorts must come from fedlada.cohorts, or from a class of your own: derive it from "
            f"fedlada.cohorts.Cohorts, with a method draw(num_clients, seed, round); got {got}"
        )
    if cohorts is not None:
        return cohorts
    return Everyone() if cohort_size is None else FixedSize(cohort_size)


def resolve_train(
    data: Any, partition: Any, network: nn.Module, device: torch.device, dtype: torch.dtype, collate: Collate | None
) -> tuple[Samples, Any, Inputs]:
    """The training samples, their partition if given per client, and the rule that prepares inputs for the model."""
    given = by_client(data, one_by_one=collate is not None)
    if given is not None and partition is not None:
        raise ValueError("partition= has no effect on data that is given by client: leave it out")
    data, partition = (data, partition) if given is None else (given.data, given.partition)
    samples = as_samples(data, device, dtype, collate)
    inputs = inputs_for(network, samples, device, dtype)
    return inputs.of(samples), partition, inputs


def resolve_test(
    name: str,
    data: Any,
    device: torch.device,
    dtype: torch.dtype,
    collate: Collate | None = None,
    inputs: Inputs = AS_GIVEN,
) -> Samples | None:
    """Samples to evaluate on, prepared like the training samples; an error says of which argument they are."""
    try:
        return None if data is None else inputs.read(data, device, dtype, collate)
    except ValueError as error:
        raise ValueError(f"{name}: {error}") from error


def resolve_clients(
    partition: Partition | Iterable[Iterable[int]] | None, samples: Samples, seed: int
) -> tuple[list[Ints], tuple[str, ...]]:
    """The sample indices of each client, and client names if any; by default ten equal clients, IID."""
    if isinstance(partition, str):
        raise ValueError(f"partition must be an object such as fedlada.data.IID(num_clients=10), got {partition!r}")
    if partition is None:
        partition = IID(num_clients=min(10, len(samples)))
    elif not isinstance(partition, Partition):
        if not isinstance(partition, Iterable):
            raise ValueError(f"partition must come from fedlada.data or list each client's samples, got {partition!r}")
        partition = Given(indices=partition)
    # Only partitions by class need the labels: a large dataset is not read for the others.
    labels = samples.labels() if partition.needs_labels else np.zeros(len(samples))
    return partition.assign(labels, seed), partition.client_names()


def resolve_client_test(
    given: Any,
    clients: Sequence[Ints],
    names: Sequence[str],
    samples: Samples,
    seed: int,
    read: Callable[[Any], Samples | None],
) -> tuple[list[Ints], ClientTest | None]:
    """Each client's training and test samples: a share of its own is held out, or test data is given."""
    if given is None:
        return list(clients), None
    if isinstance(given, Real):
        train, tests = hold_out(clients, float(given), seed)
        return train, ClientTest.of(samples.chosen(np.concatenate(tests)), [len(own) for own in tests])
    parts = {client: part for client, own in _test_by_client(given, len(clients), names).items() if (part := read(own))}
    joined = JoinedSamples([parts[client] for client in sorted(parts)])
    return list(clients), ClientTest.of(joined, [len(parts.get(client, ())) for client in range(len(clients))])


def _test_by_client(given: Any, num_clients: int, names: Sequence[str]) -> dict[int, Any]:
    """Test data by client index; a dict may use their names."""
    if not isinstance(given, Mapping):
        if not isinstance(given, (list, tuple)) or len(given) != num_clients:
            raise ValueError(f"client_test must be a share such as 0.2, or test data for each of {num_clients} clients")
        return {client: own for client, own in enumerate(given) if own is not None}
    by_name = {name: client for client, name in enumerate(names)}
    by_index = {str(client): client for client in range(num_clients)}
    keys = {key: str(key) for key in given}
    asked = set(keys.values())
    # Names may be integers too: indices are meant where the names do not explain all keys and the indices do.
    if not asked <= set(by_name) and (asked <= set(by_index) or not asked & set(by_name)):
        by_name = by_index
    if unknown := [key for key, name in keys.items() if name not in by_name]:
        raise ValueError(f"client_test has data for {unknown[0]!r}, which is not a client of the partition")
    return {by_name[keys[key]]: own for key, own in given.items()}
