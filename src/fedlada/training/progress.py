"""A live progress line on a terminal or in a notebook, plain lines elsewhere."""

from __future__ import annotations

import sys
import time
from typing import TYPE_CHECKING, Any

from fedlada.training.history import Row
from fedlada.training.observers import PlainProgress, describe
from fedlada.training.simulation import Observer, Simulation

WIDE = 120
"""Width of a terminal, in columns, that fits a full line."""
SECONDS_BETWEEN = 0.2
"""Least time between two updates of a notebook's line: a front end cannot show thousands per second."""

if TYPE_CHECKING:
    from rich.progress import Progress


def shell() -> Any:
    """The IPython shell that this runs in, or None."""
    ipython = sys.modules.get("IPython")
    return None if ipython is None else ipython.get_ipython()


def in_a_notebook() -> bool:
    """Whether IPython runs in a kernel, such as a notebook's."""
    return hasattr(shell(), "kernel")


def somebody_watches() -> bool:
    """Whether a live progress display is visible: on a terminal or in a notebook."""
    return in_a_notebook() or (sys.stderr is not None and sys.stderr.isatty())


def is_interactive() -> bool:
    """Whether Python is interactive: its prompt, `python -i`, IPython or a notebook; not a script."""
    return hasattr(sys, "ps1") or bool(sys.flags.interactive) or shell() is not None


def live_or_plain(label: str = "") -> Observer:
    """The live display in a notebook, or if standard error is a terminal and rich is installed."""
    if in_a_notebook():
        return NotebookProgress(label)
    if not sys.stderr.isatty():
        return PlainProgress(label=label)
    try:
        import rich  # noqa: F401
    except ImportError:
        return PlainProgress(label=label)
    return LiveProgress(label)


def in_brief(news: str, width: int) -> str:
    """A round's metrics that fit the given width: all of them, or the accuracy alone."""
    if width >= WIDE:
        return news
    parts = news.split(", ")
    return next((part for part in parts if "accuracy" in part), parts[-1])


def new_bars() -> Progress:
    """Progress bars on standard error, each with a text field `news`."""
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    console = Console(stderr=True)
    return Progress(
        TextColumn("{task.description}"),
        BarColumn(40 if console.width >= WIDE else 8),
        MofNCompleteColumn(),
        TextColumn("{task.fields[news]}", markup=False),
        TimeRemainingColumn(),
        console=console,
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
        self.bar.update(self.task, completed=row["round"], news=in_brief(describe(row), self.bar.console.width))

    def on_end(self, simulation: Simulation) -> None:
        self.bar.stop()


class NotebookProgress(Observer):
    """One line of a notebook that is replaced after each round."""

    def __init__(self, label: str = "") -> None:
        self.label = f"{label}: " if label else ""

    def on_start(self, simulation: Simulation, num_rounds: int) -> None:
        from IPython.display import display

        self.num_rounds, self.shown = num_rounds, time.monotonic()
        self.handle = display(self._line(simulation.round, "starting"), raw=True, display_id=True)

    def on_round(self, simulation: Simulation, row: Row) -> None:
        now = time.monotonic()
        if now - self.shown >= SECONDS_BETWEEN:
            self.shown = now
            self.handle.update(self._line(row["round"], describe(row)), raw=True)

    def on_end(self, simulation: Simulation) -> None:
        news = describe(simulation.history[-1]) if simulation.history else "no round was run"
        self.handle.update(self._line(simulation.round, news), raw=True)

    def _line(self, round: int, news: str) -> dict[str, str]:
        return {"text/plain": f"{self.label}round {round}/{self.num_rounds}: {news}"}
