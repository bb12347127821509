"""Output of every command: tables that a pipe never cuts, and where a new run goes."""

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

from fedlada.workbench.report.table import Table

WIDE = 100_000


def console() -> Console:
    """Standard output; as wide as its content needs where it is not a terminal."""
    return Console() if sys.stdout.isatty() else Console(width=WIDE, color_system=None)


def print_table(columns: Sequence[str], rows: Iterable[Sequence[str]], title: str = "") -> None:
    """A table; texts are never taken for markup, and where the terminal is narrow they are wrapped, never cut."""
    table = RichTable(title=title or None, title_justify="left")
    lines = list(rows)
    for number, column in enumerate(columns):
        numbers = all(line[number][:1] in "0123456789-∞" for line in lines)
        table.add_column(column, justify="right" if numbers else "left", overflow="fold")
    for row in lines:
        table.add_row(*(Text(cell) for cell in row))
    out = console()
    if out.measure(table, options=out.options.update(width=WIDE)).maximum > out.width:
        _make_narrow(table, columns, lines, out.width)
    out.print(table, no_wrap=not sys.stdout.isatty(), crop=False, soft_wrap=False)


def print_tables(tables: Iterable[Table], end: str = "\n") -> None:
    """Tables and the sentences below them, on standard output."""
    for table in tables:
        print_table(table.columns, table.rows, title=table.title)
        for note in table.notes:
            print(note)
        print(end=end)


def _make_narrow(table: RichTable, columns: Sequence[str], lines: Sequence[Sequence[str]], width: int) -> None:
    """No frame, and columns as wide as their longest word; where that is too much, the widest break their words."""
    table.box, table.padding, table.pad_edge, table.show_edge = SIMPLE_HEAD, (0, 1, 0, 0), False, False
    words = [" ".join([name, *(line[number] for line in lines)]).split() for number, name in enumerate(columns)]
    widths = [max(map(cell_len, own), default=1) for own in words]
    room = width - 2 * len(columns) + 1  # a space behind each column, one between two
    while sum(widths) > room and max(widths) > 1:
        widths[widths.index(max(widths))] -= 1
    longest = [max((cell_len(line[number]) for line in lines), default=0) for number in range(len(columns))]
    widths[longest.index(max(longest))] += max(0, room - sum(widths))  # what is left goes to the longest text
    for column, own in zip(table.columns, widths, strict=True):
        column.width = own


def make_folder(folder: Path) -> None:
    """Make a folder, or say why not."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ValueError(f"the folder {folder} cannot be made: {error.strerror or error}") from None


def new_folder(name: str) -> Path:
    """A folder for a run that was given none, named by the time, to the millisecond: scripts start several at once."""
    now = datetime.now()
    return Path("runs") / f"{now:%Y%m%d-%H%M%S}.{now.microsecond // 1000:03d}-{name}"
