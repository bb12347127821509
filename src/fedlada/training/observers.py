"""Observers of a simulation: progress, early stopping and the user's own callbacks."""

from __future__ import annotations

import math
import sys
import time
import warnings
from collections.abc import Callable, Sequence
from inspect import signature
from typing import TextIO

from fedlada.engines.default_loss import WORDS
from fedlada.engines.engine import Engine
from fedlada.methods.validation import count, not_negative
from fedlada.training.history import Row
from fedlada.training.shown import EVALUATED, plural
from fedlada.training.simulation import Observer, Simulation
from fedlada.training.target import ACCURACY, Target, column_of, in_words, is_better

Callback = Observer | Callable[[Simulation, Row], None]


class _FunctionObserver(Observer):
    def __init__(self, function: Callable[[Simulation, Row], None]) -> None:
        self.function = function

    def on_round(self, simulation: Simulation, row: Row) -> None:
        self.function(simulation, row)


def as_observers(callbacks: Sequence[Callback]) -> list[Observer]:
    """Callbacks as observers; a function is called after each round."""
    if callable(callbacks) or isinstance(callbacks, Observer):
        raise ValueError(f"callbacks must be a list: callbacks=[{getattr(callbacks, '__name__', 'mine')}]")
    return [as_observer(callback) for callback in callbacks]


def as_observer(callback: Callback) -> Observer:
    """An observer itself; a function as an observer that is called after each round."""
    if not (callable(callback) or isinstance(callback, Observer)):
        raise ValueError(f"a callback must be a function (simulation, row) or a fedlada.Observer, got {callback!r}")
    if isinstance(callback, Observer):
        return callback
    if isinstance(callback, type) or not _takes_two(callback):
        name = getattr(callback, "__name__", repr(callback))
        raise ValueError(f"a callback must be a function (simulation, row) or a fedlada.Observer: {name} is neither")
    return _FunctionObserver(callback)


def _takes_two(function: Callable[..., object]) -> bool:
    try:
        signature(function).bind(None, None)
    except TypeError:
        return False
    except ValueError:
        pass  # a function in C may not tell
    return True


class StopAt(Observer):
    """Ends a run when one of the targets or the time limit is reached."""

    def __init__(self, targets: Sequence[Target], seconds: float | None) -> None:
        if seconds not in (None, math.inf):
            not_negative("stop_after_seconds", seconds)
        self.targets = targets
        self.seconds = seconds

    def on_start(self, simulation: Simulation, num_rounds: int) -> None:
        self.start = time.monotonic()
        for target in self.targets:
            measured = zip(*simulation.history.measured(target.metric), strict=True)
            if (done := next((round for round, value in measured if target.is_reached_by(value)), None)) is not None:
                simulation.stop(_reached(target, f"{target.value:g}", done))

    def on_round(self, simulation: Simulation, row: Row) -> None:
        for target in self.targets:
            value = row.get(target.column)
            if value is not None and target.is_reached_by(value):
                simulation.stop(_reached(target, f"{value:.4f}", row["round"]))
        if self.seconds is not None and time.monotonic() - self.start >= self.seconds:
            simulation.stop(f"the time limit of {self.seconds:g} s was reached in round {row['round']}")


class StopWithout(Observer):
    """Ends a run when the metric that it is judged by has not improved in so many evaluations, one after another."""

    def __init__(self, patience: int) -> None:
        count("patience", patience)
        self.patience = patience

    def on_start(self, simulation: Simulation, num_rounds: int) -> None:
        self.metric, self.best, self.round, self.since = "", math.nan, 0, 0
        self._look(simulation, simulation.history.rows)

    def on_round(self, simulation: Simulation, row: Row) -> None:
        self._look(simulation, [row])

    def _look(self, simulation: Simulation, rows: Sequence[Row]) -> None:
        """Look at each row once."""
        metric = self.metric or simulation.history.judged_by
        for row in rows:
            value = row.get(column_of(metric))
            if value is None:
                continue
            if not self.metric or is_better(metric, value, self.best):
                self.metric, self.best, self.round, self.since = metric, value, row["round"], 0
            else:
                self.since += 1
        if self.since >= self.patience:
            what = f"{in_words(metric)} did not improve in {plural(self.patience, 'evaluation')}"
            simulation.stop(f"{what} after round {self.round}, which had {self.best:.4f}")


def _reached(target: Target, value: str, round: int) -> str:
    what = "an accuracy" if target.column == ACCURACY else f"a {in_words(target.metric)}"
    return f"reached {what} of {value} in round {round}"


class SaysLoss(Observer):
    """Prints once which loss was chosen for the targets."""

    def on_start(self, simulation: Simulation, num_rounds: int) -> None:
        print(f"fedlada: the loss is {loss_in_words(simulation.engine)}; set another with loss=", file=sys.stderr)


class WarnsOfRefused(Observer):
    """Warns once when clients are left out because of NaN or infinity, unless they attack."""

    def on_start(self, simulation: Simulation, num_rounds: int) -> None:
        self.is_silent = False

    def on_round(self, simulation: Simulation, row: Row) -> None:
        refused = sorted({*row["refused"]} - {*row.get("attackers", ())})
        if refused and not self.is_silent:
            self.is_silent = True
            warnings.warn(
                f"round {row['round']}: the update of client {refused[0]} has a NaN or an infinity and is left out of "
                "the mean: look at its data, or try a smaller learning rate (the history's column 'refused' lists all "
                "such clients)",
                stacklevel=2,
            )


class SaysStored(Observer):
    """Prints once that a run is loaded from its folder, where all of it is."""

    def __init__(self, folder: object) -> None:
        self.folder = folder

    def on_start(self, simulation: Simulation, num_rounds: int) -> None:
        if simulation.round and (simulation.round >= num_rounds or simulation.stopped):
            print(
                f"fedlada: {self.folder} holds this run, which ended after round {simulation.round}: it is loaded, "
                "nothing is trained",
                file=sys.stderr,
            )


def loss_in_words(engine: Engine) -> str:
    """A default loss with the reason for it, any other by its name."""
    return WORDS.get(engine.loss, engine.loss_name)


def describe(row: Row) -> str:
    """A round in brief: training loss and evaluations."""
    parts = [] if row.get("train_loss") is None else [f"training loss {row['train_loss']:.4f}"]
    parts += [
        f"{name.replace('_', ' ')} {value:.4f}"
        for name, value in row.items()
        if name.startswith(EVALUATED) and not name.endswith(("_worst_decile", "_std")) and isinstance(value, float)
    ]
    if row.get("epsilon") is not None:
        parts.append(f"epsilon {row['epsilon']:.4g}")
    for name in ("lost", "refused", "idle"):
        if row.get(name):
            parts.append(f"{len(row[name])} {name}")
    return ", ".join(parts)


class PlainProgress(Observer):
    """One line per tenth of the run: for logs and pipes, and without rich."""

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
        # look stderr up now: it may have been replaced since
        print(f"{self.label}round {done}/{self.num_rounds}: {describe(row)}, {left}", file=self.stream or sys.stderr)
