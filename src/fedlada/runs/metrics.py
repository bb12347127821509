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
from fedlada.runs.files import CannotWrite, write_text
from fedlada.training.history import Row

COUNTS = ("bytes_up", "bytes_down")
COHORTS = ("clients", "lost", "refused")
"""Every round has these; an archive keeps no others of most rounds."""
MEASURED = {"lr", "train_loss", "drift", "nd_up", "nd_down", "seconds", "epsilon"}
MEASURED |= {f"{data}_{what}" for data in ("test", "validation", "full_train") for what in ("loss", "accuracy")}
MEASURED |= {
    f"{whose}_{what}{of}"
    for whose in ("client", "personal")
    for what in ("loss", "accuracy")
    for of in ("", "_worst_decile", "_std")
}
EVALUATED = ("test_", "validation_", "full_train_", "client_", "personal_")
"""How the names of what is measured in some rounds alone begin."""


def is_evaluated(row: Row) -> bool:
    """Whether anything was evaluated in that round."""
    return any(name.startswith(EVALUATED) and value is not None for name, value in row.items())


class DamagedMetrics(ValueError):
    """A line that is JSON but no round; the message names file and line."""


def to_line(row: Row) -> str:
    """A row as one line of strict JSON: what is not finite becomes null."""
    return json.dumps(_plain(row), allow_nan=False) + "\n"


def _plain(value: Any) -> Any:
    """As JSON has it: a callback may put numbers and arrays of numpy and torch into a row; all else is its text."""
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
    """The rounds 1, 2, ... as far as the file goes without a gap; a line cut short by a kill ends it.

    A whole line that cannot be a round's is one sentence: what is behind it is not lost unnoticed.
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
            raise DamagedMetrics(f"{path}, line {len(rows) + 1}: {fault}: put the line right or remove it")
        rows.append(row)
    return rows


def _fault(row: Row) -> str:
    """Why a row is not one of ours; columns of callbacks may hold anything."""
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
    try:
        with path.open("a", encoding="utf-8") as file:
            file.write(to_line(row))
    except OSError as error:
        raise CannotWrite(path, error) from None
