"""The results of a finished run whose checkpoints are gone: they are kept when the run starts over."""

from __future__ import annotations

import shutil
from pathlib import Path

from fedlada.runs.archived import is_archived
from fedlada.runs.checkpoints import Checkpoints

METRICS = "metrics.jsonl"
MODEL = "model.safetensors"
"""Written when a run ends, and removed when it goes on: a killed run has none."""


def only_results_left(folder: Path, num_stored: int, num_rounds: int) -> bool:
    """Whether a finished run, or one from an archive, has these rounds, but no checkpoint to go on from."""
    has_ended = (folder / MODEL).exists() or is_archived(folder)
    return 0 < num_rounds <= num_stored and has_ended and not Checkpoints(folder / "checkpoints").rounds()


def keep_aside(*paths: Path) -> str:
    """Copy those that exist to unused names; returns the end of a sentence that says where they are."""
    said = {METRICS: "the metrics as they were are", MODEL: "the model as it was is"}
    return "".join(f"; {said[path.name]} in {_copy(path)}" for path in paths if path.exists())


def _copy(path: Path) -> Path:
    names = (f"{path.stem}.old{number}{path.suffix}" for number in ("", *(f"-{more}" for more in range(2, 10_000))))
    old = next(path.with_name(name) for name in names if not path.with_name(name).exists())
    shutil.copy2(path, old)
    return old
