"""Data sets by name."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from fedlada.data.digits import load_digits


@dataclass(frozen=True, eq=False)
class Source:
    """A data set, ready to be divided among clients."""

    train: tuple[Any, Any]
    test: tuple[Any, Any]
    num_classes: int
    input_shape: tuple[int, ...]


def _digits(_: str | None) -> Source:
    train, test = load_digits()
    return Source(train, test, num_classes=10, input_shape=(1, 8, 8))


DATASETS: dict[str, Callable[[str | None], Source]] = {"digits": _digits}
"""How to load each data set from a folder (None where it ships with a package)."""
