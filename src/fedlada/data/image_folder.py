"""Image folders with one folder per class; and TinyImageNet, whose official folder is similar."""

from __future__ import annotations

import hashlib
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path

import numpy as np

from fedlada.data.cache import Decoded, open_or_build
from fedlada.data.held_out import held_out
from fedlada.data.image_file import Faults, is_grey, read_image, upright_size
from fedlada.data.images import Bytes
from fedlada.federation.randomness import Ints

Progress = Callable[[str, int, int], None]
"""A progress callback: the task, the amount done and the total."""

Say = Callable[[str], None]
"""A callback for one message to the user."""

SUFFIXES = (".jpeg", ".jpg", ".png", ".bmp", ".webp", ".ppm", ".pgm", ".gif", ".tif", ".tiff")
UNREAD = (".svg", ".heic", ".heif", ".avif", ".jp2", ".ico", ".psd", ".eps", ".pdf", ".jfif", ".tga", ".dcm", ".npy")
"""Image file types that are not read."""
TINY = "tiny-imagenet-200"


def say_on_standard_error(text: str) -> None:
    """Print one line in the style of the command line."""
    print(f"fedlada: {text}", file=sys.stderr)


@dataclass(frozen=True)
class Listing:
    """The image files of a split, in a fixed order, with the number of the class of each."""

    files: list[str]
    labels: Ints
    left_out: tuple[str, ...] = ()
    """Images in folders inside those of the classes, and files of types that are not read."""

    def part(self, chosen: Ints) -> Listing:
        """Some of the files."""
        return Listing([self.files[int(one)] for one in chosen], self.labels[chosen])


def load_image_folder(
    folder: str | Path,
    *,
    image_size: int | None = None,
    progress: Progress | None = None,
    say: Say = say_on_standard_error,
) -> tuple[Decoded, Decoded, list[str]]:
    """The training and test images and the classes' names of `FOLDER/train/CLASS/*` and `FOLDER/test/CLASS/*`.

    `val` will do for `test`. Where there are only class folders, a sixth of the images, always the same, is the test
    set. `image_size` scales the shorter side and cuts the middle; without it all images must have one size.
    Files that are left out are counted and reported to `say` when the images are decoded for the first time.
    """
    folder = Path(folder)
    if not folder.is_dir():
        raise ValueError(f"there is no folder {folder}: an image folder holds train/CLASS/*.png and test/CLASS/*.png")
    if (folder / "train").is_dir():
        test_folder = next((folder / name for name in ("test", "val") if (folder / name).is_dir()), None)
        if test_folder is None:
            raise ValueError(f"{folder} has a folder train, but neither test nor val beside it")
        names = _class_names(folder / "train")
        train, test = _list_classes(folder / "train", names), _list_classes(test_folder, names)
    else:
        names = _class_names(folder)
        everything = _list_classes(folder, names)
        train, test = (everything.part(own) for own in held_out(len(everything.files), "image folder test split"))
        train = replace(train, left_out=everything.left_out)
    if not train.files or not test.files:
        raise ValueError(
            f"{folder} holds {len(train.files)} training and {len(test.files)} test images: both are needed"
        )

    @cache
    def shape() -> tuple[int, ...]:  # reads every header: only where a cache is built
        _say_left_out(folder, (*train.left_out, *test.left_out), say)
        return _common_shape(train, test, image_size)

    fingerprint = _fingerprint(folder, image_size, train, test)  # both splits decide the shape
    decoded = (
        _decode(folder, split, listing, fingerprint, shape, image_size, progress)
        for split, listing in (("train", train), ("test", test))
    )
    return *decoded, names  # type: ignore[return-value]


def load_tiny_imagenet(data_dir: str | Path, *, progress: Progress | None = None) -> tuple[Decoded, Decoded, list[str]]:
    """TinyImageNet from its official folder; the test set is `val`, because `test` has no labels."""
    data_dir = Path(data_dir)
    folder = data_dir if TINY in (data_dir.name, data_dir.resolve().name) else data_dir / TINY
    wnids = folder / "wnids.txt"
    if not wnids.is_file():
        raise ValueError(
            f"there is no {folder / 'wnids.txt'}: "
            f"fedlada data fetch tinyimagenet --data-dir {data_dir} brings the official archive; "
            "--data-dir says where it lies"
        )
    names = sorted(_text(wnids).split())
    if not names:
        raise ValueError(f"{wnids} names no classes")
    missing = [name for name in names if not (folder / "train" / name).is_dir()]
    if missing:
        raise ValueError(
            f"{folder / 'train'} has no folder for the class {missing[0]}, which wnids.txt names "
            f"({len(missing)} of {len(names)} are missing): unpack the archive again"
        )
    train = _list_classes(folder / "train", names, inside="images")
    test = _list_annotated(folder / "val", names)
    shape = (3, 64, 64)
    decoded = (
        _decode(folder, split, listing, _fingerprint(folder, shape, listing), lambda: shape, None, progress)
        for split, listing in (("train", train), ("test", test))
    )
    return *decoded, names  # type: ignore[return-value]


def _class_names(folder: Path) -> list[str]:
    names = sorted(entry.name for entry in os.scandir(folder) if entry.is_dir() and not entry.name.startswith("."))
    if not names:
        raise ValueError(f"{folder} has no class folders: each class needs a folder with its images")
    return names


def _list_classes(folder: Path, names: Sequence[str], inside: str = "") -> Listing:
    """All images below the folders of the classes; a class without images is named."""
    files: list[str] = []
    labels: list[int] = []
    left_out: list[str] = []
    unknown = sorted(set(_class_names(folder)) - set(names))
    if unknown:
        raise ValueError(f"{folder} has a folder {unknown[0]!r}, which is not one of the {len(names)} classes")
    for label, name in enumerate(names):
        place = folder / name / inside
        if not place.is_dir():
            raise ValueError(f"there is no folder {place}: the class {name!r} is missing")
        own = sorted(entry.path for entry in os.scandir(place) if _is_image(entry))
        left_out += _left_out(place)
        if not own:
            raise ValueError(f"{place} holds no images: the class {name!r} is empty")
        files += own
        labels += [label] * len(own)
    return Listing(files, np.array(labels, dtype=np.int64), tuple(left_out))


def _left_out(place: Path) -> list[str]:
    """Files of a class's folder that are not read, but may have been intended as images."""
    found = []
    for entry in os.scandir(place):
        if entry.name.startswith("."):
            continue
        if entry.is_dir():
            inside = (Path(one, name) for one, _, names in os.walk(entry.path) for name in names)
            found += [str(path) for path in inside if path.suffix.lower() in (*SUFFIXES, *UNREAD)]
        elif Path(entry.name).suffix.lower() in UNREAD:
            found.append(entry.path)
    return found


def _say_left_out(folder: Path, files: Sequence[str], say: Say) -> None:
    if not files:
        return
    unread = [file for file in files if Path(file).suffix.lower() in UNREAD]
    counts = {"images in folders inside the classes": len(files) - len(unread), "files of unread types": len(unread)}
    counted = " and ".join(f"{number} {words}" for words, number in counts.items() if number)
    say(f"{folder}: left out are {counted}, such as {min(files)}")


def _list_annotated(folder: Path, names: Sequence[str]) -> Listing:
    """TinyImageNet's validation images, whose classes stand in a table beside them."""
    table = folder / "val_annotations.txt"
    if not table.is_file():
        raise ValueError(f"there is no {table}: it says the class of each validation image")
    numbers = {name: number for number, name in enumerate(names)}
    there = {entry.name for entry in os.scandir(folder / "images")} if (folder / "images").is_dir() else set()
    files, labels = [], []
    for number, line in enumerate(_text(table).splitlines(), start=1):
        file, _, rest = line.partition("\t")
        name = rest.partition("\t")[0]
        if name not in numbers:
            raise ValueError(f"{table}, line {number}: {name!r} is not a class of wnids.txt")
        if file not in there:
            raise ValueError(f"{table}, line {number}: there is no {folder / 'images' / file}")
        files.append(str(folder / "images" / file))
        labels.append(numbers[name])
    if not files:
        raise ValueError(f"{table} names no images")
    return Listing(files, np.array(labels, dtype=np.int64))


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except UnicodeDecodeError:
        raise ValueError(f"{path} is damaged: it is not a text") from None


def _is_image(entry: os.DirEntry[str]) -> bool:
    return entry.name.lower().endswith(SUFFIXES) and entry.name[0] != "." and entry.is_file()


def _common_shape(train: Listing, test: Listing, image_size: int | None) -> tuple[int, ...]:
    """The shape of all images of both splits: as large as the first training image, grey only if all are."""
    faults = Faults()
    colours = [faults.none_in(is_grey, file) for file in (*train.files, *test.files)]
    faults.refuse()
    # From one that can be read; the others are reported when all are decoded.
    sizes = ((image_size, image_size),) if image_size else (faults.none_in(upright_size, file) for file in train.files)
    width, height = next((size for size in sizes if size is not None), (1, 1))
    return (1 if all(colours) else 3, height, width)


def _decode(
    folder: Path,
    split: str,
    listing: Listing,
    fingerprint: str,
    shape: Callable[[], tuple[int, ...]],
    image_size: int | None,
    progress: Progress | None,
) -> Decoded:
    def images(shape: tuple[int, ...]) -> Iterator[Bytes]:
        faults, nothing = Faults(), np.zeros(shape, dtype=np.uint8)
        for number, file in enumerate(listing.files):
            image = faults.none_in(read_image, file, shape, image_size)
            yield nothing if image is None else image
            if progress is not None and (number % 500 == 499 or number + 1 == len(listing.files)):
                progress(f"decoding {split} images", number + 1, len(listing.files))
        faults.refuse()  # the unfinished cache is removed

    name = split if image_size is None else f"{split}-{image_size}"
    return open_or_build(folder, name, fingerprint, listing.labels, shape, images)


def _fingerprint(folder: Path, shape: object, *listings: Listing) -> str:
    """A digest of all that a cache depends on: each file's name, size, time and class, and the shape."""
    digest = hashlib.sha256(repr(shape).encode())
    # os.path.relpath would take longer than everything else. The folder "." is not part of the files' names.
    cut = len(str(folder / "x")) - 1
    for listing in listings:
        digest.update(listing.labels.tobytes())
        for file in listing.files:
            state = os.stat(file)
            digest.update(f"{file[cut:]}\0{state.st_size}\0{state.st_mtime_ns}\n".encode())
    return digest.hexdigest()
