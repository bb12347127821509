"""Input formats: lists, pandas frames, Hugging Face data sets, samples to be collated.

Nothing of pandas, Pillow or `datasets` is imported here: an object of theirs is known by where its class comes from.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn.utils.rnn import PackedSequence
from torch.utils._pytree import tree_leaves
from torch.utils.data import ConcatDataset, DataLoader, Dataset, Subset

from fedlada.data.frames import check_order, numbers_of_frame
from fedlada.federation.randomness import the_same_randomness

Collate = Callable[[list[Any]], Any]
"""A function of a list of samples: inputs and targets as arrays, as a `DataLoader` takes it."""

PADDING = "pad them in collate_fn= (torch.nn.utils.rnn.pad_sequence does it), or beforehand"
INPUTS = ("x", "img", "image", "images", "pixel_values", "features", "input_ids", "text")
TARGETS = ("y", "label", "labels", "target", "targets", "fine_label")
"""Default column names of inputs and targets."""


@dataclass(frozen=True, eq=False)
class Arrays:
    """Inputs and targets with the names of the classes."""

    x: Any
    y: Any
    class_names: tuple[str, ...] = ()


@dataclass(frozen=True, eq=False)
class Pairs(Dataset[Any]):
    """Two sequences of equal length as a data set of pairs."""

    x: Any
    y: Any

    def __post_init__(self) -> None:
        if len(self.x) != len(self.y):
            raise ValueError(f"x and y must have one row per sample, got {len(self.x)} and {len(self.y)}")

    def __len__(self) -> int:
        return len(self.y)

    def __getitem__(self, number: int) -> tuple[Any, Any]:
        return self.x[number], self.y[number]


@dataclass(frozen=True, eq=False)
class Rows(Dataset[Any]):
    """The rows of a table as dicts, or the samples of a list."""

    table: Any

    def __len__(self) -> int:
        return len(self.table)

    def __getitem__(self, number: int) -> Any:
        return self.table[number]


@dataclass(frozen=True, eq=False)
class Columns(Dataset[Any]):
    """A data set whose samples are dicts, read as pairs of inputs and target."""

    dataset: Any
    x: str | tuple[str, ...]
    y: str

    def __len__(self) -> int:
        return len(self.dataset)

    def __getitem__(self, number: int) -> tuple[Any, Any]:
        row = self.dataset[number]
        if missing := [name for name in (*self._inputs(), self.y) if name not in row]:
            raise ValueError(f"the samples have no {missing[0]!r}; they have {', '.join(map(str, row))}")
        return row[self.x] if isinstance(self.x, str) else {name: row[name] for name in self.x}, row[self.y]

    def arrays(self) -> Arrays:
        """Every sample at once: a table's columns are read much faster than its rows."""
        columns = {name: _column(self.dataset, name) for name in (*self._inputs(), self.y)}
        y = columns.pop(self.y)
        return Arrays(columns[self.x] if isinstance(self.x, str) else columns, y, class_names_of(self))

    def _inputs(self) -> tuple[str, ...]:
        return (self.x,) if isinstance(self.x, str) else self.x


def columns(dataset: Any, *, x: str | Sequence[str] | None = None, y: str | None = None) -> Any:
    """The inputs and targets of a table or of samples that are dicts, by the names of their columns.

    For a Hugging Face `datasets.Dataset`, a pandas frame, or a torch `Dataset` of dicts. Several inputs go to the model
    by their names; of a frame they are the features. Names that are left out are found where there is no choice.
    """
    if comes_from(dataset, "pandas"):
        return _columns_of_frame(dataset, x, y)
    known = list(getattr(dataset, "column_names", None) or dataset[0])
    inputs = _named("x", x, INPUTS, known) if x is None or isinstance(x, str) else tuple(x)
    target = _named("y", y, TARGETS, known)
    for name in (*((inputs,) if isinstance(inputs, str) else inputs), target):
        if name not in known:
            raise ValueError(f"there is no column {name!r}; there are {', '.join(map(str, known))}")
    return Columns(dataset, inputs, target)


def readable(data: Any, *, one_by_one: bool = False) -> Any:
    """The data as `Arrays` or as a torch `Dataset`; anything else, such as `Images`, unchanged.

    `one_by_one` asks for samples that can be collated, so for a `Dataset` where arrays would do.
    """
    if any(isinstance(one, DataLoader) for one in (data if isinstance(data, (tuple, list)) else (data,))):
        raise ValueError("a DataLoader makes batches of its own: give its .dataset, and its .collate_fn as collate_fn=")
    if hasattr(data, "load_partition"):
        raise ValueError(
            "give the partitions of a FederatedDataset in a list: [fds.load_partition(i) for i in range(num_clients)]"
        )
    if comes_from(data, "pandas"):
        raise ValueError("a frame does not say what to predict: give fedlada.data.columns(frame, y=...)")
    if comes_from(data, "datasets"):
        if isinstance(data, Mapping) or not hasattr(data, "__len__"):
            raise ValueError(f"a {type(data).__name__} is no table of samples: give one split of it, and no stream")
        return Rows(data) if one_by_one else columns(data).arrays()
    if isinstance(data, Columns) and comes_from(data.dataset, "datasets") and not one_by_one:
        return data.arrays()
    if isinstance(data, list) and data and all(isinstance(one, tuple) and len(one) == 2 for one in data):
        return Rows(data)  # a list of samples; lists of clients were joined before
    if one_by_one and isinstance(data, list) and (len(data) != 2 or any(isinstance(one, Mapping) for one in data)):
        return Rows(data)  # samples of any kind, for collate_fn; two others are x and y
    if not one_by_one and _are_clients(data):
        raise ValueError(
            "a tuple is one pair (x, y): give clients as a list, [(x, y), (x, y)], or a dict by their names"
        )
    if isinstance(data, (tuple, list)) and len(data) == 2:
        if all(comes_from(one, "pandas") for one in data):
            check_order(*data)
        return Pairs(*data) if one_by_one else Arrays(*data)
    return data


def _are_clients(data: Any) -> bool:
    """Whether a tuple holds pairs or data sets, and is no pair of several inputs and targets."""
    if not isinstance(data, tuple) or len(data) < 2:
        return False
    if all(isinstance(one, Dataset) for one in data):
        return True
    if not all(isinstance(one, tuple) and len(one) == 2 and all(map(_has_shape, one)) for one in data):
        return False
    x, y = data[1]
    return all(len(x) == len(y) for x, y in data) and (x.shape != y.shape or len(x) != 2)


def _has_shape(value: Any) -> bool:
    return hasattr(value, "shape") and len(value.shape) > 0


def collated(dataset: Any, collate_fn: Collate) -> Arrays:
    """Every sample of a data set, joined by one call of the function: shorter ones are padded to the longest of all."""
    with the_same_randomness():  # a user's data set may change its samples at random when they are read
        samples = items(dataset, range(len(dataset)))
        try:
            batch = collate_fn(samples)
        except Exception as error:
            raise ValueError(f"collate_fn cannot join {len(samples)} samples: {error}") from error
    x, y = _inputs_and_targets(batch)
    if any(isinstance(one, PackedSequence) for one in (x, *(x if isinstance(x, tuple) else ()))):
        raise ValueError("collate_fn must give padded sequences with their lengths: pack them inside the model")
    if not hasattr(y, "__len__") or len(y) != len(samples):
        raise ValueError(f"collate_fn must give one target for each of the {len(samples)} samples it is given")
    return Arrays(x, y, class_names_of(dataset))


def items(dataset: Any, numbers: Sequence[int]) -> list[Any]:
    """Samples of a data set, read by its own batch method if it has one."""
    if hasattr(dataset, "__getitems__"):
        return list(dataset.__getitems__([int(number) for number in numbers]))
    return [dataset[int(number)] for number in numbers]


def targets_of(dataset: Any) -> np.ndarray[Any, Any] | None:
    """The attribute `targets` of a data set, also inside torch's `Subset` and `ConcatDataset`; None without one.

    A `target_transform` makes others of them, which only reading the samples gives.
    """
    if getattr(dataset, "target_transform", None) is not None:
        return None
    targets = getattr(dataset, "targets", None)
    if targets is not None:
        return np.asarray(targets) if len(targets) == len(dataset) else None
    if type(dataset) is Subset:  # a class made from it may change its samples
        inside = targets_of(dataset.dataset)
        return None if inside is None else inside[np.asarray(dataset.indices, dtype=np.int64)]
    if type(dataset) is ConcatDataset:
        parts = [one for part in dataset.datasets if (one := targets_of(part)) is not None]
        return np.concatenate(parts) if len(parts) == len(dataset.datasets) else None
    return None


def class_names_of(dataset: Any) -> tuple[str, ...]:
    """The class names of a data set, or of the one it wraps, if it has any."""
    names = getattr(dataset, "classes", None)
    if isinstance(dataset, Columns) and hasattr(dataset.dataset, "features"):
        names = getattr(dataset.dataset.features.get(dataset.y), "names", None)
    if isinstance(names, (list, tuple)) and all(isinstance(name, str) for name in names):
        return tuple(names) if getattr(dataset, "target_transform", None) is None else ()
    inside = getattr(dataset, "dataset", None) or next(iter(getattr(dataset, "datasets", ())), None)
    return () if inside is None else class_names_of(inside)


def as_tensor(name: str, values: Any) -> Tensor:
    """Numbers in any form as a tensor; anything else is refused with advice."""
    if isinstance(values, Tensor):
        if values.is_nested:
            raise ValueError(f"{name} is a nested tensor: give torch.nested.to_padded_tensor(..., 0), or {PADDING}")
        if values.layout is not torch.strided:
            raise ValueError(f"{name} is a sparse tensor: give {name}.to_dense()")
        return values.detach()  # data are constants, also where they were computed with gradients
    if isinstance(values, np.ma.MaskedArray) and np.ma.is_masked(values):
        raise ValueError(f"{name} has masked entries, which torch does not know: fill them, as {name}.filled(0) does")
    if comes_from(values, "pandas"):
        values = numbers_of_frame(name, values)
    if isinstance(values, (list, tuple)) and len(values):
        _check_alike(name, values)
        if all(isinstance(one, Tensor) for one in values):
            return torch.stack(tuple(values)).detach()
    if comes_from(values, "PIL"):
        raise ValueError(f"{name} is one image: {IMAGES}")
    try:
        array = np.asarray(values)
        if array.dtype.kind in "OSUT":
            raise ValueError(f"it holds {'text' if array.dtype.kind in 'SUT' else 'Python objects'}")
        # torch takes neither another byte order nor an array that runs backwards.
        if not array.dtype.isnative or any(stride < 0 for stride in array.strides):
            array = array.astype(array.dtype.newbyteorder("="), order="C")
        with warnings.catch_warnings():
            # A read-only array (a memory map, a decompressed file) is fine: nothing here writes to it.
            warnings.filterwarnings("ignore", message=".*not writable")
            return torch.as_tensor(array)
    except (TypeError, ValueError) as error:
        way_out = PADDING if "inhomogeneous" in str(error) else "turn it into numbers, in collate_fn= or beforehand"
        raise ValueError(f"{name} cannot be read as an array of numbers ({error}): {way_out}") from None


def check_one_target(x: Any, y: Any) -> None:
    """Refuse several targets, in a dict or a tuple, beside the inputs `x`: a loss is given one tensor."""
    first = next((one for one in tree_leaves(x) if _has_shape(one)), ())
    are_arrays = isinstance(y, (tuple, list)) and bool(y) and all(map(_has_shape, y))
    if isinstance(y, Mapping) or (are_arrays and len(y) != len(first) and all(len(one) == len(first) for one in y)):
        raise ValueError(
            "y holds several targets, and a loss is given one tensor: pack them into one, as torch.cat([a, b], 1) "
            "does, and split it in the loss"
        )


IMAGES = "make arrays of images, by transform=torchvision.transforms.PILToTensor() or numpy.asarray"


def check_alike(samples: Sequence[Any]) -> None:
    """Refuse samples that cannot be stacked: Pillow images, text, sequences of several lengths."""
    for part in zip(*samples, strict=True):
        leaves = part if not isinstance(part[0], Mapping) else [one for row in part for one in row.values()]
        _check_alike("the dataset", leaves, shapes=not isinstance(part[0], Mapping))


def _check_alike(name: str, values: Sequence[Any], *, shapes: bool = True) -> None:
    if comes_from(values[0], "PIL"):
        raise ValueError(f"{name} holds images of Pillow: {IMAGES}")
    if isinstance(values[0], str):
        raise ValueError(
            f"{name} cannot be read as an array of numbers, it holds text: number it, in collate_fn= or beforehand"
        )
    if isinstance(values[0], Tensor) and values[0].is_nested:
        raise ValueError(f"{name} holds nested tensors: {PADDING}")
    found = dict.fromkeys(_shape(one) for one in values)
    if shapes and len(found) > 1:
        first, second = list(found)[:2]
        raise ValueError(f"{name} holds samples of several shapes, such as {first} and {second}: {PADDING}")


def _shape(value: Any) -> tuple[int, ...]:
    if isinstance(value, (Tensor, np.ndarray)):
        return tuple(value.shape)
    return (len(value),) if isinstance(value, (list, tuple)) else ()


def has_rows(values: Any) -> bool:
    """Whether a value is a collection of numbers, not a single number."""
    return values.ndim > 0 if hasattr(values, "ndim") else hasattr(values, "__len__") and not isinstance(values, str)


def comes_from(value: Any, package: str) -> bool:
    """Whether an object's class is defined in a package, which need not be installed."""
    return any(kind.__module__.partition(".")[0] == package for kind in type(value).__mro__)


def _inputs_and_targets(batch: Any) -> tuple[Any, Any]:
    """Inputs and targets of what a `collate_fn` gives: `(x, y)`, `(x, lengths, y)`, or a dict with the labels in it."""
    if isinstance(batch, Mapping):
        named = [name for name in TARGETS if name in batch]
        if len(named) != 1 or len(batch) < 2:
            raise ValueError(f"collate_fn must give inputs and labels, got a dict of {', '.join(map(str, batch))}")
        return {name: one for name, one in batch.items() if name != named[0]}, batch[named[0]]
    if not isinstance(batch, (tuple, list)) or len(batch) < 2:
        raise ValueError(f"collate_fn must give a pair (x, y) of arrays, got {type(batch).__name__}")
    return (batch[0] if len(batch) == 2 else tuple(batch[:-1])), batch[-1]


def _named(which: str, given: str | None, usual: Sequence[str], known: Sequence[str]) -> str:
    if given is not None:
        return given
    found = [name for name in usual if name in known]
    if len(found) != 1:
        raise ValueError(
            f"which of the columns {', '.join(map(str, known))} is {which}? "
            f"Give fedlada.data.columns(dataset, x=..., y=...)"
        )
    return found[0]


def _column(dataset: Any, name: str) -> Any:
    """One column of a table; images of Pillow become bytes."""
    values = list(dataset[name])
    if values and comes_from(values[0], "PIL"):
        values = [np.asarray(image) for image in values]
    return as_tensor(f"the column {name!r}", values)


def _columns_of_frame(frame: Any, x: str | Sequence[str] | None, y: str | None) -> tuple[Any, Any]:
    known = list(frame.columns)
    target = _named("y", y, TARGETS, known)
    features = [name for name in known if name != target] if x is None else [x] if isinstance(x, str) else list(x)
    if missing := [name for name in (*features, target) if name not in known]:
        raise ValueError(f"there is no column {missing[0]!r}; there are {', '.join(map(str, known))}")
    return frame[features], frame[target]
