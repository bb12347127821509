"""Output of every command: tables that are never truncated in a pipe, and folders of new runs."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Sequence
from datetime import datetime
from pathlib import Path

from rich.box import SIMPLE_HEAD
from rich.cells import cell_len
from rich.console import Console
from rich.table import Table as RichTable
from rich.text import Text

from fedlada.workbench.report.table import Table, are_numbers

WIDE = 100_000


def console() -> Console:
    """Standard output; as wide as its content needs where it is not a terminal."""
    return Console() if sys.stdout.isatty() else Console(width=WIDE, color_system=None)


def print_table(columns: Sequence[str], rows: Iterable[Sequence[str]], title: str = "") -> None:
    """A table; cells are never interpreted as markup, and in a narrow terminal they are wrapped, never truncated."""
    table = RichTable(title=title or None, title_justify="left")
    lines = list(rows)
    for number, column in enumerate(columns):
        is_numeric = are_numbers(line[number] for line in lines)
        table.add_column(column, justify="right" if is_numeric else "left", overflow="fold")
    for row in lines:
        table.add_row(*(Text(cell) for cell in row))
    out = console()
    if out.measure(table, options=out.options.update(width=WIDE)).maximum > out.width:
        if sum(_longest_words(columns, lines)) > _room(len(columns), out.width):
            table = _as_records(columns, lines, title)
        else:
            _make_narrow(table, columns, lines, out.width)
    out.print(table, no_wrap=not sys.stdout.isatty(), crop=False, soft_wrap=False)


def print_tables(tables: Iterable[Table], end: str = "\n") -> None:
    """Tables and the sentences below them, on standard output."""
    for table in tables:
        print_table(table.columns, table.rows, title=table.title)
        for note in table.notes:
            print(note)
        print(end=end)


def _longest_words(columns: Sequence[str], lines: Sequence[Sequence[str]]) -> list[int]:
    words = [" ".join([name, *(line[number] for line in lines)]).split() for number, name in enumerate(columns)]
    return [max(map(cell_len, own), default=1) for own in words]


def _room(num_columns: int, width: int) -> int:
    return width - 2 * num_columns + 1  # a space behind each column, one between two


def _make_narrow(table: RichTable, columns: Sequence[str], lines: Sequence[Sequence[str]], width: int) -> None:
    """No frame, and columns as wide as their longest word; the remaining width goes to the longest text."""
    table.box, table.padding, table.pad_edge, table.show_edge = SIMPLE_HEAD, (0, 1, 0, 0), False, False
    widths = _longest_words(columns, lines)
    longest = [max((cell_len(line[number]) for line in lines), default=0) for number in range(len(columns))]
    widths[longest.index(max(longest))] += _room(len(columns), width) - sum(widths)
    for column, own in zip(table.columns, widths, strict=True):
        column.width = own


def _as_records(columns: Sequence[str], lines: Sequence[Sequence[str]], title: str) -> RichTable:
    """One line per cell, if even words would have to break: the name of its column, then its text."""
    table = RichTable.grid(padding=(0, 2, 0, 0))
    table.title, table.title_justify = title or None, "left"
    table.add_column(overflow="fold")
    table.add_column(overflow="fold")
    for line in lines:
        for name, cell in zip(columns, line, strict=True):
            table.add_row(Text(name), Text(cell))
        table.add_row("", "")
    return table


def make_folder(folder: Path) -> None:
    """Make a folder; refuse with the reason if that fails."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ValueError(f"the folder {folder} cannot be made: {error.strerror or error}") from None


def new_folder(name: str) -> Path:
    """A default folder, named by the time to the millisecond, because scripts start several runs at once."""
    now = datetime.now()
    return Path("runs") / f"{now:%Y%m%d-%H%M%S}.{now.microsecond // 1000:03d}-{name}"
