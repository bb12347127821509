"""A user's data behind one small interface: NumPy or torch arrays, or a map-style torch `Dataset`."""

from __future__ import annotations

import copy
import hashlib
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves, tree_map
from torch.utils.data import Dataset, IterableDataset, default_collate

from fedlada.data.given import (
    Arrays,
    Collate,
    as_tensor,
    check_alike,
    check_one_target,
    class_names_of,
    collated,
    items,
    readable,
    targets_of,
)
from fedlada.federation.randomness import Ints, Words, the_same_randomness

CHECKED_AT_ONCE = 2**22
"""Numbers that are checked for NaN and infinity at once."""


class NoSamples(ValueError):
    """Data without a sample; the text holds nothing of them."""


class Samples(ABC):
    """Numbered samples that can be fetched in batches, on the device that trains."""

    class_names: tuple[str, ...] = ()
    """The names of the classes 0, 1, ..., if the data have them."""

    @abstractmethod
    def __len__(self) -> int:
        """How many samples there are."""

    @abstractmethod
    def batch(self, indices: Ints, words: Words | None = None) -> tuple[Any, Any]:
        """The inputs and targets of these samples.

        In training `words` holds a random word for each of them, from which augmentation follows; without words
        nothing is random.
        """

    @abstractmethod
    def labels(self) -> np.ndarray[Any, Any]:
        """The target of every sample, as partitions by class need them."""

    def with_inputs(self, dtype: torch.dtype) -> Samples:
        """The same with integer inputs converted to another type; other inputs are unchanged."""
        return self

    def chosen(self, rows: Ints) -> Samples:
        """The samples with these numbers, in this order, some perhaps several times; itself where it is all of them."""
        return self if _is_all(rows, len(self)) else ChosenSamples(self, rows)

    def digest(self) -> str:
        """A fingerprint of these samples: their number, and a few of them."""
        chosen = some_of(len(self))
        with the_same_randomness():  # a user's data set may flip its images when they are read
            x, y = self.batch(chosen)
        leaves = tree_leaves((x, y))
        parts = [one.cpu().numpy().tobytes() if isinstance(one, Tensor) else repr(one).encode() for one in leaves]
        return hashlib.sha256(str(len(self)).encode() + b"".join(parts)).hexdigest()


def some_of(num_samples: int) -> Ints:
    """The numbers of the few samples that a digest reads: twenty, evenly spread."""
    return np.linspace(0, num_samples - 1, num=min(20, num_samples), dtype=np.int64)


class Placeable(ABC):
    """Data that knows how it becomes `Samples` on a device."""

    @abstractmethod
    def samples(self, device: torch.device, dtype: torch.dtype) -> Samples:
        """The samples there, in that precision."""


class ArraySamples(Samples):
    """Samples held in memory, on the device: batches are gathered there."""

    def __init__(
        self, x: Any, y: Any, device: torch.device, dtype: torch.dtype, class_names: Sequence[str] = ()
    ) -> None:
        self.class_names, self.dtype = tuple(class_names), dtype
        self.x: Any = _inputs_on_device(x, device, dtype)
        check_one_target(self.x, y)
        self.y = _on_device("y", y, device, dtype)
        for one in tree_leaves(self.x):
            if one.ndim == 0 or self.y.ndim == 0 or len(one) != len(self.y):
                raise ValueError(
                    f"x and y must have one row per sample, got shapes {tuple(one.shape)} and {tuple(self.y.shape)}"
                )
        if len(self.y) == 0:
            raise NoSamples("there are no samples: x and y are empty")
        if not self.y.is_floating_point():
            self.y = self.y.long()

    def __len__(self) -> int:
        return len(self.y)

    def batch(self, indices: Ints, words: Words | None = None) -> tuple[Any, Tensor]:
        rows = torch.from_numpy(indices).to(self.y.device, non_blocking=True)
        # Shifted by one bit, a word fits into a signed integer, as tensors need it.
        draws = None if words is None else torch.from_numpy((words >> 1).astype(np.int64)).to(self.y.device)
        return self.take(rows, draws)

    def take(self, rows: Tensor, draws: Tensor | None = None) -> tuple[Any, Tensor]:
        """The samples `[N]` in the order of `rows`, all on the device; `draws` are their random words (63 bits)."""
        # index_select is a plain gather; indexing with brackets is slower and more general.
        if isinstance(self.x, Tensor):
            return self.x.index_select(0, rows), self.targets(rows)
        return tree_map(lambda one: one.index_select(0, rows), self.x), self.targets(rows)

    def targets(self, rows: Tensor) -> Tensor:
        """The targets of these samples."""
        return self.y.index_select(0, rows)

    def labels(self) -> np.ndarray[Any, Any]:
        return self.y.cpu().numpy()

    def with_inputs(self, dtype: torch.dtype) -> Samples:
        changed = copy.copy(self)
        changed.x = tree_map(lambda one: one if one.is_floating_point() else one.to(dtype), self.x)
        return changed

    def chosen(self, rows: Ints) -> Samples:
        return self if _is_all(rows, len(self)) else ChosenOnDevice(self, rows)

    def held(self, number: int | None = None) -> tuple[Any, Tensor]:
        """The inputs and targets of the first samples, by default of all, as they are held in memory."""
        return tree_map(lambda one: one[:number], self.x), self.y[:number]


class ChosenOnDevice(ArraySamples):
    """A subset of samples on the device: gathered from there, never copied as a whole."""

    def __init__(self, samples: ArraySamples, rows: Ints) -> None:
        self.samples, self.x, self.y, self.dtype = samples, samples.x, samples.y, samples.dtype
        self.places = torch.from_numpy(rows).to(samples.y.device)

    def __len__(self) -> int:
        return len(self.places)

    def take(self, rows: Tensor, draws: Tensor | None = None) -> tuple[Any, Tensor]:
        return self.samples.take(self.places.index_select(0, rows), draws)

    def targets(self, rows: Tensor) -> Tensor:
        return self.samples.targets(self.places.index_select(0, rows))

    def labels(self) -> np.ndarray[Any, Any]:
        return np.take(self.samples.labels(), self.places.cpu().numpy(), axis=0)

    def with_inputs(self, dtype: torch.dtype) -> Samples:
        changed = self.samples.with_inputs(dtype)
        assert isinstance(changed, ArraySamples)
        return ChosenOnDevice(changed, self.places.cpu().numpy())

    def chosen(self, rows: Ints) -> Samples:
        return self.samples.chosen(self.places.cpu().numpy()[rows])

    def held(self, number: int | None = None) -> tuple[Any, Tensor]:
        rows = self.places[:number]
        return tree_map(lambda one: one.index_select(0, rows), self.x), self.y.index_select(0, rows)


class ChosenSamples(Samples):
    """A subset of other samples, read from there."""

    def __init__(self, samples: Samples, rows: Ints) -> None:
        self.samples, self.rows = samples, rows

    def __len__(self) -> int:
        return len(self.rows)

    def batch(self, indices: Ints, words: Words | None = None) -> tuple[Any, Any]:
        return self.samples.batch(self.rows[indices], words)

    def labels(self) -> np.ndarray[Any, Any]:
        return self.samples.labels()[self.rows]

    def with_inputs(self, dtype: torch.dtype) -> Samples:
        return ChosenSamples(self.samples.with_inputs(dtype), self.rows)


def _is_all(rows: Ints, num_samples: int) -> bool:
    return np.array_equal(rows, np.arange(num_samples))


class DatasetSamples(Samples):
    """Samples read one by one from a torch `Dataset`, which need not fit in memory."""

    def __init__(self, dataset: Dataset[Any], device: torch.device, dtype: torch.dtype) -> None:
        self.dataset = _map_style(dataset)
        self.device = device
        self.dtype = dtype
        self.inputs: torch.dtype | None = None
        """The type that integer inputs are converted to; None leaves them unchanged."""
        self.class_names = class_names_of(dataset)

    def __len__(self) -> int:
        return len(self.dataset)

    def batch(self, indices: Ints, words: Words | None = None) -> tuple[Any, Any]:
        found = items(self.dataset, indices.tolist())
        if not isinstance(found[0], (tuple, list)) or len(found[0]) != 2:
            raise ValueError(
                f"each item of the dataset must be a pair (x, y), got {type(found[0]).__name__}: several inputs are a "
                "tuple or a dict in the place of x; fedlada.data.columns and collate_fn= make pairs of other samples"
            )
        try:
            x, y = default_collate([tuple(item) for item in found])
        except (RuntimeError, TypeError) as error:
            check_alike(found)
            raise ValueError(f"the samples cannot be joined into a batch ({error}): give collate_fn=") from None
        x, y = self._placed(x, self.inputs), self._placed(y)
        # Cross-entropy takes class indices of any integer type; other integers keep the user's type.
        is_class = isinstance(y, Tensor) and y.ndim == 1 and not y.is_floating_point()
        return x, (y.long() if is_class else y)

    def labels(self) -> np.ndarray[Any, Any]:
        targets = targets_of(self.dataset)
        if targets is None:  # reads everything once: the price of a partition by class without `targets`
            targets = np.asarray([self.dataset[index][1] for index in range(len(self))])
        return targets

    def with_inputs(self, dtype: torch.dtype) -> Samples:
        changed = copy.copy(self)
        changed.inputs = dtype
        return changed

    def _placed(self, value: Any, whole: torch.dtype | None = None) -> Any:
        if isinstance(value, Tensor):
            value = value.detach()  # data are constants
            return value.to(self.device, self.dtype if value.is_floating_point() else whole, non_blocking=True)
        if isinstance(value, dict):
            return {name: self._placed(item, whole) for name, item in value.items()}
        if isinstance(value, Sequence) and not isinstance(value, str):
            return [self._placed(item, whole) for item in value]
        return value


def as_samples(data: Any, device: torch.device, dtype: torch.dtype, collate_fn: Collate | None = None) -> Samples:
    """The given data as `Samples`: an `(x, y)` pair of arrays or tensors, a torch `Dataset`, or `Samples` already.

    With a `collate_fn`, or one that the data set has, all samples are collated once and lie in memory.
    """
    if isinstance(data, Samples):
        return data
    data = readable(data, one_by_one=collate_fn is not None)
    if isinstance(data, Dataset) and (collate := collate_fn or getattr(data, "collate_fn", None)):
        data = collated(_map_style(data), collate)
    if isinstance(data, Arrays):
        return ArraySamples(data.x, data.y, device, dtype, data.class_names)
    if isinstance(data, Placeable):
        return data.samples(device, dtype)
    if isinstance(data, Dataset):
        return DatasetSamples(data, device, dtype)
    raise ValueError(
        f"data must be an (x, y) pair of arrays or a torch Dataset, got {type(data).__name__}"
        + (f" of {len(data)} items" if isinstance(data, (tuple, list)) else "")
        + (": samples that are dicts need collate_fn=, or fedlada.data.columns" if _are_dicts(data) else "")
    )


def _are_dicts(data: Any) -> bool:
    return isinstance(data, list) and bool(data) and all(isinstance(one, Mapping) for one in data)


def _map_style(dataset: Any) -> Any:
    if isinstance(dataset, IterableDataset) or not hasattr(dataset, "__len__"):
        raise ValueError("the dataset must be map-style (with __len__ and __getitem__), not a stream")
    if len(dataset) == 0:
        raise NoSamples("there are no samples: the dataset is empty")
    return dataset


def _inputs_on_device(x: Any, device: torch.device, dtype: torch.dtype) -> Any:
    """One input, several in a dict by the model's names for them, or a tuple of them."""
    if isinstance(x, Mapping):
        return {name: _on_device(f"x[{name!r}]", one, device, dtype) for name, one in x.items()}
    if isinstance(x, tuple) and x and all(isinstance(one, (Tensor, np.ndarray)) and one.ndim for one in x):
        return tuple(_on_device(f"x[{number}]", one, device, dtype) for number, one in enumerate(x))
    return _on_device("x", x, device, dtype)


def _on_device(name: str, values: Any, device: torch.device, dtype: torch.dtype) -> Tensor:
    tensor = as_tensor(name, values)
    if tensor.is_complex():
        raise ValueError(f"{name} holds complex numbers")
    if not tensor.is_floating_point():
        return tensor.to(device)
    placed = tensor.to(device, dtype)
    _check_finite(name, placed, tensor)
    return placed


def _check_finite(name: str, tensor: Tensor, given: Tensor) -> None:
    """Refuse NaN and infinity, in parts: for a whole array torch needs more memory than the array itself."""
    if tensor.ndim == 0 or tensor.numel() == 0:
        return
    rows = max(1, CHECKED_AT_ONCE // tensor[0].numel())
    for number, part in enumerate(torch.split(tensor, rows)):
        if not part.isfinite().all():
            row = number * rows + int((~part.reshape(len(part), -1).isfinite()).any(dim=1).nonzero()[0])
            if given[row].isfinite().all():
                kind = str(tensor.dtype).removeprefix("torch.")
                raise ValueError(f"{name} holds a number in row {row} that is too large for {kind}: scale {name} down")
            raise ValueError(f"{name} holds a NaN or an infinity in row {row}")
