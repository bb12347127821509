"""Text and HTML display of histories and results."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape
from typing import Any

WIDTH = 80
MOST_ROUNDS = 10
"""Rounds shown in a table: the first and the last half if there are more."""
EVALUATED = ("test_", "validation_", "full_train_", "client_", "personal_", "nodes_")
"""Prefixes of metrics that are measured only in some rounds."""
Rows = Sequence[Mapping[str, Any]]


def plural(number: int, word: str) -> str:
    """A count with its noun: "1 round", "2 rounds"."""
    return f"{number} {word}" + ("" if number == 1 else "s")


def columns(rows: Rows) -> list[str]:
    """Columns of numbers to show: round, training loss, evaluations, then those of callbacks."""
    names = dict.fromkeys(name for row in rows for name, value in row.items() if _is_number(value))
    evaluated = [name for name in names if name.startswith(EVALUATED)]
    usual = {"round", "lr", "train_loss", "drift", "seconds", "bytes_up", "bytes_down", "nd_up", "nd_down"}
    added = [name for name in names if name not in usual and name not in evaluated]
    return [name for name in ("round", "train_loss") if name in names] + evaluated + added


def as_lines(rows: Rows) -> list[str]:
    """A table of rounds for a terminal: columns that do not fit are named below it."""
    if not rows:
        return []
    names, cells = _cells(rows)
    widths = [max(map(len, column)) for column in zip(names, *cells, strict=True)]
    shown = 1
    while shown < len(names) and sum(widths[: shown + 1]) + 2 * shown <= WIDTH:
        shown += 1
    lines = [
        "  ".join(cell.rjust(width) for cell, width in zip(line[:shown], widths[:shown], strict=True))
        for line in (names, *cells)
    ]
    return lines + ([f"and {', '.join(names[shown:])}"] if shown < len(names) else [])


def as_html(rows: Rows) -> str:
    """The same table for a notebook, with every column."""
    if not rows:
        return ""
    names, cells = _cells(rows)
    head = "".join(f"<th>{escape(name)}</th>" for name in names)
    body = "".join(f"<tr>{''.join(f'<td>{escape(cell)}</td>' for cell in line)}</tr>" for line in cells)
    return f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"


def _cells(rows: Rows) -> tuple[list[str], list[list[str]]]:
    names, half = columns(rows), MOST_ROUNDS // 2
    if len(rows) <= MOST_ROUNDS:
        return names, [[_number(row.get(name)) for name in names] for row in rows]
    first, last = ([[_number(row.get(name)) for name in names] for row in part] for part in (rows[:half], rows[-half:]))
    return names, [*first, ["..." for _ in names], *last]


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def _number(value: Any) -> str:
    if not _is_number(value):
        return "-"
    return str(value) if isinstance(value, int) else f"{value:.4f}" if abs(value) < 1000 else f"{value:.4g}"
