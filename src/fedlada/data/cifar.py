"""CIFAR-10 and CIFAR-100 from their official python archives, read as untrusted input."""

from __future__ import annotations

import io
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from fedlada.data.images import Bytes
from fedlada.federation.randomness import Ints

FILES = {
    "cifar10": ("cifar-10-batches-py", {"train": [f"data_batch_{i}" for i in range(1, 6)], "test": ["test_batch"]}),
    "cifar100": ("cifar-100-python", {"train": ["train"], "test": ["test"]}),
}
# fmt: off
CIFAR100_GROUPS = (
    4, 1, 14, 8, 0, 6, 7, 7, 18, 3, 3, 14, 9, 18, 7, 11, 3, 9, 7, 11, 6, 11, 5, 10, 7,
    6, 13, 15, 3, 15, 0, 11, 1, 10, 12, 14, 16, 9, 11, 5, 5, 19, 8, 8, 15, 13, 14, 17, 18, 10,
    16, 4, 17, 4, 2, 0, 17, 4, 18, 17, 10, 3, 2, 12, 12, 16, 12, 1, 9, 19, 2, 10, 0, 1, 16,
    12, 9, 13, 15, 13, 16, 19, 2, 4, 6, 19, 5, 5, 8, 19, 18, 1, 2, 15, 6, 0, 17, 8, 14, 13,
)
# fmt: on
"""The superclass of each of CIFAR-100's classes."""
LABELS = {"cifar10": (b"labels", 10), "cifar100": (b"fine_labels", 100)}

ADMITTED: dict[tuple[str, str], Callable[[], Any]] = {
    ("numpy.core.multiarray", "_reconstruct"): lambda: np.zeros(0).__reduce__()[0],
    ("numpy._core.multiarray", "_reconstruct"): lambda: np.zeros(0).__reduce__()[0],
    ("numpy.core.numeric", "_frombuffer"): lambda: np.zeros(0).__reduce_ex__(5)[0],
    ("numpy._core.numeric", "_frombuffer"): lambda: np.zeros(0).__reduce_ex__(5)[0],
    ("numpy", "ndarray"): lambda: np.ndarray,
    ("numpy", "dtype"): lambda: np.dtype,
    ("_codecs", "encode"): lambda: _encode,
}
"""The only names that a pickle may use: those of arrays and byte strings."""


def load_cifar(folder: str | Path, name: str, split: str) -> tuple[Bytes, Ints]:
    """The images `[N, 3, 32, 32]` and fine labels of a split, as many as the files hold."""
    folder = Path(folder)
    inside, splits = FILES[name]
    place = folder if inside in (folder.name, folder.resolve().name) else folder / inside
    if not place.is_dir():
        raise ValueError(
            f"there is no folder {place}: fedlada data fetch {name} --data-dir {folder} brings the official archive; "
            "--data-dir says where it lies"
        )
    parts = [_read_batch(place / file, name) for file in splits[split]]
    return np.concatenate([images for images, _ in parts]), np.concatenate([labels for _, labels in parts])


def _read_batch(path: Path, name: str) -> tuple[Bytes, np.ndarray[tuple[int, ...], np.dtype[np.int64]]]:
    key, num_classes = LABELS[name]
    content = read_pickle(path)
    if not isinstance(content, dict) or b"data" not in content or key not in content:
        raise ValueError(f"{path} is not a batch of {name}: it has no {key.decode()}")
    images, labels = content[b"data"], np.asarray(content[key])
    if labels.ndim != 1:
        raise ValueError(f"{path} should hold one label for each image, got an array of shape {labels.shape}")
    if not isinstance(images, np.ndarray) or images.dtype != np.uint8 or images.shape != (len(labels), 3072):
        shape = getattr(images, "shape", type(images).__name__)
        raise ValueError(f"{path} should hold {len(labels)} rows of 3072 bytes, got {shape}")
    if len(labels) == 0:
        raise ValueError(f"{path} holds no images")
    if labels.dtype.kind not in "iu" or not (0 <= labels.min() <= labels.max() < num_classes):
        raise ValueError(f"{path} holds labels outside 0..{num_classes - 1}")
    return images.reshape(-1, 3, 32, 32), labels.astype(np.int64)


class PlainUnpickler(pickle.Unpickler):
    """Admits NumPy arrays and plain containers; refuses anything else before it is called."""

    def find_class(self, module: str, name: str) -> Any:
        """Look up one of the admitted names."""
        try:
            return ADMITTED[module, name]()
        except KeyError:
            raise pickle.UnpicklingError(f"it asks for {module}.{name}, which no data set needs") from None


def read_pickle(path: Path) -> Any:
    """A pickle of arrays and plain containers; a file that asks for more is refused."""
    try:
        data = path.read_bytes()
    except FileNotFoundError:
        raise ValueError(f"there is no {path}: unpack the official python archive there") from None
    try:
        return PlainUnpickler(io.BytesIO(data), encoding="bytes").load()
    except Exception as error:  # a damaged pickle can fail in any way
        raise ValueError(f"{path} is damaged or not a data file: {error}") from None


def _encode(text: str, encoding: str) -> bytes:
    """Encode Python 2's byte strings; any other use of the codec machinery is refused."""
    if encoding != "latin1" or not isinstance(text, str):
        raise pickle.UnpicklingError(f"it asks for the encoding {encoding!r}")
    return text.encode("latin1")
