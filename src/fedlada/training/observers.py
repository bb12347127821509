"""Whoever wants to know what a simulation does: progress, metrics, checkpoints, the user's own callbacks."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from typing import TextIO

from fedlada.training.history import Row
from fedlada.training.simulation import Observer, Simulation

Callback = Observer | Callable[[Simulation, Row], None]


class _FunctionObserver(Observer):
    def __init__(self, function: Callable[[Simulation, Row], None]) -> None:
        self.function = function

    def on_round(self, simulation: Simulation, row: Row) -> None:
        self.function(simulation, row)


def as_observer(callback: Callback) -> Observer:
    """An observer as it is, a function as an observer of rounds."""
    return callback if isinstance(callback, Observer) else _FunctionObserver(callback)


class StopAt(Observer):
    """Ends a run when a metric is at or above a target, or after so many seconds."""

    def __init__(self, accuracy: float | None, seconds: float | None) -> None:
        self.accuracy = accuracy
        self.seconds = seconds

    def on_start(self, simulation: Simulation, num_rounds: int) -> None:
        self.start = time.monotonic()
        if self.accuracy is not None and (done := simulation.history.rounds_to(self.accuracy)) is not None:
            simulation.stop(f"reached an accuracy of {self.accuracy:g} in round {done}")

    def on_round(self, simulation: Simulation, row: Row) -> None:
        accuracy = row.get("test_accuracy")
        if self.accuracy is not None and accuracy is not None and accuracy >= self.accuracy:
            simulation.stop(f"reached an accuracy of {accuracy:.4f} in round {row['round']}")
        if self.seconds is not None and time.monotonic() - self.start >= self.seconds:
            simulation.stop(f"the time limit of {self.seconds:g} s was reached in round {row['round']}")


def describe(row: Row) -> str:
    """A round in a few words: loss and whatever was evaluated."""
    parts = [] if row.get("train_loss") is None else [f"training loss {row['train_loss']:.4f}"]
    parts += [
        f"{name.replace('_', ' ')} {value:.4f}"
        for name, value in row.items()
        if name.startswith(("test_", "validation_", "full_train_")) and isinstance(value, float)
    ]
    if row.get("epsilon") is not None:
        parts.append(f"epsilon {row['epsilon']:.4g}")
    for name in ("lost", "refused", "idle"):
        if row.get(name):
            parts.append(f"{len(row[name])} {name}")
    return ", ".join(parts)


class PlainProgress(Observer):
    """A line about every tenth of the way: for logs and pipes, and where rich is not installed."""

    def __init__(self, stream: TextIO | None = None, label: str = "") -> None:
        self.stream = stream
        self.label = f"{label}: " if label else ""

    def on_start(self, simulation: Simulation, num_rounds: int) -> None:
        self.num_rounds = num_rounds
        self.every = max(1, num_rounds // 10)
        self.start, self.first = time.monotonic(), simulation.round

    def on_round(self, simulation: Simulation, row: Row) -> None:
        done = row["round"]
        if done % self.every and done != self.num_rounds:
            return
        per_round = (time.monotonic() - self.start) / (done - self.first)
        left = f"{per_round * (self.num_rounds - done):.0f} s left"
        # stderr is looked up now, so that whoever replaced it since sees the line
        print(f"{self.label}round {done}/{self.num_rounds}: {describe(row)}, {left}", file=self.stream or sys.stderr)
