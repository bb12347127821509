"""Progress of anything that is not a run: downloads, decoding."""

from __future__ import annotations

import sys
from types import TracebackType

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskID, TaskProgressColumn, TextColumn, TimeRemainingColumn


class Bars:
    """A bar for each thing that reports its progress; a line at each tenth of the way where nobody watches."""

    def __init__(self, *, quiet: bool = False) -> None:
        self.quiet = quiet
        self.live: Progress | None = None
        self.tasks: dict[str, TaskID] = {}
        self.tenths: dict[str, int] = {}

    def __call__(self, what: str, done: int, total: int) -> None:
        """Something is so far."""
        if self.quiet:
            return
        if not sys.stderr.isatty():
            tenth = done * 10 // max(1, total)
            if tenth != self.tenths.get(what, 0):
                print(f"{what}: {done} of {total}", file=sys.stderr)
            self.tenths[what] = tenth
            return
        if self.live is None:
            columns = (TextColumn("{task.description}"), BarColumn(), TaskProgressColumn(), TimeRemainingColumn())
            self.live = Progress(*columns, console=Console(stderr=True))
            self.live.start()
        if what not in self.tasks:
            self.tasks[what] = self.live.add_task(what)
        self.live.update(self.tasks[what], completed=done, total=total)

    def __enter__(self) -> Bars:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self.live is not None:
            self.live.stop()
