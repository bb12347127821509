"""A user's own data, made by a function that is named `package.module:function`."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch.utils.data import Dataset, Subset

from fedlada.data.by_client import by_client, inputs_of, like_given
from fedlada.data.given import Arrays, as_tensor, readable
from fedlada.data.images import Images
from fedlada.data.samples import as_samples
from fedlada.federation.partition import IID, ByKey, Given, Partition
from fedlada.federation.randomness import Ints
from fedlada.methods.imported import imported, refuse_stored

AS_USUAL = 10
"""Clients, with equal shares, of data that name none."""


class Named(NamedTuple):
    """The data that the function returned, as `simulate` takes them; None for those that it did not return."""

    train: Any
    test: Any
    partition: Any
    client_test: Any


def is_own_data(name: object) -> bool:
    """Whether this is the name of a user's function, not of a data set."""
    return isinstance(name, str) and ":" in name


def refuse_untrusted_data(name: str, place: Path, *, named: str | None = None, trust: bool = False) -> None:
    """Refuse data that a stored configuration names, unless they are built in, named by the user too, or trusted."""
    refuse_stored("data", name, place, named=named, trust=trust, is_own=is_own_data(name), by_hand="--data")


def named_data_function(name: str) -> Callable[..., Any]:
    """The function of that name, imported."""
    return imported("data", name)


def named_data(name: str) -> Named:
    """The data of that name: the function is imported and called."""
    try:
        made = named_data_function(name)()
    except ValueError:
        raise
    except Exception as error:  # the user's function can fail in any way
        raise ValueError(f"the data {name!r} could not be made: {type(error).__name__}: {error}") from error
    if not isinstance(made, (tuple, list)) or len(made) not in (2, 3, 4):
        kind = f"{len(made)} things" if isinstance(made, (tuple, list)) else type(made).__name__
        raise ValueError(
            f"the data {name!r} must be (train, test) or (train, test, partition), perhaps with client_test after "
            f"them, got {kind}"
        )
    if all(hasattr(one, "shape") for one in made[:2]):
        raise ValueError(f"the data {name!r} must be (train, test), got two arrays: return ((x, y), None)")
    return Named(*(*made, None, None)[:4])


def divided(train: Any, partition: Any) -> tuple[Any, Partition]:
    """The training data as one data set, and its clients: those that are named, else ten with equal shares."""
    given = by_client(train)
    if given is not None:
        if partition is not None:
            raise ValueError("partition has no effect on data that is given by client: leave it out")
        return given.data, given.partition
    data = readable(train)
    number = size_of(data)
    if partition is None:
        return data, IID(num_clients=min(AS_USUAL, number))
    if not isinstance(partition, Partition):
        partition = Given(indices=partition)
    if isinstance(partition, (Given, ByKey)):
        own, names = partition.assign(np.zeros(number), 0), partition.client_names()
        partition = Given(indices=dict(zip(names, own, strict=True)) if names else own)
    return data, partition


def remaining(partition: Partition | None, rows: Ints, size: int) -> Partition | None:
    """The partition of these of the samples; one that is not given by sample numbers divides them as it would all."""
    if not isinstance(partition, Given):
        return partition
    places = np.full(size, -1)
    places[rows] = np.arange(len(rows))
    own = [places[one][places[one] >= 0] for one in partition.assign(np.zeros(size), 0)]
    names = partition.client_names()
    return Given(indices=dict(zip(names, own, strict=True)) if names else own)


def size_of(data: Any) -> int:
    """The number of samples."""
    if isinstance(data, (Arrays, Images)):
        return len(data.y)
    return len(as_samples(data, torch.device("cpu"), torch.float32))


def labels_of(data: Any) -> np.ndarray[Any, Any]:
    """The target of every sample."""
    if isinstance(data, Arrays):
        return as_tensor("y", data.y).cpu().numpy()
    return as_samples(data, torch.device("cpu"), torch.float32).labels()


def rows_of(data: Any, rows: Ints) -> Any:
    """These samples of `Arrays` or of a torch `Dataset`."""
    if isinstance(data, Arrays):
        inputs = {key: as_tensor(f"x[{key!r}]", one)[rows] for key, one in inputs_of(data.x).items()}
        return Arrays(like_given(data.x, inputs), as_tensor("y", data.y)[rows], data.class_names)
    part: Any = Subset(data, rows.tolist())
    if (collate := getattr(data, "collate_fn", None)) is not None:
        part.collate_fn = collate
    return part


def first_of(data: Any) -> tuple[Any, Any]:
    """The inputs and the target of the first sample, as a batch."""
    few = rows_of(data, np.arange(1)) if isinstance(data, (Arrays, Dataset)) else data
    return as_samples(few, torch.device("cpu"), torch.float32).batch(np.arange(1))


def fingerprints(data: Any) -> list[np.ndarray[Any, Any]]:
    """Arrays that tell these data from others: all of theirs, or the digest and the targets of a torch `Dataset`."""
    if isinstance(data, Arrays):
        tables = {**inputs_of(data.x), None: data.y}
        return [as_tensor("the data", one).cpu().numpy() for one in tables.values()]
    samples = as_samples(data, torch.device("cpu"), torch.float32)
    return [np.frombuffer(samples.digest().encode(), np.uint8), samples.labels()]
