"""A data set that is ready to be divided among clients."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch.utils._pytree import tree_leaves
from torch.utils.data import Dataset

from fedlada.data.given import Arrays, as_tensor
from fedlada.data.held_out import held_out, held_out_ends
from fedlada.data.images import Images
from fedlada.data.own import first_of, labels_of, remaining, rows_of, size_of
from fedlada.data.samples import as_samples, some_of
from fedlada.federation.partition import Partition
from fedlada.federation.randomness import Ints


@dataclass(frozen=True, eq=False)
class Source:
    """A data set, ready to be divided among clients."""

    train: Any
    """An `(x, y)` pair or `Images`; of a user's own function also `Arrays` or a torch `Dataset`."""
    test: Any
    num_classes: int
    """0 for those of a user's own function, which are not read for it."""
    input_shape: tuple[int, ...]
    client: Ints | None = None
    """The natural client of each training sample, if the data have one."""
    class_groups: tuple[int, ...] | None = None
    """The group of each class, if classes have groups."""
    validation: Any = None
    """Training samples held out, like `train` but never augmented."""
    class_names: tuple[str, ...] = ()
    client_names: tuple[str, ...] = ()
    """The names of the clients 0, 1, ... of `client`."""
    test_client: Ints | None = None
    """The number of the client that each test sample belongs to, or -1, where that is known."""
    overlap: int = 0
    """Windows of a client's text that share characters with the one before them; 0 where samples share nothing."""
    sparse: int = 1
    """Of so many windows one is held out, where they overlap."""
    partition: Partition | None = None
    """The clients that come with data of a user's own function."""

    def labels(self, split: str) -> np.ndarray[Any, Any]:
        """The class of every sample of "train" or "test"."""
        data = self.train if split == "train" else self.test
        if isinstance(data, (Images, tuple)):
            return np.asarray(data.y if isinstance(data, Images) else data[1])
        return labels_of(data)

    @property
    def num_samples(self) -> int:
        """The number of training samples."""
        return len(self.train[1]) if isinstance(self.train, tuple) else size_of(self.train)

    @property
    def has_classes(self) -> bool:
        """Whether the targets are class indices or labels, so that there is an accuracy."""
        if isinstance(self.train, (Images, tuple)):
            return self.labels("train").dtype.kind in "biu"
        return not getattr(first_of(self.train)[1], "dtype", torch.float32).is_floating_point

    @property
    def is_text(self) -> bool:
        """Whether inputs are codes of characters."""
        return isinstance(self.train, tuple) and self.train[0].dtype.kind == "i"

    def with_shapes(self) -> Source:
        """The same with the numbers that a built-in model needs; a user's own data are read for them."""
        if self.num_classes:
            return self
        x, _ = first_of(self.train)
        if not isinstance(x, torch.Tensor):
            raise ValueError("built-in models take one array: name a model of your own, --model package.module:factory")
        labels = [self.labels(split) for split in ("train", "test") if getattr(self, split) is not None]
        is_class = labels[0].dtype.kind in "iu" and labels[0].ndim == 1
        outputs = 1 + int(max(one.max() for one in labels)) if is_class else int(np.prod(labels[0].shape[1:]))
        return replace(self, num_classes=outputs, input_shape=tuple(x.shape[1:]))

    def names_of_clients(self) -> tuple[str, ...]:
        """The names of the clients that have training samples, where they have names."""
        assert self.client is not None
        return tuple(self.client_names[number] for number in np.unique(self.client)) if self.client_names else ()

    def with_class_names(self, names: Sequence[str]) -> Source:
        """The same images with the names of their classes."""
        train, test = (replace(data, class_names=tuple(names)) for data in (self.train, self.test))
        return replace(self, train=train, test=test, class_names=tuple(names))

    def digest(self, split: str) -> str:
        """A digest of "train", "test" or "validation": the number of samples, and a few of them as they are stored.

        It is the same on every device, and reads no more than these few.
        """
        return _digest(getattr(self, split))

    def holding_out(self, share: float) -> Source:
        """The same with a share of the training data as validation data; always the same samples.

        Of overlapping windows it is the end of each client's text.
        """
        if self.overlap and self.client is not None:
            rest, held = held_out_ends(self.client, share, overlap=self.overlap, every=self.sparse)
        else:
            rest, held = held_out(self.num_samples, "validation split", share=share)
        if len(rest) == 0:
            raise ValueError(f"a validation share of {share:g} leaves no training data: take a smaller one")
        validation = _rows(self.train, held)
        if isinstance(validation, Images):
            validation = replace(validation, augmentation=None)
        client = None if self.client is None else self.client[rest]
        partition = remaining(self.partition, rest, self.num_samples)
        return replace(self, train=_rows(self.train, rest), validation=validation, client=client, partition=partition)


def _digest(data: Any) -> str:
    number = len(data[1] if isinstance(data, tuple) else data.y if isinstance(data, Arrays) else data)
    few = _rows(data, some_of(number))
    if isinstance(few, Dataset):
        parts = [as_samples(few, torch.device("cpu"), torch.float64).digest()]
    else:
        leaves = tree_leaves(few if isinstance(few, tuple) else (few.x, few.y))
        parts = [_content(as_tensor("the data", one).cpu()) for one in leaves]
    if isinstance(data, Images):  # their own mean and deviation may differ in the last bits on another machine
        parts += [f"{value:.6g}" for value in (*data.mean, *data.std)]
    return hashlib.sha256(" ".join([str(number), *parts]).encode()).hexdigest()


def _content(values: torch.Tensor) -> str:
    values = values.double() if values.is_floating_point() else values
    return f"{tuple(values.shape)} {hashlib.sha256(values.numpy().tobytes()).hexdigest()}"


def _rows(data: Any, numbers: Ints) -> Any:
    """These samples of an `(x, y)` pair or of `Images`."""
    if isinstance(data, Images):
        return replace(data, x=data.x[numbers], y=data.y[numbers])
    return tuple(part[numbers] for part in data) if isinstance(data, tuple) else rows_of(data, numbers)
