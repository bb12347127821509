"""scikit-learn's handwritten digits: 1,797 images of 8x8, bundled with its package."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any

import numpy as np

from fedlada.data.held_out import held_out
from fedlada.methods.extras import missing

Arrays = tuple[np.ndarray[tuple[int, ...], np.dtype[np.float32]], np.ndarray[tuple[int, ...], np.dtype[np.int64]]]


def load_digits(*, test_share: float = 1 / 6, split_seed: int = 0) -> tuple[Arrays, Arrays]:
    """The digits as (train, test), images `[N, 1, 8, 8]` in [0, 1]; the split is fixed by `split_seed` alone."""
    rows = _rows()
    images = (rows[:, :-1].reshape(-1, 1, 8, 8) / 16.0).astype(np.float32)
    labels = rows[:, -1].astype(np.int64)
    train, test = held_out(len(labels), "digits test split", share=test_share, seed=split_seed)
    return (images[train], labels[train]), (images[test], labels[test])


def _rows() -> np.ndarray[tuple[int, ...], np.dtype[Any]]:
    """The pixels of each image and its label, from the package's file: importing the package takes two seconds."""
    package = importlib.util.find_spec("sklearn")
    if package is None or not package.submodule_search_locations:
        raise missing("the digits come with scikit-learn, which is not installed", "digits")
    file = Path(package.submodule_search_locations[0], "datasets", "data", "digits.csv.gz")
    if file.exists():
        return np.loadtxt(file, delimiter=",")
    from sklearn.datasets import load_digits as read  # other versions may store it elsewhere

    raw = read()
    return np.column_stack([raw.data, raw.target])
