"""Tables, charts and the command stored next to runs, so that a page can be made again."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, TypeVar

from fedlada.plots.chart import Chart
from fedlada.runs.archived import archived_notes
from fedlada.runs.files import write_json
from fedlada.workbench.report.records import find_runs, read_listings, walk
from fedlada.workbench.report.table import Table

TABLES, CHARTS, COMMAND = "tables.json", "charts.json", "command.txt"
Kind = TypeVar("Kind", Table, Chart)


def write_tables(folder: Path, tables: Iterable[Table]) -> None:
    """Keep tables in a folder, in place of those it kept."""
    write_json(folder / TABLES, [table.to_json() for table in tables])


def write_charts(folder: Path, charts: Iterable[Chart]) -> None:
    """Keep charts in a folder, in place of those it kept."""
    write_json(folder / CHARTS, [chart.to_json() for chart in charts])


def read_tables(folder: Path) -> list[Table]:
    """The tables kept in a folder; where it keeps none, those in the folders in it, down to those of runs."""
    return _read(folder, TABLES, Table.from_json)


def read_charts(folder: Path) -> list[Chart]:
    """The charts kept in a folder; where it keeps no tables, also those in the folders in it, down to those of runs."""
    return _read(folder, CHARTS, Chart.from_json)


def read_notes(folder: Path) -> list[str]:
    """Notes on the runs listed in a folder: those kept, that some came from an archive, how many are not there."""
    listings = read_listings(folder)
    said = [note for one in listings for note in one.notes]
    archived = archived_notes(run.folder for run in find_runs(folder))
    return list(dict.fromkeys(note for note in (*said, *archived, *(one.missing for one in listings)) if note))


def _read(folder: Path, name: str, from_json: Callable[[Mapping[str, Any]], Kind]) -> list[Kind]:
    found: list[Kind] = []
    for path in (place / name for place, _ in walk(folder, stop_at=TABLES)):
        try:
            values = json.loads(path.read_bytes())
            if not isinstance(values, list):
                raise ValueError("it is not a list")
            found += [from_json(one) for one in values]
        except (FileNotFoundError, NotADirectoryError):
            continue
        except (OSError, ValueError) as error:
            raise ValueError(f"{path} cannot be read: {error}") from None
    return found


def write_command(folder: Path, command: str) -> None:
    """Keep the command that made a folder of runs."""
    (folder / COMMAND).write_text(command + "\n", encoding="utf-8")


def read_command(folder: Path) -> str:
    """The command that made a folder of runs; empty where it is not known."""
    try:
        return (folder / COMMAND).read_text(encoding="utf-8", errors="replace").strip()
    except OSError:
        return ""
