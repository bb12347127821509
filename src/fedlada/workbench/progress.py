"""Progress of many runs in one display, and of downloads and the like."""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from fedlada.training.progress import in_brief, new_bars

if TYPE_CHECKING:
    from rich.progress import Progress

LEAST_KNOWN = 0.01
"""The share of the work from which the remaining time can be estimated."""


@dataclass(frozen=True)
class Course:
    """One of the runs: its last round at most, and the relative cost of a round."""

    label: str
    num_rounds: int
    cost: float = 1.0


class Estimate:
    """The time left, from the work done so far."""

    def __init__(self, courses: Sequence[Course]) -> None:
        self.courses = courses
        self.start = time.monotonic()
        self.first: list[int | None] = [None] * len(courses)
        self.rounds = [0] * len(courses)
        self.ends = [course.num_rounds for course in courses]

    def update(self, number: int, round: int, finished: bool) -> None:
        """Record the round that a run has reached, and whether it has finished."""
        if self.first[number] is None:
            self.first[number] = round  # rounds that were done before took no time in this process
        self.rounds[number] = round
        if finished:
            self.ends[number] = round

    def share_done(self) -> float:
        """The share of the work that is done, from 0 to 1."""
        total = sum(course.cost * end for course, end in zip(self.courses, self.ends, strict=True))
        done = sum(course.cost * round for course, round in zip(self.courses, self.rounds, strict=True))
        return done / total if total else 1.0

    def seconds_left(self) -> float | None:
        """An upper estimate: a run may reach its target before its last round."""
        done = left = 0.0
        for course, first, round, end in zip(self.courses, self.first, self.rounds, self.ends, strict=True):
            done += course.cost * (round - (round if first is None else first))
            left += course.cost * (end - round)
        # The first rounds include all start-up costs: an estimate from them alone would be hours too long.
        is_known = done > LEAST_KNOWN * (done + left)
        return (time.monotonic() - self.start) * left / done if is_known else None


class Display:
    """Shows nothing."""

    def update(self, number: int, round: int, news: str, finished: bool) -> None:
        """A run has finished a round, or all that was needed."""

    def close(self) -> None:
        """End the display."""


class Lines(Display):
    """A line for each finished run and for each twentieth of the work, where standard error is not a terminal."""

    def __init__(self, courses: Sequence[Course]) -> None:
        self.courses = courses
        self.estimate = Estimate(courses)
        self.done: set[int] = set()
        self.reported = 0.0

    def update(self, number: int, round: int, news: str, finished: bool) -> None:
        """Print a line if enough has changed."""
        self.estimate.update(number, round, finished)
        share = self.estimate.share_done()
        if finished and number not in self.done:
            self.done.add(number)
        elif not news or share < self.reported + 0.05:
            return
        self.reported = share
        so_far = f"{self.courses[number].label}, round {round}: {news}" if news else self.courses[number].label
        left = self.estimate.seconds_left()
        end = "" if left is None or len(self.done) == len(self.courses) else f"; {in_words(left)} left"
        print(f"[{len(self.done)}/{len(self.courses)}] {so_far}{end}", file=sys.stderr)


class Bars(Display):
    """A bar for all runs together, and one for each active run."""

    def __init__(self, courses: Sequence[Course]) -> None:
        self.estimate = Estimate(courses)
        self.bars = new_bars()
        self.total = self.bars.add_task("all rounds", total=sum(self.estimate.ends), news="")
        self.tasks = [
            self.bars.add_task(course.label, total=course.num_rounds, news="", visible=False) for course in courses
        ]
        self.bars.start()

    def update(self, number: int, round: int, news: str, finished: bool) -> None:
        """Move the bars."""
        self.estimate.update(number, round, finished)
        brief = in_brief(news, self.bars.console.width)
        self.bars.update(self.tasks[number], completed=round, news=brief, visible=not finished)
        left = self.estimate.seconds_left()
        self.bars.update(
            self.total,
            completed=sum(self.estimate.rounds),
            total=sum(self.estimate.ends),
            news="" if left is None else f"{in_words(left)} left",
        )

    def close(self) -> None:
        """Leave the terminal as it was."""
        self.bars.stop()


class Chores:
    """Progress of downloads and the like: a bar for each, or a line at each tenth if not on a terminal."""

    def __init__(self, *, quiet: bool = False) -> None:
        self.quiet = quiet
        self.live: Progress | None = None
        self.tasks: dict[str, Any] = {}
        self.tenths: dict[str, int] = {}

    def __call__(self, what: str, done: int, total: int) -> None:
        """Show the progress of one task."""
        if self.quiet:
            return
        if not sys.stderr.isatty():
            tenth = done * 10 // max(1, total)
            if tenth != self.tenths.get(what, 0):
                print(f"{what}: {done} of {total}", file=sys.stderr)
            self.tenths[what] = tenth
            return
        if self.live is None:
            from rich.console import Console
            from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeRemainingColumn

            columns = (TextColumn("{task.description}"), BarColumn(), TaskProgressColumn(), TimeRemainingColumn())
            self.live = Progress(*columns, console=Console(stderr=True))
            self.live.start()
        if what not in self.tasks:
            self.tasks[what] = self.live.add_task(what)
        self.live.update(self.tasks[what], completed=done, total=total)

    def __enter__(self) -> Chores:
        return self

    def __exit__(self, *error: object) -> None:
        if self.live is not None:
            self.live.stop()


def display_for(courses: Sequence[Course], *, quiet: bool) -> Display:
    """The display for a terminal or for a log."""
    if quiet:
        return Display()
    return Bars(courses) if sys.stderr.isatty() else Lines(courses)


def in_words(seconds: float) -> str:
    """A duration in words, rounded."""
    if seconds < 90:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"
