"""Tables, charts and the command stored next to runs, so that a page can be made again."""

from __future__ import annotations

import json
import shlex
import sys
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, TypeVar

from fedlada.plots.chart import Chart
from fedlada.runs.archived import archived_notes
from fedlada.runs.files import write_json, write_text
from fedlada.workbench.report.listing import LISTING
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
    write_text(folder / COMMAND, command + "\n")


def read_command(folder: Path) -> str:
    """The command that made a folder of runs; empty where it is not known."""
    try:
        return (folder / COMMAND).read_text(encoding="utf-8", errors="replace").strip()
    except OSError:
        return ""


def refuse_several_runs(folder: Path) -> None:
    """Refuse the folder of a comparison, a sweep or a reproduction as that of one run, which would be its page."""
    found = [name for name in (TABLES, CHARTS, LISTING) if (folder / name).is_file()]
    if found and not (folder / "config.json").exists():
        known = read_command(folder).split()
        made = f"made by `{' '.join(known[:2])}`" if known[:1] == ["fedlada"] else "of several runs"
        raise ValueError(
            f"{folder} holds results {made} ({found[0]}), not a run: choose another folder, such as "
            f"{folder.with_name(folder.name + '-run')}"
        )


def say_what_is_replaced(folder: Path, command: str) -> None:
    """One line where the tables of another command are about to be replaced by those of this one."""
    before = read_command(folder)
    if before and (folder / TABLES).is_file() and _without_place(before) != _without_place(command):
        print(f"fedlada: the tables in {folder} are replaced, which were those of: {before}", file=sys.stderr)


def _without_place(command: str) -> list[str]:
    """A command without its --out: a folder may have been moved."""
    try:
        words = shlex.split(command)
    except ValueError:  # somebody has changed the file
        return [command]
    if "--out" in words:
        place = words.index("--out")
        del words[place : place + 2]
    return words
