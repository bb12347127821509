"""The list of a campaign's runs, wherever they are stored, with their lengths and notes."""

from __future__ import annotations

import json
import os
from dataclasses import dataclass
from pathlib import Path

from fedlada.runs.files import write_json
from fedlada.workbench.report.table import as_text

LISTING = "runs.json"


@dataclass(frozen=True)
class KnownRun:
    """A run's folder; if a campaign lists it, its name there and the number of requested rounds."""

    folder: Path
    group: str | None = None
    rounds: int | None = None


@dataclass(frozen=True)
class Listing:
    """The content of a page besides tables, charts and the runs themselves."""

    title: str
    runs: tuple[KnownRun, ...]
    notes: tuple[str, ...] = ()

    @property
    def missing(self) -> str:
        """A sentence about listed runs that are not there; empty where all are."""
        gone = sum(not (run.folder / "config.json").exists() for run in self.runs)
        if not gone:
            return ""
        return f"{gone} of the {len(self.runs)} runs of {self.title} have not begun, or are no longer where they were."


def write_listing(folder: Path, listing: Listing) -> None:
    """Keep it in a folder, in place of the one it kept."""
    if _is_archive(folder / LISTING):
        raise ValueError(f"{folder / LISTING} is an archive of runs, and would be lost: choose another --out")
    runs = [{**vars(run), "folder": _as_stored(run.folder, folder)} for run in listing.runs]
    write_json(folder / LISTING, {"title": listing.title, "runs": runs, "notes": list(listing.notes)})


def read_listing(folder: Path) -> Listing | None:
    """The listing of a folder; None where it has none."""
    path = folder / LISTING
    try:
        if _is_archive(path):
            return None
        values = json.loads(path.read_bytes())
        runs = tuple(
            KnownRun(_as_found(as_text(run["folder"]), folder), as_text(run["group"]), int(run["rounds"]))
            for run in values["runs"]
        )
        return Listing(as_text(values["title"]), runs, tuple(map(as_text, values["notes"])))
    except (FileNotFoundError, NotADirectoryError):
        return None
    except (OSError, ValueError) as error:
        raise ValueError(f"{path} cannot be read: {error}") from None
    except (KeyError, TypeError):
        raise ValueError(f"{path} cannot be read: it is no list of runs with a title and notes") from None


def _as_stored(run: Path, folder: Path) -> str:
    """Relative if both are in one folder, so that they can be moved together."""
    real, home = run.resolve(), folder.resolve()
    return os.path.relpath(real, home) if real.is_relative_to(home.parent) else str(real)


def _as_found(stored: str, folder: Path) -> Path:
    real, here = Path(os.path.normpath(folder.resolve() / stored)), Path.cwd()
    return real.relative_to(here) if real.is_relative_to(here) else real


def _is_archive(path: Path) -> bool:
    """Whether `fedlada pack` wrote it: people give it the same name."""
    try:
        values = json.loads(path.read_bytes())
    except (OSError, ValueError):
        return False
    return isinstance(values, dict) and {"format", "defaults", "runs"} <= values.keys()
