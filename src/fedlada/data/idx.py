"""MNIST and Fashion-MNIST in their official IDX files, gzipped or not."""

from __future__ import annotations

import gzip
import math
import zlib
from pathlib import Path

import numpy as np

from fedlada.data.images import Bytes

FILES = {
    "train": ("train-images-idx3-ubyte", "train-labels-idx1-ubyte"),
    "test": ("t10k-images-idx3-ubyte", "t10k-labels-idx1-ubyte"),
}


def load_idx(folder: Path, split: str) -> tuple[Bytes, np.ndarray[tuple[int, ...], np.dtype[np.int64]]]:
    """The images `[N, 1, H, W]` and labels of a split; what is missing or damaged is named."""
    images_path, labels_path = (_find(folder, name) for name in FILES[split])
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
        data = gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()
    except (OSError, EOFError, zlib.error) as error:
        raise ValueError(f"{path} is damaged: {error}") from None
    if len(data) < 4 or data[:3] != b"\x00\x00\x08":
        raise ValueError(f"{path} is not an IDX file of bytes")
    num_dims = data[3]
    shape = (
        tuple(int(size) for size in np.frombuffer(data, dtype=">u4", count=num_dims, offset=4))
        if (len(data) >= 4 + 4 * num_dims)
        else ()
    )
    values = data[4 + 4 * num_dims :]
    if not shape or len(values) != math.prod(shape):
        raise ValueError(f"{path} is cut short or damaged: it should hold {math.prod(shape)} values, got {len(values)}")
    return np.frombuffer(values, dtype=np.uint8).reshape(shape)


def _find(folder: Path, name: str) -> Path:
    for path in (folder / f"{name}.gz", folder / name):
        if path.exists():
            return path
    raise ValueError(
        f"there is no {name}.gz in {folder}: put the four official files there, let fedlada data fetch bring them, "
        "or say with --data-dir where they lie"
    )
