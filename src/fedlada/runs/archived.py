"""`archived.json`: marks a run's folder that came out of an archive, where rounds between evaluations are thinned."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from pathlib import Path

from fedlada.runs.files import write_json

FILE = "archived.json"


def mark_archived(folder: Path, version: str, made: Mapping[str, str]) -> None:
    """Say in a run's folder which version ran it, and what its archive says of where and when it was made."""
    write_json(folder / FILE, {"format": 1, "fedlada": version, "made": dict(made)})


def is_archived(folder: Path) -> bool:
    """Whether rounds that were not evaluated are thinned there."""
    return (folder / FILE).exists()


def said_of(folder: Path) -> dict[str, str]:
    """Where and when such a run was made, by its archive; nothing where that cannot be read."""
    return _read(folder)[1]


def archived_notes(folders: Iterable[Path]) -> list[str]:
    """A sentence for each version and each place where any of these runs was made, of those from archives."""
    return [
        f"Runs from an archive ({about}) have what was measured in evaluated rounds alone: training loss and drift of "
        "the rounds between them and who took part are missing, and the seconds are spread evenly over the rounds."
        for about in dict.fromkeys(_about(folder) for folder in folders if is_archived(folder))
    ]


def _about(folder: Path) -> str:
    version, made = _read(folder)
    if not version:
        return "of which nothing more can be read"
    return "; ".join([f"fedlada {version}", *(f"{name} {value}" for name, value in made.items())])


def _read(folder: Path) -> tuple[str, dict[str, str]]:
    """The version that ran it, and where and when; empty where that cannot be read."""
    try:
        said = json.loads((folder / FILE).read_bytes())
        return str(said["fedlada"]), {str(name): str(value) for name, value in said["made"].items()}
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return "", {}
