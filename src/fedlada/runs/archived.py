"""`archived.json`: marks a run folder from an archive, which keeps few columns between evaluations."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from pathlib import Path

from fedlada.runs.files import write_json

FILE = "archived.json"


def mark_archived(folder: Path, version: str, made: Mapping[str, str]) -> None:
    """Note in a run folder which version ran it, and where and when according to its archive."""
    write_json(folder / FILE, {"format": 1, "fedlada": version, "made": dict(made)})


def is_archived(folder: Path) -> bool:
    """Whether the folder came from an archive."""
    return (folder / FILE).exists()


def said_of(folder: Path) -> dict[str, str]:
    """Where and when an archived run was made; empty if that cannot be read."""
    return _read(folder)[1]


def archived_notes(folders: Iterable[Path]) -> list[str]:
    """One note per version and origin of those runs that come from archives."""
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
    """The version that ran it, and where and when; empty if that cannot be read."""
    try:
        said = json.loads((folder / FILE).read_bytes())
        return str(said["fedlada"]), {str(name): str(value) for name, value in said["made"].items()}
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return "", {}
