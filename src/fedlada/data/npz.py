"""A user's arrays in one `.npz` file."""

from __future__ import annotations

import math
import zipfile
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

import numpy as np

from fedlada.data.held_out import held_out
from fedlada.data.images import are_images, channels_first
from fedlada.data.limits import Unfit, refuse_bomb
from fedlada.data.samples import CHECKED_AT_ONCE
from fedlada.federation.randomness import Ints

READ_HEADER = {(1, 0): np.lib.format.read_array_header_1_0, (2, 0): np.lib.format.read_array_header_2_0}
TEST_SPLIT = "npz test split"
Split = tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]


@dataclass(frozen=True, eq=False)
class Clients:
    """The client number of each sample, and the clients' names in that order, if the file has them."""

    train: Ints | None = None
    test: Ints | None = None
    """Clients without training samples are -1."""
    names: tuple[str, ...] = ()


def load_npz(path: str | Path) -> tuple[Split, Split]:
    """(train, test) from the arrays `x_train, y_train, x_test, y_test`, or `x, y`, of which a sixth is the test set.

    Bytes of shape (N, H, W), (N, H, W, C) or (N, C, H, W) are taken for images and come back as (N, C, H, W); other
    whole numbers and truth values become floats, which is what models compute with. Targets are class indices, floats
    (N, K) to be predicted, or zeros and ones (N, K) for several labels at once.
    """
    return read_npz(path)[0]


def read_npz(path: str | Path) -> tuple[tuple[Split, Split], Clients]:
    """The same, and the clients that an array `client` names, or `client_train` and perhaps `client_test`."""
    place = Path(path)
    arrays = _read(place)
    if {"x", "y"} <= arrays.keys():
        x, y = _checked(place, "x", arrays["x"], "y", arrays["y"])
        if len(y) < 2:
            raise ValueError(f"{place} holds one sample: at least one to train on and one to test on are needed")
        _check_labels(place, y)
        chosen = held_out(len(y), TEST_SPLIT)
        train, test = ((x[own], y[own]) for own in chosen)
        client = _client_column(place, arrays, "client", len(y))
        return (train, test), _clients(*(None if client is None else client[own] for own in chosen))
    missing = [name for name in ("x_train", "y_train", "x_test", "y_test") if name not in arrays]
    if missing:
        raise ValueError(
            f"{place} has no array {missing[0]!r}: it needs x_train, y_train, x_test and y_test, or x and y; "
            f"it has {', '.join(sorted(arrays)) or 'none'}"
        )
    train, test = (
        _checked(place, f"x_{split}", arrays[f"x_{split}"], f"y_{split}", arrays[f"y_{split}"])
        for split in ("train", "test")
    )
    _check_same_kind(place, arrays, train, test)
    _check_labels(place, np.concatenate([train[1], test[1]]))
    own = "client_train" if "client_train" in arrays else "client"
    named = ((own, train), ("client_test", test))
    return (train, test), _clients(*(_client_column(place, arrays, name, len(split[1])) for name, split in named))


def count_clients(path: str | Path) -> int:
    """The number of clients with training samples, without reading them; 0 if the file names none or is unreadable."""
    try:
        with Path(path).open("rb") as raw:
            _check_members(Path(path), raw)
            raw.seek(0)
            with np.load(raw, allow_pickle=False) as file:
                is_whole = {"x", "y"} <= set(file.files)
                client = file["client" if is_whole or "client_train" not in file.files else "client_train"]
        return len(np.unique(client[held_out(len(client), TEST_SPLIT)[0]] if is_whole else client))
    except Exception:  # errors are reported when the samples are read
        return 0


def _check_same_kind(path: Path, arrays: dict[str, np.ndarray[Any, Any]], train: Split, test: Split) -> None:
    if train[0].shape[1:] != test[0].shape[1:]:
        raise ValueError(f"{path}: x_train and x_test differ in shape: {train[0].shape[1:]} and {test[0].shape[1:]}")
    if (train[0].dtype == np.uint8) != (test[0].dtype == np.uint8):
        kinds = (arrays[f"x_{split}"].dtype for split in ("train", "test"))
        raise ValueError(f"{path}: one of x_train and x_test holds images in bytes: {' and '.join(map(str, kinds))}")
    if train[1].shape[1:] != test[1].shape[1:] or train[1].dtype != test[1].dtype:
        kinds = (f"{y.dtype} of shape {y.shape}" for y in (train[1], test[1]))
        raise ValueError(f"{path}: y_train and y_test are not of one kind: {' and '.join(kinds)}")


def _client_column(path: Path, arrays: dict[str, Any], name: str, num_samples: int) -> np.ndarray[Any, Any] | None:
    column = arrays.get(name)
    if column is not None and (column.shape != (num_samples,) or column.dtype.kind not in "iuSU"):
        raise ValueError(
            f"{path}: {name} needs one name or whole number for each of the {num_samples} samples, "
            f"got shape {column.shape} of {column.dtype}"
        )
    return column


def _clients(train: np.ndarray[Any, Any] | None, test: np.ndarray[Any, Any] | None) -> Clients:
    if train is None:
        return Clients()
    names, numbers = np.unique(train, return_inverse=True)
    words = [name.decode("utf-8", "replace") if isinstance(name, bytes) else str(name) for name in names.tolist()]
    known = {name: number for number, name in enumerate(names.tolist())}
    of_test = None if test is None else np.array([known.get(name, -1) for name in test.tolist()], dtype=np.int64)
    return Clients(numbers.astype(np.int64), of_test, tuple(words))


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
    if y.dtype.kind in "SU":
        raise ValueError(f"{path}: {y_name} holds text: number the classes from 0")
    if y.ndim == 2 and y.shape[1] == 1:
        y = y[:, 0]
    if y.ndim not in (1, 2) or y.dtype.kind not in "biuf" or x.ndim < 2 or len(x) != len(y) or y.size == 0:
        raise ValueError(
            f"{path}: {x_name} needs one row and {y_name} one number, or one row of them, for each sample, "
            f"got shapes {x.shape} and {y.shape} of {y.dtype}"
        )
    if x.dtype.kind not in "biuf":
        raise ValueError(f"{path}: {x_name} must hold numbers, got {x.dtype}")
    if x.dtype.kind == "f" and x.dtype.itemsize > 8:
        raise ValueError(f"{path}: {x_name} holds {x.dtype}, which models do not compute with: save it as float64")
    if 0 in x.shape:
        raise ValueError(f"{path}: {x_name} has no features: its shape is {x.shape}")
    for name, values in ((x_name, x), (y_name, y)):  # here the rows are still those of the file
        _check_finite(path, name, values)
    return _as_input(x), _as_target(path, y_name, y)


def _check_finite(path: Path, name: str, values: Any) -> None:
    """Refuse NaN and infinity, in parts: a mask of all numbers would need memory of its own."""
    rows = max(1, CHECKED_AT_ONCE // values[0].size)
    for start in range(0, len(values) if values.dtype.kind == "f" else 0, rows):
        part = values[start : start + rows]
        finite = np.isfinite(part).reshape(len(part), -1).all(axis=1)
        if not finite.all():
            raise ValueError(f"{path}: {name} holds a NaN or an infinity in row {start + int(finite.argmin())}")


def _as_target(path: Path, name: str, y: Any) -> np.ndarray[Any, Any]:
    """Class numbers `[N]`, floats `[N, K]` to predict, or zeros and ones `[N, K]`: which of K labels a sample has."""
    if y.dtype.kind == "f":
        return np.asarray(y.astype(np.float64).reshape(len(y), -1))
    if y.ndim == 2:
        if not np.isin(y, (0, 1)).all():
            raise ValueError(f"{path}: a {name} of whole numbers in rows must hold zeros and ones: one for each label")
        return np.asarray(y.astype(np.int64))
    if y.min() < 0:
        raise ValueError(f"{path}: {name} holds the label {y.min()}, and classes count from 0: save numbers as floats")
    if y.max() > np.iinfo(np.int64).max:
        raise ValueError(f"{path}: {name} holds the label {y.max()}, which is no number of a class")
    return np.asarray(y.astype(np.int64))


def _check_labels(path: Path, y: np.ndarray[Any, Any]) -> None:
    if y.dtype.kind == "f" or y.ndim == 2:
        return
    # A model has one output per class, so a single wrong label could require a model of any size.
    largest = int(y.max())
    if largest >= len(y):
        raise ValueError(
            f"{path}: the label {largest} asks for {largest + 1} classes, more than its {len(y)} samples: "
            "number the classes from 0 on, or save numbers to predict as floats"
        )


def _as_input(x: Any) -> Any:
    """Bytes that look like images, channels first; anything else as floats."""
    if are_images(x):
        return channels_first(x)
    # Byte order is converted to that of this machine.
    return x.astype(x.dtype.newbyteorder("=") if x.dtype.kind == "f" else np.float32, copy=False)
