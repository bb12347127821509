"""Facts that an earlier start of a run has left in its folder."""

from __future__ import annotations

import uuid
from pathlib import Path

from fedlada.runs.config import read_config


def run_name(out: str | Path | None) -> str:
    """A run's name: that of the run found in the folder, or a new one that no other run has."""
    if out is not None and (Path(out) / "config.json").exists():
        stored = read_config(Path(out)).get("run")
        if isinstance(stored, str):
            return stored
    return uuid.uuid4().hex


def stored_examples(out: str | Path | None, num_clients: int) -> dict[int, int]:
    """Each client's samples, as the run found in the folder has noted them."""
    if out is None or not (Path(out) / "config.json").exists():
        return {}
    stored = read_config(Path(out)).get("examples")
    if not isinstance(stored, list) or len(stored) != num_clients or any(type(one) is not int for one in stored):
        return {}
    return dict(enumerate(stored))
