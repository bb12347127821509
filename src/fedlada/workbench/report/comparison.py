"""Comparison of methods: rounds to a target, speed-up, accuracy."""

from __future__ import annotations

import csv
import io
import statistics
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import TypeVar

from fedlada.plots.curves import Runs, refuse_unmeasured, seeds_by_name
from fedlada.training.history import History, Row
from fedlada.training.target import ACCURACY, accuracy_of, column_of, in_words, judged_by, lower_is_better
from fedlada.workbench.report.table import NEVER, Table, spread

Number = TypeVar("Number", int, float)


@dataclass(frozen=True)
class Comparison:
    """Histories of several methods, each over the same seeds, and the value to reach, by default an accuracy."""

    histories: Mapping[str, Runs]
    """Of each method a list of histories or results, one for each seed, or a single one."""
    target: float | None
    """None if there is no target: only final and best values are compared."""
    baseline: str = ""
    """The method to which speed-ups are relative; by default fedavg, or the first one where that is not compared."""
    seeds: Sequence[int] = ()
    """The seeds of each method's histories; 0, 1, ... where none are given."""
    failures: Mapping[tuple[str, int], str] = field(default_factory=dict)
    """The reason of each failed run, by method and seed; it has no final and no best accuracy."""
    metric: str | None = None
    """The metric that is compared, such as `test_loss`, of which lower is better. By default it is the accuracy that
    `History.rounds_to` takes; without a target, the metric that judges the runs."""

    @cached_property
    def runs(self) -> dict[str, list[History]]:
        """The histories of each method, one for each seed."""
        given = seeds_by_name(self.histories).items()
        return {
            name: [one if isinstance(one, History) else History(list(map(dict, one))) for one in own]
            for name, own in given
        }

    def __post_init__(self) -> None:
        if not self.baseline:
            usual = "fedavg" if "fedavg" in self.runs else next(iter(self.runs), "")
            object.__setattr__(self, "baseline", usual)
        elif self.baseline not in self.runs:
            raise ValueError(f"the baseline {self.baseline!r} is not compared; there are {', '.join(self.runs)}")
        if self.metric is not None and not self.failures:  # a failed run may have ended before its first evaluation
            refuse_unmeasured(column_of(self.metric), self._all_rows())

    def _all_rows(self) -> Iterator[Row]:
        return (row for seeds in self.runs.values() for history in seeds for row in history)

    @cached_property
    def compared(self) -> str:
        """The metric that is compared, given or not."""
        if self.metric is not None:
            return self.metric
        measured = {name for row in self._all_rows() for name, value in row.items() if value is not None}
        return judged_by(measured) if self.target is None else accuracy_of(measured)

    @property
    def short(self) -> str:
        """The metric in a word or two."""
        return "accuracy" if column_of(self.compared) == ACCURACY else in_words(self.compared)

    @property
    def columns(self) -> tuple[str, ...]:
        """The heads of the table."""
        to_target = () if self.target is None else ("rounds to target", "speed-up", "MB to target")
        return ("method", *to_target, f"final {self.short}", f"best {self.short}", "MB per round", "seconds per round")

    def rows(self) -> list[list[str]]:
        """One row of text per method, in the order of `columns`."""
        return [self._row(name) for name in self.runs]

    def rounds_to_target(self, method: str) -> list[int | None]:
        """For each seed the round of the first evaluation that reached the target."""
        return [self._of_target(history, History.rounds_to) for history in self.runs[method]]

    def bytes_to_target(self, method: str) -> list[int | None]:
        """Total traffic up to that round, for each seed."""
        return [self._of_target(history, History.bytes_to) for history in self.runs[method]]

    def _of_target(self, history: History, count: Callable[[History, float, str], int | None]) -> int | None:
        is_measured = bool(history.measured(self.compared)[1])  # not before the first evaluation
        return count(history, self.target, self.compared) if self.target is not None and is_measured else None

    def speed_up(self, method: str) -> float | None:
        """The baseline's mean rounds to the target over this method's; None unless all seeds of both reached it."""
        own, base = _arrived(self.rounds_to_target(method)), _arrived(self.rounds_to_target(self.baseline))
        if len(own) < len(self.runs[method]) or len(base) < len(self.runs[self.baseline]):
            return None
        return statistics.fmean(base) / statistics.fmean(own)

    def final_accuracies(self, method: str) -> list[float | None]:
        """For each seed the metric at the last evaluation; None where the run failed."""
        return self._of_whole_runs(method, lambda history: next(reversed(history.measured(self.compared)[1]), None))

    def best_accuracies(self, method: str) -> list[float | None]:
        """For each seed the best value of the metric; None where the run failed."""
        best = min if lower_is_better(self.compared) else max
        return self._of_whole_runs(method, lambda history: best(history.measured(self.compared)[1], default=None))

    def _of_whole_runs(self, method: str, value: Callable[[History], float | None]) -> list[float | None]:
        own = self.runs[method]
        names = self.seeds or range(len(own))
        return [None if (method, seed) in self.failures else value(one) for seed, one in zip(names, own, strict=True)]

    def _row(self, method: str) -> list[str]:
        seeds = self.runs[method]
        speed_up = self.speed_up(method)
        sizes = self.bytes_to_target(method)
        to_target = [
            _rounds(self.rounds_to_target(method)),
            "-" if speed_up is None else f"{speed_up:.2f}x",
            _rounds([None if size is None else size / 1e6 for size in sizes], ".3g"),
        ]
        return [
            method,
            *([] if self.target is None else to_target),
            _spread(self.final_accuracies(method), self.compared),
            _spread(self.best_accuracies(method), self.compared),
            _mean([(row["bytes_up"] + row["bytes_down"]) / 1e6 for history in seeds for row in history]),
            _mean([row.get("seconds", 0.0) for history in seeds for row in history]),
        ]

    def to_table(self) -> Table:
        """The table that is printed, written and shown on a page."""
        fewest, most = (few(map(len, self.runs.values()), default=0) for few in (min, max))
        seeds = str(most) if fewest == most else f"{fewest} to {most}"
        over = "one seed" if fewest == most == 1 else f"mean ± standard deviation over {seeds} seeds"
        goal = "" if self.target is None else f" target {self.target:g}"
        speed_up = (
            f"Speed-up: rounds to the target, relative to {self.baseline}. {NEVER}: not reached in the rounds run."
        )
        return Table(
            title=f"{self.short.capitalize()}{goal}, {over}",
            columns=self.columns,
            rows=tuple(tuple(row) for row in self.rows()),
            notes=(
                *(() if self.target is None else (speed_up,)),
                "MB: the vectors of all clients, up and down, as they were encoded.",
                *(f"{method}, seed {seed} failed: {why.rstrip('.')}." for (method, seed), why in self.failures.items()),
            ),
        )

    def to_csv(self) -> str:
        """The figures for a spreadsheet: one line for each method and seed."""
        out = io.StringIO()
        writer = csv.writer(out, lineterminator="\n")
        name = self.short.replace(" ", "_")
        measured = (f"final_{name}", f"best_{name}")
        writer.writerow(["method", "seed", "target", "rounds_to_target", "bytes_to_target", *measured, "failure"])
        for method, own in self.runs.items():
            seeds = self.seeds or range(len(own))
            columns = (
                self.rounds_to_target(method),
                self.bytes_to_target(method),
                self.final_accuracies(method),
                self.best_accuracies(method),
            )
            for seed, *values in zip(seeds, *columns, strict=True):
                cells = ["" if value is None else value for value in (self.target, *values)]
                writer.writerow([method, seed, *cells, self.failures.get((method, seed), "")])
        return out.getvalue()


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


def _spread(values: Sequence[float | None], metric: str) -> str:
    is_share = "accuracy" in metric
    known = [100 * value if is_share else value for value in values if value is not None]
    some = "" if len(known) == len(values) else f" ({len(known)} of {len(values)} seeds)"
    text = f"{spread(known, '.2f')} %" if is_share else spread(known, ".4g")
    return f"{text}{some}" if known else f"-{some}"
