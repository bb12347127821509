"""`diverged.json`: marks a run that diverged, which it would do again."""

from __future__ import annotations

import json
from pathlib import Path

DIVERGED_FILE = "diverged.json"
"""Its file in the run's folder, with the last good round and the error message."""


def diverged_in(folder: Path) -> tuple[int, str] | None:
    """The last good round of a run that diverged, and its error message."""
    try:
        said = json.loads((folder / DIVERGED_FILE).read_bytes())
        return int(said["round"]), str(said["why"])
    except (OSError, ValueError, KeyError, TypeError):
        return None
