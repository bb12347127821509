"""Anyone's arrays in one `.npz` file."""

from __future__ import annotations

import math
import zipfile
from pathlib import Path
from typing import IO, Any

import numpy as np

from fedlada.data.held_out import held_out
from fedlada.data.limits import Unfit, refuse_bomb

READ_HEADER = {(1, 0): np.lib.format.read_array_header_1_0, (2, 0): np.lib.format.read_array_header_2_0}
Split = tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]


def load_npz(path: Path) -> tuple[Split, Split]:
    """(train, test) from the arrays `x_train, y_train, x_test, y_test`, or `x, y`, of which a sixth is the test set.

    Bytes of shape (N, H, W), (N, H, W, C) or (N, C, H, W) are taken for images and come back as (N, C, H, W); other
    whole numbers and truth values become floats, which is what models compute with.
    """
    arrays = _read(path)
    if {"x", "y"} <= arrays.keys():
        x, y = _checked(path, "x", arrays["x"], "y", arrays["y"])
        if len(y) < 2:
            raise ValueError(f"{path} holds one sample: at least one to train on and one to test on are needed")
        _check_labels(path, y)
        for_training, for_test = held_out(len(y), "npz test split")
        return (x[for_training], y[for_training]), (x[for_test], y[for_test])
    missing = [name for name in ("x_train", "y_train", "x_test", "y_test") if name not in arrays]
    if missing:
        raise ValueError(
            f"{path} has no array {missing[0]!r}: it needs x_train, y_train, x_test and y_test, or x and y; "
            f"it has {', '.join(sorted(arrays)) or 'none'}"
        )
    train, test = (
        _checked(path, f"x_{split}", arrays[f"x_{split}"], f"y_{split}", arrays[f"y_{split}"])
        for split in ("train", "test")
    )
    if train[0].shape[1:] != test[0].shape[1:]:
        raise ValueError(f"{path}: x_train and x_test differ in shape: {train[0].shape[1:]} and {test[0].shape[1:]}")
    if (train[0].dtype == np.uint8) != (test[0].dtype == np.uint8):
        kinds = (arrays[f"x_{split}"].dtype for split in ("train", "test"))
        raise ValueError(f"{path}: one of x_train and x_test holds images in bytes: {' and '.join(map(str, kinds))}")
    _check_labels(path, np.concatenate([train[1], test[1]]))
    return train, test


def _read(path: Path) -> dict[str, np.ndarray[Any, Any]]:
    if not path.is_file():
        raise ValueError(f"there is no file {path}: give the .npz file with --data-dir")
    try:
        with path.open("rb") as raw:
            if raw.read(2) != b"PK":  # np.load would also take a lone .npy array, or a pickle
                raise ValueError("it is not an archive of arrays, as np.savez writes it")
            _check_members(path, raw)
            raw.seek(0)
            with np.load(raw, allow_pickle=False) as file:
                return {name: np.asarray(file[name]) for name in file.files}
    except Unfit:
        raise
    except Exception as error:  # a damaged archive can fail in any way
        raise ValueError(f"{path} is damaged or not an .npz file of plain arrays: {error}") from None


def _check_members(path: Path, raw: IO[bytes]) -> None:
    """Look at the headers of all arrays before any of them is unpacked."""
    with zipfile.ZipFile(raw) as archive:
        refuse_bomb(path, sum(entry.file_size for entry in archive.infolist()))
        for entry in archive.infolist():
            if not entry.filename.endswith(".npy"):
                continue
            with archive.open(entry) as member:
                version = np.lib.format.read_magic(member)
                if version not in READ_HEADER:
                    raise ValueError("it holds an array of named fields")
                shape, _, kind = READ_HEADER[version](member)
                name, wanted = entry.filename.removesuffix(".npy"), math.prod(shape) * kind.itemsize
                if kind.hasobject:
                    raise Unfit(f"{path}: {name} holds Python objects, which are never loaded: save plain numbers")
                if wanted > entry.file_size - member.tell():
                    there = entry.file_size - member.tell()
                    raise ValueError(f"{name} should hold {wanted} bytes, got {there}")


def _checked(path: Path, x_name: str, x: Any, y_name: str, y: Any) -> Split:
    if y.ndim == 2 and y.shape[1] == 1:
        y = y[:, 0]
    if y.ndim != 1 or y.dtype.kind not in "iu" or x.ndim < 2 or len(x) != len(y) or len(y) == 0:
        raise ValueError(
            f"{path}: {x_name} needs one row and {y_name} one whole number for each sample, "
            f"got shapes {x.shape} and {y.shape} of {y.dtype}"
        )
    if y.min() < 0:
        raise ValueError(f"{path}: {y_name} holds the label {y.min()}, and classes count from 0")
    if y.max() > np.iinfo(np.int64).max:
        raise ValueError(f"{path}: {y_name} holds the label {y.max()}, which is no number of a class")
    if x.dtype.kind not in "biuf":
        raise ValueError(f"{path}: {x_name} must hold numbers, got {x.dtype}")
    if x.dtype.kind == "f" and x.dtype.itemsize > 8:
        raise ValueError(f"{path}: {x_name} holds {x.dtype}, which models do not compute with: save it as float64")
    if 0 in x.shape:
        raise ValueError(f"{path}: {x_name} has no features: its shape is {x.shape}")
    return _as_input(x), y.astype(np.int64)


def _check_labels(path: Path, y: np.ndarray[Any, Any]) -> None:
    # A model has an output for each class: one stray label would ask for a model of any size.
    largest = int(y.max())
    if largest >= len(y):
        raise ValueError(
            f"{path}: the label {largest} asks for {largest + 1} classes, more than its {len(y)} samples: "
            "number the classes from 0 on"
        )


def _as_input(x: Any) -> Any:
    """Bytes that look like images, channels first; anything else as floats."""
    if x.dtype != np.uint8 or x.ndim not in (3, 4):
        # Bytes in the other order, as another kind of machine writes them, are put into this one's.
        return x.astype(x.dtype.newbyteorder("=") if x.dtype.kind == "f" else np.float32, copy=False)
    if x.ndim == 3:
        return x[:, None]
    channels_last = x.shape[3] in (1, 3, 4) and x.shape[1] not in (1, 3, 4)
    return np.ascontiguousarray(np.moveaxis(x, 3, 1)) if channels_last else x
