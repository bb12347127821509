"""LEAF's data sets: JSON files with the samples of each user, in the folders `train` and `test`.

FEMNIST's rows of 784 numbers are images of 28x28; Shakespeare's windows of text are codes of characters. Other files
with rows of numbers are read as they are.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from fedlada.data.text import NUM_CHARACTERS
from fedlada.federation.randomness import Ints

FEMNIST = (1, 28, 28)


@dataclass(frozen=True, eq=False)
class LeafSplit:
    """Inputs and targets of all users, and the number of the user that each belongs to; -1 is one of the test alone."""

    x: np.ndarray[Any, Any]
    y: np.ndarray[Any, Any]
    client: Ints


def load_leaf(folder: str | Path) -> tuple[LeafSplit, LeafSplit, list[str]]:
    """(train, test, user names) of `FOLDER/train/*.json` and `FOLDER/test/*.json`, made by LEAF's `preprocess.sh`.

    Users are the clients, in the order in which the training files name them.
    """
    place = Path(folder)
    train, test = (_read_split(place, split) for split in ("train", "test"))
    names = list(train)
    numbers = {name: number for number, name in enumerate(names)}
    splits = [_joined(place / split, users, numbers) for split, users in (("train", train), ("test", test))]
    if splits[0].x.shape[1:] != splits[1].x.shape[1:] or splits[0].x.dtype != splits[1].x.dtype:
        shapes = " and ".join(str(split.x.shape[1:]) for split in splits)
        raise ValueError(f"{place}: the samples in train and in test differ: shapes {shapes}")
    return splits[0], splits[1], names


def _read_split(place: Path, split: str) -> dict[str, tuple[list[Any], list[Any]]]:
    """The samples of each user, who may occur in several files."""
    files = sorted((place / split).glob("*.json"))
    if not files:
        raise ValueError(
            f"there are no files {place / split}/*.json: LEAF's preprocess.sh makes a folder with train and test, "
            "which --data-dir names"
        )
    users: dict[str, tuple[list[Any], list[Any]]] = {}
    for file in files:
        for user, x, y in _users(file):
            own = users.setdefault(user, ([], []))
            own[0].extend(x)
            own[1].extend(y)
    users = {user: own for user, own in users.items() if own[1]}
    if not users:
        raise ValueError(f"{place / split} holds no samples")
    return users


def _users(file: Path) -> Iterator[tuple[str, list[Any], list[Any]]]:
    try:
        content = json.loads(file.read_bytes())
        names, data = content["users"], content["user_data"]
        counts = content.get("num_samples", [None] * len(names))
        for user, expected in zip(names, counts, strict=True):
            x, y = data[user]["x"], data[user]["y"]
            if len(x) != len(y) or expected not in (None, len(y)):
                raise ValueError(f"the user {user!r} has {len(x)} inputs, {len(y)} targets, num_samples {expected}")
            yield str(user), x, y
    except KeyError as error:
        raise ValueError(f"{file} is no file of LEAF: it has no {error}") from None
    except (ValueError, TypeError, AttributeError, RecursionError) as error:
        raise ValueError(f"{file} is damaged or no file of LEAF: {error}") from None


def _joined(place: Path, users: dict[str, tuple[list[Any], list[Any]]], numbers: dict[str, int]) -> LeafSplit:
    x = [sample for own, _ in users.values() for sample in own]
    y = [target for _, own in users.values() for target in own]
    client = np.repeat([numbers.get(user, -1) for user in users], [len(own) for _, own in users.values()])
    if isinstance(x[0], str):
        return LeafSplit(_codes(place, x), _codes(place, y)[:, 0], client.astype(np.int64))
    return LeafSplit(_inputs(place, x), _targets(place, y), client.astype(np.int64))


def _codes(place: Path, texts: list[Any]) -> Ints:
    """Texts of one length as the codes of their characters; other characters than ASCII become question marks."""
    lengths = {len(text) for text in texts if isinstance(text, str)}
    if not all(isinstance(text, str) for text in texts) or len(lengths) != 1 or 0 in lengths:
        raise ValueError(
            f"{place} holds texts that are not windows of one length, each with the character that follows, as "
            "Shakespeare's are: read such files in Python, with collate_fn="
        )
    joined = "".join(texts).encode("ascii", errors="replace")
    codes: Ints = np.frombuffer(joined, dtype=np.uint8).astype(np.int64).reshape(len(texts), -1)
    assert codes.max() < NUM_CHARACTERS
    return codes


def _inputs(place: Path, rows: list[Any]) -> np.ndarray[Any, Any]:
    try:
        x = np.asarray(rows, dtype=np.float32)
    except (TypeError, ValueError):
        raise ValueError(
            f"{place} holds inputs that are no rows of numbers of one length: "
            "read such files in Python, with collate_fn="
        ) from None
    if x.ndim < 2 or not np.isfinite(x).all():
        raise ValueError(f"{place} must hold a row of finite numbers for each sample, got shape {x.shape}")
    return x.reshape(-1, *FEMNIST) if x.shape[1:] == (784,) else x


def _targets(place: Path, values: list[Any]) -> np.ndarray[Any, Any]:
    try:
        y = np.asarray(values)
        if y.ndim != 1 or y.dtype.kind not in "iuf":
            raise ValueError
    except ValueError:
        raise ValueError(f"{place} must hold one number as the target of each sample") from None
    if y.dtype.kind == "f" and not (y == np.floor(y)).all():
        return y.astype(np.float32)[:, None]
    if y.min() < 0 or y.max() >= 10**6:
        raise ValueError(f"{place} holds the label {y.min() if y.min() < 0 else y.max()}: classes count from 0")
    return y.astype(np.int64)
