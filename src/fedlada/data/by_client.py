"""Data given by client, joined into one data set."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import ConcatDataset, DataLoader, Dataset, IterableDataset

from fedlada.data.given import Arrays, as_tensor, check_one_target, comes_from, has_rows, readable
from fedlada.data.images import Images
from fedlada.federation.partition import Given

TARGET = "the target"


@dataclass(frozen=True, eq=False)
class ByClient:
    """The data of all clients as one data set, concatenated in client order."""

    data: Any
    """`Arrays`, `Images` or a torch `Dataset`."""
    sizes: tuple[int, ...]
    names: tuple[str, ...] = ()
    """One name per client, if they were given by name."""

    @property
    def partition(self) -> Given:
        """The sample indices of each client."""
        ends = np.cumsum(self.sizes)
        own = [np.arange(end - size, end) for end, size in zip(ends, self.sizes, strict=True)]
        return Given(indices=dict(zip(self.names, own, strict=True)) if self.names else own)


def by_client(data: Any, *, one_by_one: bool = False) -> ByClient | None:
    """The clients of a dict by their names, or of a list; None if the data belong to all clients together.

    A list of pairs of arrays or of data sets is one of clients; a tuple is always one pair `(x, y)`.
    """
    if isinstance(data, Mapping) and not comes_from(data, "datasets"):
        names, parts = tuple(map(str, data)), list(data.values())
        if len(set(names)) < len(names):
            raise ValueError("two clients have the same name")
    elif isinstance(data, list) and data and all(map(_is_client, data)):
        names, parts = (), data
    else:
        return None
    if not parts:
        raise ValueError("there are no clients: the dict of their data is empty")
    said = [repr(name) for name in names] or [str(number) for number in range(len(parts))]
    for who, part in zip(said, parts, strict=True):
        if not _is_client(part):
            raise ValueError(
                f"a dict holds the data of each client, (x, y) or a Dataset, but {who} is {type(part).__name__}: "
                "several inputs of all clients are a dict in the place of x, ({...}, y)"
            )
    read = [readable(part, one_by_one=one_by_one) for part in parts]
    return ByClient(_joined(read, said), tuple(map(_size, read)), names)


def pooled(data: Any, *, one_by_one: bool = False) -> Any:
    """The data of all clients as one data set; other data unchanged."""
    found = by_client(data, one_by_one=one_by_one)
    return data if found is None else found.data


def _is_client(data: Any) -> bool:
    if isinstance(data, tuple):
        return len(data) == 2 and all(map(has_rows, data))
    if isinstance(data, DataLoader):
        return True  # `readable` refuses it, with advice
    return isinstance(data, (Dataset, Images)) or (comes_from(data, "datasets") and not isinstance(data, Mapping))


def _size(part: Any) -> int:
    return len(part.y) if isinstance(part, Arrays) else len(part)


def _joined(parts: Sequence[Any], names: Sequence[str]) -> Any:
    for kind, join in ((Arrays, _joined_arrays), (Images, _joined_images), (Dataset, _joined_datasets)):
        if all(isinstance(part, kind) for part in parts):
            return join(parts, names)
    raise ValueError("the clients' data are of several kinds: give all as arrays, or all as Datasets")


def _joined_arrays(parts: Sequence[Arrays], names: Sequence[str]) -> Arrays:
    """One array for each input, and one for the targets."""
    for part in parts:
        check_one_target(part.x, part.y)
    tables = [{**inputs_of(part.x), TARGET: part.y} for part in parts]
    first = tables[0]
    columns: dict[Any, list[Tensor]] = {key: [] for key in first}
    for who, table in zip(names, tables, strict=True):
        if table.keys() != first.keys():
            theirs, ours = map(_input_names, (table, first))
            raise ValueError(f"client {who} has {theirs}, and client {names[0]} has {ours}: give all the same inputs")
        for key, values in table.items():
            one = as_tensor(f"the data of client {who}", values)
            like = columns[key][0] if columns[key] else one
            if one.shape[1:] != like.shape[1:] or one.is_floating_point() != like.is_floating_point():
                raise ValueError(f"client {who} has {_words(one)} where client {names[0]} has {_words(like)}")
            columns[key].append(one)
        if len({len(columns[key][-1]) for key in columns}) > 1:
            raise ValueError(f"client {who} must have one row of x and y per sample")
    whole = {key: torch.cat(same) for key, same in columns.items()}
    y = whole.pop(TARGET)
    return Arrays(like_given(parts[0].x, whole), y, parts[0].class_names)


def like_given(x: Any, inputs: dict[Any, Any]) -> Any:
    """Inputs in the form in which `x` was given: a dict, a tuple or one array."""
    return inputs if isinstance(x, Mapping) else tuple(inputs.values()) if len(inputs) > 1 else inputs[0]


def inputs_of(x: Any) -> dict[Any, Any]:
    """The inputs by their names, or numbered."""
    if isinstance(x, Mapping):
        return dict(x)
    several = (
        isinstance(x, tuple) and len(x) > 1 and all(isinstance(one, (Tensor, np.ndarray)) and one.ndim for one in x)
    )
    return dict(enumerate(x if several else (x,)))


def _input_names(table: Mapping[Any, Any]) -> str:
    keys = [key for key in table if key != TARGET]
    if any(isinstance(key, str) for key in keys):
        return f"the inputs {', '.join(map(str, keys))}"
    return "one input" if len(keys) == 1 else f"{len(keys)} inputs"


def _words(values: Tensor) -> str:
    return f"{str(values.dtype).removeprefix('torch.')} of shape {tuple(values.shape)}"


def _joined_images(parts: Sequence[Images], names: Sequence[str]) -> Images:
    first = parts[0]
    for who, part in zip(names, parts, strict=True):
        others = [one.name for one in fields(part) if one.name not in ("x", "y")]
        both = {name: (getattr(part, name), getattr(first, name)) for name in others}
        both["shape"] = (part.x.shape[1:], first.x.shape[1:])
        for name, (theirs, ours) in both.items():
            if theirs != ours:
                raise ValueError(
                    f"client {who} has images with {name} {theirs}, and client {names[0]} with {ours}: give all "
                    "clients the same"
                )
    x, y = (np.concatenate([getattr(part, name) for part in parts]) for name in ("x", "y"))
    return replace(first, x=x, y=y)


def _joined_datasets(parts: Sequence[Any], names: Sequence[str]) -> Dataset[Any]:
    for who, part in zip(names, parts, strict=True):
        if isinstance(part, IterableDataset):
            raise ValueError(
                f"the data of client {who} are a stream: a dataset must be map-style (with __len__ and __getitem__)"
            )
    joined: Any = ConcatDataset(parts)
    collate = getattr(parts[0], "collate_fn", None)
    if collate is not None:
        joined.collate_fn = collate
    return joined  # type: ignore[no-any-return]
