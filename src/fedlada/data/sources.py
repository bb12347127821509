"""Data sets by name."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from fedlada.data import plays
from fedlada.data.archives import OFFICIAL
from fedlada.data.augment import Augmentation
from fedlada.data.cifar import CIFAR100_GROUPS, load_cifar
from fedlada.data.digits import load_digits
from fedlada.data.held_out import held_out, held_out_ends
from fedlada.data.idx import load_idx
from fedlada.data.image_folder import Progress, load_image_folder, load_tiny_imagenet
from fedlada.data.images import STANDARDIZE, Bytes, Images, are_images, channel_statistics
from fedlada.data.leaf import load_leaf
from fedlada.data.npz import read_npz
from fedlada.data.text import NUM_CHARACTERS, SPACING, WINDOW, load_docstrings
from fedlada.federation.randomness import Ints
from fedlada.methods.validation import count, one_of

AUGMENTATIONS = {"none": None, "authors": "half", "crop": "always"}
"""How often an image is cropped at random; both kinds also flip every second one."""

USUAL_PLACE = Path("data")
"""Where `fedlada data fetch` puts published data sets, and where they are looked for."""

Statistics = tuple[tuple[float, ...], tuple[float, ...]]

AUTHORS_STATISTICS: dict[str, Statistics] = {
    "cifar10": ((0.491, 0.482, 0.447), (0.247, 0.243, 0.262)),
    "cifar100": ((0.5071, 0.4867, 0.4408), (0.2675, 0.2565, 0.2761)),
    "tinyimagenet": ((0.5, 0.5, 0.5), (0.5, 0.5, 0.5)),
}
"""Mean and deviation of each channel as the authors of FedLADA take them; other data uses its training images' own."""


@dataclass(frozen=True, eq=False)
class Source:
    """A data set, ready to be divided among clients."""

    train: Any
    """An `(x, y)` pair or `Images`."""
    test: Any
    num_classes: int
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

    def labels(self, split: str) -> np.ndarray[Any, Any]:
        """The class of every sample of "train" or "test"."""
        data = self.train if split == "train" else self.test
        return np.asarray(data.y if isinstance(data, Images) else data[1])

    @property
    def has_classes(self) -> bool:
        """Whether the targets are class indices or labels, so that there is an accuracy."""
        return self.labels("train").dtype.kind in "biu"

    @property
    def is_text(self) -> bool:
        """Whether inputs are codes of characters."""
        return not isinstance(self.train, Images) and self.train[0].dtype.kind == "i"

    def names_of_clients(self) -> tuple[str, ...]:
        """The names of the clients that have training samples, where they have names."""
        assert self.client is not None
        return tuple(self.client_names[number] for number in np.unique(self.client)) if self.client_names else ()

    def with_class_names(self, names: Sequence[str]) -> Source:
        """The same images with the names of their classes."""
        train, test = (replace(data, class_names=tuple(names)) for data in (self.train, self.test))
        return replace(self, train=train, test=test, class_names=tuple(names))

    def holding_out(self, share: float) -> Source:
        """The same with a share of the training data as validation data; always the same samples.

        Of overlapping windows it is the end of each client's text.
        """
        if self.overlap and self.client is not None:
            rest, held = held_out_ends(self.client, share, overlap=self.overlap, every=self.sparse)
        else:
            rest, held = held_out(len(self.labels("train")), "validation split", share=share)
        if len(rest) == 0:
            raise ValueError(f"a validation share of {share:g} leaves no training data: take a smaller one")
        validation = _rows(self.train, held)
        if isinstance(validation, Images):
            validation = replace(validation, augmentation=None)
        client = None if self.client is None else self.client[rest]
        return replace(self, train=_rows(self.train, rest), validation=validation, client=client)


def _rows(data: Any, numbers: Ints) -> Any:
    """These samples of an `(x, y)` pair or of `Images`."""
    if isinstance(data, Images):
        return replace(data, x=data.x[numbers], y=data.y[numbers])
    return tuple(part[numbers] for part in data)


@dataclass(frozen=True, kw_only=True)
class Reading:
    """How a data set is to be read."""

    data_dir: Path | None = None
    augment: str = "none"
    image_size: int | None = None
    crop_size: int | None = None
    standardize: str = "channels"
    progress: Progress | None = None

    def place(self, name: str) -> Path:
        """The folder to read from; published data sets have one where they are looked for."""
        if self.data_dir is None and name in OFFICIAL:
            return USUAL_PLACE
        if self.data_dir is None:
            raise ValueError(f"{name} must be read from files: say where they lie with --data-dir")
        return self.data_dir

    def source(
        self, train: tuple[Bytes, Ints], test: tuple[Bytes, Ints], num_classes: int, statistics: Statistics
    ) -> Source:
        """Images as they are trained on: normalised, the training ones augmented."""
        channels, height, width = train[0].shape[1:]
        crop = AUGMENTATIONS[self.augment]
        # An eighth of the height: 4 pixels at 32x32 and 8 at 64x64, as the authors do. A smaller crop needs none.
        padding = max(1, height // 8) if self.crop_size is None else 0
        augmentation = None if crop is None else Augmentation(padding=padding, crop=crop)
        same: dict[str, Any] = {"crop_size": self.crop_size, "standardize": self.standardize}
        images = Images(*train, *statistics, augmentation, **same)
        shape = (height, width) if self.crop_size is None else (self.crop_size, self.crop_size)
        return Source(images, Images(*test, *statistics, **same), num_classes, (channels, *shape))

    def without_augmentation(self, name: str) -> None:
        """Refuse options that do not apply to this data set."""
        given = {
            "augment": self.augment != "none",
            "crop-size": self.crop_size is not None,
            "standardize": self.standardize != "channels",
        }
        flag = next((one for one, is_given in given.items() if is_given), None)
        if flag is not None:
            raise ValueError(f"{name} has no images in bytes to {flag.removesuffix('-size')}: leave --{flag} out")


def _digits(reading: Reading) -> Source:
    reading.without_augmentation("digits")
    train, test = load_digits()
    return Source(train, test, num_classes=10, input_shape=(1, 8, 8))


def _idx(name: str, reading: Reading) -> Source:
    folder = reading.place(name)
    # MNIST and Fashion-MNIST have files of the same names: only a folder that the user names is taken without its own.
    if reading.data_dir is None or (folder / name).is_dir():
        folder = folder / name
    train, test = (load_idx(folder, split) for split in ("train", "test"))
    return reading.source(train, test, 10, channel_statistics(train[0]))


def _cifar(name: str, num_classes: int, reading: Reading) -> Source:
    train, test = (load_cifar(reading.place(name), name, split) for split in ("train", "test"))
    source = reading.source(train, test, num_classes, AUTHORS_STATISTICS[name])
    return replace(source, class_groups=CIFAR100_GROUPS) if name == "cifar100" else source


def _tiny_imagenet(reading: Reading) -> Source:
    train, test, names = load_tiny_imagenet(reading.place("tinyimagenet"), progress=reading.progress)
    source = reading.source(
        (train.images, train.labels), (test.images, test.labels), len(names), AUTHORS_STATISTICS["tinyimagenet"]
    )
    return source.with_class_names(names)


def _folder(reading: Reading) -> Source:
    train, test, names = load_image_folder(
        reading.place("folder"), image_size=reading.image_size, progress=reading.progress
    )
    source = reading.source(
        (train.images, train.labels), (test.images, test.labels), len(names), (train.mean, train.std)
    )
    return source.with_class_names(names)


def _npz(reading: Reading) -> Source:
    (train, test), clients = read_npz(reading.place("npz"))
    is_class = train[1].dtype.kind == "i" and train[1].ndim == 1
    num_outputs = 1 + int(max(train[1].max(), test[1].max())) if is_class else train[1].shape[1]
    if are_images(train[0]):
        source = reading.source(train, test, num_outputs, channel_statistics(train[0]))
    else:
        reading.without_augmentation("npz")
        source = Source(train, test, num_outputs, train[0].shape[1:])
    return replace(source, client=clients.train, test_client=clients.test, client_names=clients.names)


def _leaf(reading: Reading) -> Source:
    reading.without_augmentation("leaf")
    train, test, names = load_leaf(reading.place("leaf"))
    is_text, is_class = train.x.dtype.kind == "i", train.y.dtype.kind == "i"
    num_classes = 1 + int(max(train.y.max(), test.y.max())) if is_class else 1
    return Source(
        (train.x, train.y),
        (test.x, test.y),
        NUM_CHARACTERS if is_text else num_classes,
        train.x.shape[1:],
        client=train.client,
        client_names=tuple(names),
        test_client=test.client,
    )


def _docstrings(reading: Reading) -> Source:
    reading.without_augmentation("docstrings")
    train, test, modules = load_docstrings()
    return Source(
        (train.x, train.y),
        (test.x, test.y),
        num_classes=NUM_CHARACTERS,
        input_shape=(WINDOW,),
        client=train.client,
        client_names=tuple(modules),
        test_client=test.client,
        overlap=WINDOW // SPACING,
    )


def _shakespeare(reading: Reading) -> Source:
    reading.without_augmentation("shakespeare")
    train, test, roles = plays.load_shakespeare(reading.place("shakespeare"))
    return Source(
        (train.x, train.y),
        (test.x, test.y),
        num_classes=NUM_CHARACTERS,
        input_shape=(plays.WINDOW,),
        client=train.client,
        client_names=tuple(roles),
        test_client=test.client,
        overlap=plays.WINDOW // plays.TRAIN_SPACING,
        sparse=plays.TEST_SPACING // plays.TRAIN_SPACING,
    )


DATASETS: dict[str, Callable[[Reading], Source]] = {
    "digits": _digits,
    "mnist": partial(_idx, "mnist"),
    "fashion-mnist": partial(_idx, "fashion-mnist"),
    "cifar10": partial(_cifar, "cifar10", 10),
    "cifar100": partial(_cifar, "cifar100", 100),
    "tinyimagenet": _tiny_imagenet,
    "folder": _folder,
    "npz": _npz,
    "leaf": _leaf,
    "docstrings": _docstrings,
    "shakespeare": _shakespeare,
}
"""How to load each data set."""
CONTENT_BY_NAME = frozenset({"digits", "mnist", "fashion-mnist", "cifar10", "cifar100", "tinyimagenet"})
"""Published data sets: two people who name one have the same samples, in whatever order.

The others are whatever a user, or the Python that runs, has under that name.
"""


def load_dataset(
    name: str,
    data_dir: str | Path | None = None,
    *,
    augment: str = "none",
    image_size: int | None = None,
    crop_size: int | None = None,
    standardize: str = "channels",
    progress: Progress | None = None,
) -> Source:
    """A data set by the name that `--dataset` takes: `train` and `test` go into `simulate` as they are."""
    one_of("dataset", name, tuple(DATASETS))
    one_of("augment", augment, tuple(AUGMENTATIONS))
    if image_size is not None:
        count("image_size", image_size)
    if image_size is not None and name != "folder":
        raise ValueError(f"image_size is for image folders; the images of {name} have their own size")
    if crop_size is not None:
        count("crop_size", crop_size)
    one_of("standardize", standardize, STANDARDIZE)
    reading = Reading(
        data_dir=None if data_dir is None else Path(data_dir),
        augment=augment,
        image_size=image_size,
        crop_size=crop_size,
        standardize=standardize,
        progress=progress,
    )
    return DATASETS[name](reading)
