"""`metrics.jsonl`: one line for each round."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

from fedlada.history import Row
from fedlada.runs.files import CannotWrite, write_atomic


def to_line(row: Row) -> str:
    """A row as one line of strict JSON: what is not finite becomes null."""
    plain = {
        name: None if isinstance(value, float) and not math.isfinite(value) else value for name, value in row.items()
    }
    return json.dumps(plain, allow_nan=False, default=_plain) + "\n"


def _plain(value: Any) -> Any:
    """What a callback put into a row and JSON does not know: numbers of numpy and torch, else its text."""
    number = value.item() if getattr(value, "size", None) == 1 or getattr(value, "ndim", None) == 0 else str(value)
    return None if isinstance(number, float) and not math.isfinite(number) else number


def read_rows(path: Path) -> list[Row]:
    """The rounds 1, 2, ... as far as the file goes without a gap; a line cut short by a kill ends it."""
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
        rows.append(row)
    return rows


def write_rows(path: Path, rows: list[Row]) -> None:
    """Replace the file by these rows."""
    text = "".join(to_line(row) for row in rows)
    write_atomic(path, lambda beside: _write(beside, text))


def append_row(path: Path, row: Row) -> None:
    """Add one line."""
    try:
        with path.open("a", encoding="utf-8") as file:
            file.write(to_line(row))
    except OSError as error:
        raise CannotWrite(path, error) from None


def _write(path: Path, text: str) -> None:
    path.write_text(text, encoding="utf-8")
