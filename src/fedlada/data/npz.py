"""Anyone's arrays in one `.npz` file."""

from __future__ import annotations

import zipfile
from pathlib import Path
from typing import Any

import numpy as np

from fedlada.data.held_out import held_out

Split = tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]


def load_npz(path: Path) -> tuple[Split, Split]:
    """(train, test) from the arrays `x_train, y_train, x_test, y_test`, or `x, y`, of which a sixth is the test set.

    Bytes of shape (N, H, W), (N, H, W, C) or (N, C, H, W) are taken for images and come back as (N, C, H, W).
    """
    arrays = _read(path)
    if {"x", "y"} <= arrays.keys():
        x, y = _checked(path, "x", arrays["x"], "y", arrays["y"])
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
    return train, test


def _read(path: Path) -> dict[str, np.ndarray[Any, Any]]:
    if not path.is_file():
        raise ValueError(f"there is no file {path}: give the .npz file with --data-dir")
    try:
        with path.open("rb") as raw, np.load(raw, allow_pickle=False) as file:
            return {name: file[name] for name in file.files}
    except (ValueError, OSError, EOFError, AttributeError, zipfile.BadZipFile) as error:
        raise ValueError(f"{path} is damaged or not an .npz file of plain arrays: {error}") from None


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
    return _as_images(x), y.astype(np.int64)


def _as_images(x: Any) -> Any:
    """Bytes that look like images, channels first; anything else as it is."""
    if x.dtype != np.uint8 or x.ndim not in (3, 4):
        return x
    if x.ndim == 3:
        return x[:, None]
    channels_last = x.shape[3] in (1, 3, 4) and x.shape[1] not in (1, 3, 4)
    return np.ascontiguousarray(np.moveaxis(x, 3, 1)) if channels_last else x
