"""The history of a run's rounds, and its result."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, overload

from torch import nn

from fedlada.methods.method import FederatedMethod
from fedlada.methods.state import Server

if TYPE_CHECKING:
    import pandas

    from fedlada.plots.draw import Figure

Row = dict[str, Any]
"""One round: `round, lr, train_loss, drift, bytes_up, bytes_down, seconds`, who took part, and what was evaluated."""


class History(Sequence[Row]):
    """The rounds in their order; `history["test_accuracy"]` is one column, with None where it was not measured."""

    def __init__(self, rows: Sequence[Row] = ()) -> None:
        self.rows: list[Row] = list(rows)

    def __len__(self) -> int:
        return len(self.rows)

    def __iter__(self) -> Iterator[Row]:
        return iter(self.rows)

    @overload
    def __getitem__(self, key: str) -> list[Any]: ...
    @overload
    def __getitem__(self, key: int) -> Row: ...
    @overload
    def __getitem__(self, key: slice) -> History: ...
    def __getitem__(self, key: int | slice | str) -> Row | History | list[Any]:
        if isinstance(key, str):
            if self.rows and not any(key in row for row in self.rows):
                known = ", ".join(sorted({name for row in self.rows for name in row}))
                raise KeyError(f"the history has no column {key!r}; it has {known}")
            return [row.get(key) for row in self.rows]
        return History(self.rows[key]) if isinstance(key, slice) else self.rows[key]

    def measured(self, metric: str) -> tuple[list[int], list[float]]:
        """The rounds in which a metric was measured, and its values."""
        pairs = [(row["round"], row[metric]) for row in self.rows if row.get(metric) is not None]
        return [round for round, _ in pairs], [value for _, value in pairs]

    def rounds_to(self, target: float, metric: str = "test_accuracy") -> int | None:
        """The round of the first evaluation at or above the target; None if there was none."""
        rounds, values = self.measured(metric)
        return next((round for round, value in zip(rounds, values, strict=True) if value >= target), None)

    def bytes_to(self, target: float, metric: str = "test_accuracy") -> int | None:
        """All that had travelled, up and down, by the first evaluation at or above the target."""
        arrived = self.rounds_to(target, metric)
        return None if arrived is None else sum(row["bytes_up"] + row["bytes_down"] for row in self.rows[:arrived])

    def best(self, metric: str = "test_accuracy") -> float | None:
        """The highest value of a metric."""
        return max(self.measured(metric)[1], default=None)

    def to_pandas(self) -> pandas.DataFrame:
        """The rows as a frame indexed by round."""
        try:
            import pandas
        except ImportError:
            raise ModuleNotFoundError("history.to_pandas() needs pandas: pip install pandas") from None
        return pandas.DataFrame(self.rows).set_index("round")


@dataclass(frozen=True)
class Result:
    """The result of a simulation."""

    model: nn.Module
    """A copy of the given model with the final global parameters."""
    history: History
    method: FederatedMethod
    server: Server
    """The server's whole final state."""
    stopped: str
    """Why the simulation ended."""
    engine: str = ""
    """The engine that ran the clients: "sequential" or "stacked"."""
    engine_reason: str = ""
    """How, and where it is not what was asked for, why."""

    def plot(self, metric: str | None = None) -> Figure:
        """A picture of the run (needs matplotlib): the metric against rounds, by default accuracy if there is one."""
        from fedlada.plots.draw import plot_histories

        return plot_histories({self.method.name: [self.history]}, metric=metric)
