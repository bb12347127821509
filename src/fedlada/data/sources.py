"""Data sets by name."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from fedlada.data import plays
from fedlada.data.archives import OFFICIAL
from fedlada.data.augment import Augmentation
from fedlada.data.by_client import pooled
from fedlada.data.cifar import CIFAR100_GROUPS, load_cifar
from fedlada.data.digits import load_digits
from fedlada.data.given import readable
from fedlada.data.idx import load_idx
from fedlada.data.image_folder import Progress, load_image_folder, load_tiny_imagenet
from fedlada.data.images import STANDARDIZE, Bytes, Images, are_images, channel_statistics
from fedlada.data.leaf import load_leaf
from fedlada.data.npz import read_npz
from fedlada.data.own import divided, is_own_data, named_data
from fedlada.data.paths import user_path
from fedlada.data.source import Source
from fedlada.data.text import NUM_CHARACTERS, SPACING, WINDOW, load_docstrings
from fedlada.federation.randomness import Ints
from fedlada.methods.imported import check_written
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


def _own(name: str, reading: Reading) -> Source:
    reading.without_augmentation(name)
    if reading.data_dir is not None:
        raise ValueError("--data-dir has no effect on data of your own function: leave it out")
    found = named_data(name)
    if found.client_test is not None:
        raise ValueError(f"the data {name!r} have test data by client: hold out a share, --client-test 0.2")
    train, partition = divided(found.train, found.partition)
    test = None if found.test is None else readable(pooled(found.test))
    return Source(train, test, num_classes=0, input_shape=(), partition=partition)


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


def check_data_name(name: str) -> None:
    """Refuse anything but a data set's name or `package.module:function`; import nothing."""
    if is_own_data(name):
        check_written("data", name)
    else:
        one_of("dataset", name, tuple(DATASETS))


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
    """A data set by the name that `--dataset` takes: `train` and `test` go into `simulate` as they are.

    A name such as `package.module:function` is that of a user's own function, which is imported.
    """
    check_data_name(name)
    one_of("augment", augment, tuple(AUGMENTATIONS))
    if image_size is not None:
        count("image_size", image_size)
    if image_size is not None and name != "folder":
        raise ValueError(f"image_size is for image folders; the images of {name} have their own size")
    if crop_size is not None:
        count("crop_size", crop_size)
    one_of("standardize", standardize, STANDARDIZE)
    reading = Reading(
        data_dir=None if data_dir is None else user_path("data_dir", data_dir),
        augment=augment,
        image_size=image_size,
        crop_size=crop_size,
        standardize=standardize,
        progress=progress,
    )
    return _own(name, reading) if is_own_data(name) else DATASETS[name](reading)
