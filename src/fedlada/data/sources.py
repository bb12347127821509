"""Data sets by name."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from fedlada.data.cifar import load_cifar
from fedlada.data.digits import load_digits
from fedlada.data.idx import load_idx
from fedlada.data.images import Images, channel_statistics


@dataclass(frozen=True, eq=False)
class Source:
    """A data set, ready to be divided among clients."""

    train: Any
    """An `(x, y)` pair or `Images`."""
    test: Any
    num_classes: int
    input_shape: tuple[int, ...]

    def labels(self, split: str) -> np.ndarray[Any, Any]:
        """The class of every sample of "train" or "test"."""
        data = self.train if split == "train" else self.test
        return np.asarray(data.y if isinstance(data, Images) else data[1])


def _digits(_: str | None) -> Source:
    train, test = load_digits()
    return Source(train, test, num_classes=10, input_shape=(1, 8, 8))


def _images(name: str, load: Callable[[Path, str], tuple[Any, Any]], num_classes: int, data_dir: str | None) -> Source:
    """Normalised by the training images' own statistics."""
    if data_dir is None:
        raise ValueError(f"{name} must be read from a folder: say where it lies with --data-dir")
    (x, y), (x_test, y_test) = (load(Path(data_dir), split) for split in ("train", "test"))
    mean, std = channel_statistics(x)
    return Source(Images(x, y, mean, std), Images(x_test, y_test, mean, std), num_classes, x.shape[1:])


DATASETS: dict[str, Callable[[str | None], Source]] = {
    "digits": _digits,
    "mnist": partial(_images, "mnist", load_idx, 10),
    "fashion-mnist": partial(_images, "fashion-mnist", load_idx, 10),
    "cifar10": partial(_images, "cifar10", lambda folder, split: load_cifar(folder, "cifar10", split), 10),
    "cifar100": partial(_images, "cifar100", lambda folder, split: load_cifar(folder, "cifar100", split), 100),
}
"""How to load each data set from a folder (None where it ships with a package)."""
