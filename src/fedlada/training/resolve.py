"""Arguments that users may leave out or name, made into objects: device, method, model, rates, messages, clients."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import cache

import numpy as np
import torch
from torch import nn

from fedlada.data.samples import Samples
from fedlada.engines.threads import cpu_threads
from fedlada.federation.batches import LocalWork
from fedlada.federation.cohorts import Cohorts, Everyone, FixedSize
from fedlada.federation.partition import IID, Given, Partition
from fedlada.federation.randomness import Ints, torch_seed
from fedlada.federation.schedules import Schedule, as_schedule
from fedlada.messages.spec import Messages, short, vectors
from fedlada.methods.method import FederatedMethod
from fedlada.methods.recipes import RECIPES
from fedlada.methods.testing.transforms import check_transform
from fedlada.training.suggested import suggested

Model = nn.Module | Callable[[], nn.Module]


def resolve_device(device: str | torch.device) -> torch.device:
    """The device of that name; "auto" is the GPU where there is one."""
    if device == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        place = torch.device(device)
        torch.empty(0, device=place)
    except (RuntimeError, AssertionError) as error:
        reason = str(error).splitlines()[0]
        raise ValueError(f"device {str(device)!r} cannot be used here: {reason}") from None
    return place


def resolve_method(method: FederatedMethod | str) -> FederatedMethod:
    """The method, or what is suggested under that name."""
    if isinstance(method, FederatedMethod):
        for part in method.local:
            check_transform(part)
        return method
    if not isinstance(method, str):
        raise ValueError(f"method must be a FederatedMethod, as from fedlada.recipes, or a name, got {method!r}")
    found: FederatedMethod = suggested(method)["method"]
    return found


def resolve_schedule(lr: float | Schedule | None, lr_decay: float | None, method: FederatedMethod | str) -> Schedule:
    """The rate of each round as given; what is left out goes with the method's name."""
    values = suggested(method) if isinstance(method, str) and not callable(lr) else {"lr_decay": 1.0}
    rate, decay = values.get("lr") if lr is None else lr, values["lr_decay"] if lr_decay is None else lr_decay
    if rate is None:
        raise ValueError("lr must be given with a method of one's own: a rate comes with a name alone")
    return as_schedule(rate, decay)


def resolve_messages(messages: str | Messages, method: FederatedMethod) -> Messages:
    """The rules, if they suit the method and name only vectors that some method sends."""
    if not isinstance(messages, Messages):
        messages = Messages.parse(messages)
    messages.of(method)
    own = vectors(method)
    if not messages.unusual_names <= {*own, *map(short, own)}:  # else all recipes need not be asked
        messages.check_names({*own, *_known_vectors()})
    return messages


@cache
def _known_vectors() -> frozenset[str]:
    return frozenset(path for recipe in RECIPES.values() for path in vectors(recipe()))


def resolve_model(model: Model, seed: int, dtype: torch.dtype | None) -> nn.Module:
    """The model, or the one that the function makes, whose first weights the seed fixes."""
    if dtype not in (None, torch.float32, torch.float64):
        raise ValueError(f"dtype must be torch.float32 or torch.float64, got {dtype}")
    if isinstance(model, nn.Module):
        return model
    # One thread: some initializers (orthogonal_) are sums, whose last bits depend on the number of threads.
    with torch.random.fork_rng(devices=[]), cpu_threads(torch.device("cpu"), 1):
        torch.manual_seed(torch_seed(seed, "first weights"))
        try:
            made = model()
        except Exception as error:
            raise ValueError(f"the model could not be made: {error}") from error
    if not isinstance(made, nn.Module):
        raise ValueError(f"model must be an nn.Module or a function that makes one, got {type(made).__name__}")
    return made


def resolve_work(batch_size: int, local_epochs: int | None, local_steps: int | None) -> LocalWork:
    """The local work in epochs, by default one, or in steps."""
    if local_epochs is not None and local_steps is not None:
        raise ValueError("give local_epochs or local_steps, not both")
    return LocalWork(batch_size=batch_size, epochs=1 if local_epochs is None else local_epochs, steps=local_steps)


def resolve_cohorts(cohorts: Cohorts | None, cohort_size: int | None) -> Cohorts:
    """The given way of drawing cohorts, or so many clients, or all."""
    if cohorts is not None and cohort_size is not None:
        raise ValueError("give cohort_size or cohorts, not both")
    if cohorts is not None:
        return cohorts
    return Everyone() if cohort_size is None else FixedSize(cohort_size)


def resolve_clients(partition: Partition | Iterable[Iterable[int]] | None, samples: Samples, seed: int) -> list[Ints]:
    """The sample numbers of each client; by default ten equal clients, IID."""
    if partition is None:
        partition = IID(num_clients=min(10, len(samples)))
    elif not isinstance(partition, Partition):
        if not isinstance(partition, Iterable):
            raise ValueError(f"partition must come from fedlada.data or list each client's samples, got {partition!r}")
        partition = Given(indices=partition)
    # Only partitions by class look at the labels: a large dataset is not read for the others.
    labels = samples.labels() if partition.needs_labels else np.zeros(len(samples))
    return partition.assign(labels, seed)
