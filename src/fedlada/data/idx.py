"""MNIST and Fashion-MNIST from their official IDX files, gzipped or not."""

from __future__ import annotations

import gzip
import math
import zlib
from pathlib import Path
from typing import BinaryIO

import numpy as np

from fedlada.data.images import Bytes
from fedlada.data.limits import refuse_bomb

MOST_DIMENSIONS = 3
CHUNK = 2**20
FILES = {
    "train": ("train-images-idx3-ubyte", "train-labels-idx1-ubyte"),
    "test": ("t10k-images-idx3-ubyte", "t10k-labels-idx1-ubyte"),
}


def load_idx(folder: str | Path, split: str) -> tuple[Bytes, np.ndarray[tuple[int, ...], np.dtype[np.int64]]]:
    """The images `[N, 1, H, W]` and labels of a split; what is missing or damaged is named."""
    images_path, labels_path = (_find(Path(folder), name) for name in FILES[split])
    images, labels = read_idx(images_path), read_idx(labels_path)
    if images.ndim != 3 or labels.ndim != 1 or len(images) != len(labels):
        raise ValueError(
            f"{images_path} and {labels_path} do not fit together: shapes {images.shape} and {labels.shape}"
        )
    if images.size == 0:
        raise ValueError(f"{images_path} holds no images: its shape is {images.shape}")
    if labels.max() > 9:
        raise ValueError(f"{labels_path} holds the label {labels.max()}, outside 0..9")
    return images[:, None], labels.astype(np.int64)


def read_idx(path: Path) -> Bytes:
    """An IDX file of bytes: two zeros, the type 8, the number of dimensions, their sizes, then the values."""
    try:
        with gzip.open(path) if path.suffix == ".gz" else path.open("rb") as file:
            shape = _shape(path, file)
            values = _at_most(math.prod(shape) + 1, file)
    except (OSError, EOFError, zlib.error) as error:
        raise ValueError(f"{path} is damaged: {error}") from None
    if len(values) != math.prod(shape):
        found = "there are more" if len(values) > math.prod(shape) else f"got {len(values)}"
        raise ValueError(f"{path} is cut short or damaged: it should hold {math.prod(shape)} values, {found}")
    return np.frombuffer(values, dtype=np.uint8).reshape(shape)


def _shape(path: Path, file: BinaryIO | gzip.GzipFile) -> tuple[int, ...]:
    """The sizes that the header names, if an array of them can be read."""
    start = file.read(4)
    if len(start) < 4 or start[:3] != b"\x00\x00\x08":
        raise ValueError(f"{path} is not an IDX file of bytes")
    if not 1 <= start[3] <= MOST_DIMENSIONS:
        raise ValueError(f"{path} has {start[3]} dimensions: images have 3, labels 1")
    sizes = file.read(4 * start[3])
    if len(sizes) < 4 * start[3]:
        raise ValueError(f"{path} is cut short or damaged: its header is not whole")
    shape = tuple(int(size) for size in np.frombuffer(sizes, dtype=">u4"))
    refuse_bomb(path, math.prod(shape))
    return shape


def _at_most(num_bytes: int, file: BinaryIO | gzip.GzipFile) -> bytearray:
    """This many bytes, or fewer if the file ends; a compressed file is unpacked no further."""
    found = bytearray()
    while chunk := file.read(min(CHUNK, num_bytes - len(found))):
        found += chunk
    return found


def _find(folder: Path, name: str) -> Path:
    for path in (folder / f"{name}.gz", folder / name):
        if path.exists():
            return path
    raise ValueError(
        f"there is no {name}.gz in {folder}: put the four official files there, let fedlada data fetch bring them, "
        "or say with --data-dir where they lie"
    )
