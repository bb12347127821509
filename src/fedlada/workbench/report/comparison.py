"""Many runs beside each other: rounds to a target, speed-up, accuracy."""

from __future__ import annotations

import csv
import io
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeVar

from fedlada.training.history import History
from fedlada.workbench.report.table import NEVER, Table, spread

ACCURACIES = ("final_accuracy", "best_accuracy")
Number = TypeVar("Number", int, float)
COLUMNS = (
    "method",
    "rounds to target",
    "speed-up",
    "MB to target",
    "final accuracy",
    "best accuracy",
    "MB per round",
    "seconds per round",
)


@dataclass(frozen=True)
class Comparison:
    """Histories of several methods, each over the same seeds, and the accuracy to reach."""

    histories: Mapping[str, Sequence[History]]
    target: float
    baseline: str = "fedavg"
    """The method against which speed-ups are counted."""
    seeds: Sequence[int] = ()
    """The seeds of each method's histories; 0, 1, ... where none are given."""
    failures: Mapping[tuple[str, int], str] = field(default_factory=dict)
    """By method and seed why a run failed: it has no final and no best accuracy, and it is named."""

    def rows(self) -> list[list[str]]:
        """One row of text a method, in the order of `COLUMNS`."""
        return [self._row(name) for name in self.histories]

    def rounds_to_target(self, method: str) -> list[int | None]:
        """For each seed the round of the first evaluation at or above the target."""
        return [history.rounds_to(self.target) for history in self.histories[method]]

    def speed_up(self, method: str) -> float | None:
        """The baseline's mean rounds to the target over this method's; None unless all seeds of both arrived."""
        if self.baseline not in self.histories:
            return None
        own, base = _arrived(self.rounds_to_target(method)), _arrived(self.rounds_to_target(self.baseline))
        if len(own) < len(self.histories[method]) or len(base) < len(self.histories[self.baseline]):
            return None
        return statistics.fmean(base) / statistics.fmean(own)

    def final_accuracies(self, method: str) -> list[float | None]:
        """For each seed the accuracy of the last evaluation; None where the run failed."""
        return self._of_whole_runs(method, _last)

    def best_accuracies(self, method: str) -> list[float | None]:
        """For each seed the highest accuracy; None where the run failed."""
        return self._of_whole_runs(method, History.best)

    def _of_whole_runs(self, method: str, value: Callable[[History], float | None]) -> list[float | None]:
        own = self.histories[method]
        names = self.seeds or range(len(own))
        return [None if (method, seed) in self.failures else value(one) for seed, one in zip(names, own, strict=True)]

    def _row(self, method: str) -> list[str]:
        seeds = self.histories[method]
        speed_up = self.speed_up(method)
        sizes = [history.bytes_to(self.target) for history in seeds]
        return [
            method,
            _rounds(self.rounds_to_target(method)),
            "-" if speed_up is None else f"{speed_up:.2f}x",
            _rounds([None if size is None else size / 1e6 for size in sizes], ".3g"),
            _spread(self.final_accuracies(method)),
            _spread(self.best_accuracies(method)),
            _mean([(row["bytes_up"] + row["bytes_down"]) / 1e6 for history in seeds for row in history]),
            _mean([row.get("seconds", 0.0) for history in seeds for row in history]),
        ]

    def to_table(self) -> Table:
        """The table that is printed, written and shown on a page."""
        num_seeds = max(map(len, self.histories.values()), default=0)
        return Table(
            title=f"Accuracy target {self.target:g}, mean ± standard deviation over {num_seeds} seed(s)",
            columns=COLUMNS,
            rows=tuple(tuple(row) for row in self.rows()),
            notes=(
                f"Speed-up: rounds to the target, relative to {self.baseline}. {NEVER}: not reached in the rounds run.",
                "MB: the vectors of all clients, up and down, as they were encoded.",
                *(f"{method}, seed {seed} failed: {why.rstrip('.')}." for (method, seed), why in self.failures.items()),
            ),
        )

    def to_csv(self) -> str:
        """The figures for a spreadsheet: one line for each method and seed."""
        out = io.StringIO()
        writer = csv.writer(out, lineterminator="\n")
        writer.writerow(["method", "seed", "target", "rounds_to_target", "bytes_to_target", *ACCURACIES, "failure"])
        for method, own in self.histories.items():
            seeds = self.seeds or range(len(own))
            accuracies = zip(self.final_accuracies(method), self.best_accuracies(method), strict=True)
            for seed, history, both in zip(seeds, own, accuracies, strict=True):
                values = [history.rounds_to(self.target), history.bytes_to(self.target), *both]
                cells = ["" if value is None else value for value in values]
                writer.writerow([method, seed, self.target, *cells, self.failures.get((method, seed), "")])
        return out.getvalue()


def _last(history: History) -> float | None:
    values = history.measured("test_accuracy")[1]
    return values[-1] if values else None


def _arrived(values: Sequence[Number | None]) -> list[Number]:
    return [value for value in values if value is not None]


def _rounds(values: Sequence[float | None], form: str = ".1f") -> str:
    """Rounds, or megabytes, to the target."""
    arrived = _arrived(values)
    text = spread(arrived, form)
    if arrived and len(arrived) < len(values):
        return f"{NEVER} ({len(arrived)} of {len(values)} arrived: {text})"
    return text or NEVER


def _mean(values: Sequence[float]) -> str:
    return f"{statistics.fmean(values):.3g}" if values else "-"


def _spread(values: Sequence[float | None]) -> str:
    known = [100 * value for value in values if value is not None]
    some = "" if len(known) == len(values) else f" ({len(known)} of {len(values)} seeds)"
    return f"{spread(known, '.2f')} %{some}" if known else f"-{some}"
