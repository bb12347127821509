"""A live progress line on a terminal, plain lines elsewhere."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from fedlada.training.history import Row
from fedlada.training.observers import PlainProgress, describe
from fedlada.training.simulation import Observer, Simulation

if TYPE_CHECKING:
    from rich.progress import Progress


def live_or_plain(label: str = "") -> Observer:
    """The live display if standard error is a terminal and rich is installed."""
    if not sys.stderr.isatty():
        return PlainProgress(label=label)
    try:
        import rich  # noqa: F401
    except ImportError:
        return PlainProgress(label=label)
    return LiveProgress(label)


def new_bars() -> Progress:
    """Bars on standard error, each with a field `news` for what there is to say."""
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    return Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("{task.fields[news]}", markup=False),
        TimeRemainingColumn(),
        console=Console(stderr=True),
    )


class LiveProgress(Observer):
    """One line with a bar, the round, loss and accuracy, and the time left."""

    def __init__(self, label: str = "") -> None:
        self.label = label
        self.bar = new_bars()

    def on_start(self, simulation: Simulation, num_rounds: int) -> None:
        self.bar.start()
        self.task = self.bar.add_task(self.label, total=num_rounds, completed=simulation.round, news="")

    def on_round(self, simulation: Simulation, row: Row) -> None:
        self.bar.update(self.task, completed=row["round"], news=describe(row))

    def on_end(self, simulation: Simulation) -> None:
        self.bar.stop()
