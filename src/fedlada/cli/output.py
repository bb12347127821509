"""What every command prints: tables that a pipe never cuts, and where a new run goes."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Sequence
from datetime import datetime
from pathlib import Path

from rich.console import Console
from rich.table import Table
from rich.text import Text


def console() -> Console:
    """Standard output; as wide as its content needs where it is not a terminal."""
    return Console() if sys.stdout.isatty() else Console(width=100_000, color_system=None)


def print_table(columns: Sequence[str], rows: Iterable[Sequence[str]], title: str = "") -> None:
    """A table; texts are never taken for markup."""
    table = Table(title=title or None, title_justify="left")
    lines = list(rows)
    for number, column in enumerate(columns):
        numbers = all(line[number][:1] in "0123456789-∞" for line in lines)
        table.add_column(column, justify="right" if numbers else "left")
    for row in lines:
        table.add_row(*(Text(cell) for cell in row))
    out = console()
    out.print(table, no_wrap=not sys.stdout.isatty(), crop=False, soft_wrap=False)


def make_folder(folder: Path) -> None:
    """Make a folder, or say why not."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ValueError(f"the folder {folder} cannot be made: {error.strerror or error}") from None


def new_folder(name: str) -> Path:
    """A folder for a run that was given none, named by the time."""
    return Path("runs") / f"{datetime.now():%Y%m%d-%H%M%S}-{name}"
