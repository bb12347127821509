"""`metrics.jsonl`: one line for each round."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from pathlib import Path
from reprlib import repr as shortened
from typing import Any

import numpy as np
from torch import Tensor

from fedlada.plots.curves import is_number
from fedlada.runs.files import append_text, write_text
from fedlada.training.history import Row
from fedlada.training.shown import EVALUATED

COUNTS = ("bytes_up", "bytes_down")
COHORTS = ("clients", "lost", "refused")
"""Columns of every round; an archive keeps only these for most rounds."""
MEASURED = {"lr", "train_loss", "drift", "nd_up", "nd_down", "seconds", "epsilon"}
MEASURED |= {
    f"{data}_{what}" for data in ("test", "validation", "full_train", "nodes") for what in ("loss", "accuracy")
}
MEASURED |= {
    f"{whose}_{what}{of}"
    for whose in ("client", "personal")
    for what in ("loss", "accuracy")
    for of in ("", "_worst_decile", "_std")
}


def is_evaluated(row: Row) -> bool:
    """Whether anything was evaluated in that round."""
    return any(name.startswith(EVALUATED) and value is not None for name, value in row.items())


class DamagedMetrics(ValueError):
    """A line of JSON that is not a round; the message names file and line."""


def to_line(row: Row) -> str:
    """A row as one line of strict JSON; non-finite numbers become null."""
    return json.dumps(_plain(row), allow_nan=False) + "\n"


def _plain(value: Any) -> Any:
    """The value as JSON: NumPy and torch numbers and arrays are converted, all else becomes text."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if value is None or isinstance(value, (str, int)):
        return value
    if isinstance(value, Mapping):
        return {str(name): _plain(one) for name, one in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(one) for one in value]
    return _plain(value.tolist()) if isinstance(value, (np.ndarray, np.generic, Tensor)) else str(value)


def read_rows(path: Path) -> list[Row]:
    """The rounds 1, 2, ... without a gap, up to a line truncated by a kill.

    A complete line that is not a round is an error, so that the lines after it are not lost silently.
    """
    rows: list[Row] = []
    try:
        lines = path.read_text(encoding="utf-8", errors="replace").splitlines()
    except FileNotFoundError:
        return rows
    for line in lines:
        try:
            row = json.loads(line)
        except ValueError:
            break
        if not isinstance(row, dict) or row.get("round") != len(rows) + 1:
            break
        if fault := _fault(row):
            raise DamagedMetrics(f"{path}, line {len(rows) + 1}: {fault}: correct the line or remove it")
        rows.append(row)
    return rows


def _fault(row: Row) -> str:
    """The reason why a row is invalid; columns of callbacks may hold anything."""
    for name in (*COUNTS, *COHORTS):
        if name not in row:
            return f"it has no {name}"
    for name, value in row.items():
        is_measured = name in COUNTS or (name in MEASURED and value is not None)
        if is_measured and not is_number(value):
            return f"{name} is {shortened(value)}, which must be a number"
        if name in COHORTS and not (isinstance(value, list) and all(type(client) is int for client in value)):
            return f"{name} is {shortened(value)}, which must be a list of clients"
    return ""


def write_rows(path: Path, rows: list[Row]) -> None:
    """Replace the file by these rows."""
    write_text(path, "".join(to_line(row) for row in rows))


def append_row(path: Path, row: Row) -> None:
    """Add one line."""
    append_text(path, to_line(row))
