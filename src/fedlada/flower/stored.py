"""Facts that an earlier start of a run stored in its folder."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from fedlada.runs.config import read_config
from fedlada.runs.files import write_json
from fedlada.runs.folder import RunFolder
from fedlada.runs.metrics import read_rows
from fedlada.training.history import Row
from fedlada.training.simulation import Observer, Simulation


def run_name(out: str | Path | None) -> str:
    """A run's name: that of the run found in the folder, or a new one that no other run has."""
    stored = _stored(out).get("run")
    return stored if isinstance(stored, str) else uuid.uuid4().hex


def stored_examples(out: str | Path | None, num_clients: int) -> dict[int, int]:
    """Each client's number of samples, as stored in the run folder."""
    stored = _stored(out).get("examples")
    if not isinstance(stored, list) or len(stored) != num_clients or any(type(one) is not int for one in stored):
        return {}
    return dict(enumerate(stored))


def has_ended(folder: RunFolder, simulation: Simulation, num_rounds: int, stops: Sequence[Observer]) -> bool:
    """Whether the run in the folder has all its rounds, or was stopped: nothing is left to do for the nodes."""
    done = max(folder.checkpoints.rounds(), default=0)
    fresh, simulation.history = simulation.history, simulation.history_of(read_rows(folder.metrics_path)[:done])
    for one in stops:
        one.on_start(simulation, num_rounds)
    ended = done >= num_rounds or bool(simulation.stopped)
    simulation.history, simulation.stopped = fresh, ""
    return ended


class StoresExamples(Observer):
    """Updates the clients' numbers of samples in the run folder: a resumed run needs those of absent clients."""

    def __init__(self, out: str | Path, examples: Callable[[], list[int]]) -> None:
        self.out, self.examples = Path(out), examples

    def on_start(self, simulation: Simulation, num_rounds: int) -> None:
        self.stored = self.examples()

    def on_round(self, simulation: Simulation, row: Row) -> None:
        if (examples := self.examples()) != self.stored:
            write_json(self.out / "config.json", {**read_config(self.out), "examples": examples})
            self.stored = examples


def _stored(out: str | Path | None) -> dict[str, Any]:
    return {} if out is None or not (Path(out) / "config.json").exists() else read_config(Path(out))
