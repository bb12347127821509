"""The history of a run's rounds, and its result."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from html import escape
from numbers import Integral
from typing import TYPE_CHECKING, Any, overload

from torch import nn

from fedlada.data.given import Collate
from fedlada.engines.evaluation import AS_USUAL, Loss, Metric, evaluate_trained
from fedlada.engines.inputs import AS_GIVEN, Inputs
from fedlada.methods.extras import missing
from fedlada.methods.method import FederatedMethod
from fedlada.methods.state import Kept, Server, Vectors
from fedlada.models.flat import model_with
from fedlada.training.shown import as_html, as_lines, plural
from fedlada.training.target import accuracy_of, column_of, in_words, is_reached, judged_by, lower_is_better

if TYPE_CHECKING:
    import pandas

    from fedlada.plots.draw import Figure

Row = dict[str, Any]
"""One round: `round, lr, train_loss, drift, bytes_up, bytes_down, seconds`, who took part, and what was evaluated."""
ClientValues = dict[str, Any]
"""The `round` in which clients were tested, and each metric as a list by client; None without test samples, or
where a metric of the user's gave no finite number."""


NO_SINGLE_MODEL = "with personal parameters there is no single model: give model=, such as client_model(0) of this run"


class History(Sequence[Row]):
    """The rounds in order; `history["test_accuracy"]` is one column, with None where it was not measured.

    `client_names` and `class_names` are the names of clients and classes 0, 1, ..., if they have any. `judge` is the
    metric by which the run's best model is chosen, if it was given.
    """

    def __init__(
        self,
        rows: Sequence[Row] = (),
        *,
        client_names: Sequence[str] = (),
        class_names: Sequence[str] = (),
        judge: str | None = None,
    ) -> None:
        self.rows: list[Row] = list(rows)
        self.client_names, self.class_names = tuple(client_names), tuple(class_names)
        self.judge = judge

    def __len__(self) -> int:
        return len(self.rows)

    def __repr__(self) -> str:
        return "\n".join([self._headline(), *as_lines(self.rows)])

    def _repr_html_(self) -> str:
        return f"<p>{escape(self._headline())}</p>{as_html(self.rows)}"

    def _headline(self) -> str:
        metric, best = self.judged_by, self.best()
        known = "" if best is None else f", best {in_words(metric)} {best:.4f}"
        return f"History of {plural(len(self), 'round')}{known}"

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
            self._check(key)
            return [row.get(key) for row in self.rows]
        if isinstance(key, slice):
            names: Any = {"client_names": self.client_names, "class_names": self.class_names}
            return History(self.rows[key], judge=self.judge, **names)
        return self.rows[key]

    def _check(self, column: str) -> None:
        if self.rows and not any(column in row for row in self.rows):
            known = ", ".join(sorted({name for row in self.rows for name in row}))
            raise KeyError(f"the history has no column {column!r}; it has {known}")

    @property
    def judged_by(self) -> str:
        """The metric that a run is judged by: the one that `simulate(best=...)` was given, or the usual one.

        That is the test accuracy, else the test loss, else those of the validation, of the clients, of the nodes.
        """
        return self.judge or self.usual_judge

    @property
    def usual_judge(self) -> str:
        """The metric that judges a run whose `best` was not given."""
        return judged_by({name for row in self.rows for name, value in row.items() if value is not None})

    def measured(self, metric: str) -> tuple[list[int], list[float]]:
        """The rounds in which a metric was measured, and its values."""
        column = column_of(metric)
        pairs = [(row["round"], row[column]) for row in self.rows if row.get(column) is not None]
        return [round for round, _ in pairs], [value for _, value in pairs]

    def rounds_to(self, target: float, metric: str | None = None) -> int | None:
        """The round of the first evaluation at or above the target (a loss: at or below); None if there was none.

        The metric is by default the test accuracy; without test data the validation's, then the clients'. One whose
        name does not say which way is better is written `min:NAME` or `max:NAME`.
        """
        place = self._place_of(target, metric)
        return None if place is None else self.rows[place]["round"]

    def _place_of(self, target: float, metric: str | None) -> int | None:
        """The place of the first row that reached the target."""
        name = metric or self._accuracy
        column = column_of(name)
        if metric is not None:
            self._check(column)
        values = ((place, row.get(column)) for place, row in enumerate(self.rows))
        return next((place for place, value in values if value is not None and is_reached(name, value, target)), None)

    @property
    def _accuracy(self) -> str:
        return accuracy_of([self.usual_judge])

    def bytes_to(self, target: float, metric: str | None = None) -> int | None:
        """Total traffic in bytes, up and down, until the first evaluation that reached the target.

        Of a slice, the traffic of its own rounds.
        """
        place = self._place_of(target, metric)
        return None if place is None else sum(row["bytes_up"] + row["bytes_down"] for row in self.rows[: place + 1])

    def best(self, metric: str | None = None) -> float | None:
        """The highest value of a metric, or the lowest of a loss; by default of the metric that judges the run.

        That is the one of `simulate(best=...)`, else the test accuracy, else the test loss; without test data those of
        the validation, then of the clients. `min:NAME` and `max:NAME` say which way is better, if the name does not.
        """
        if metric is not None:
            self._check(column_of(metric))
        name = metric or self.judged_by
        return (min if lower_is_better(name) else max)(self.measured(name)[1], default=None)

    def to_pandas(self) -> pandas.DataFrame:
        """The rows as a frame indexed by round."""
        try:
            import pandas
        except ImportError:
            raise missing("history.to_pandas() needs pandas", "pandas") from None
        return pandas.DataFrame(self.rows or {"round": range(0)}).set_index("round")


def client_number(client: object, names: Sequence[str], num_clients: int | None) -> int:
    """The number of a client that is given by its number, or by its name if clients have names; refuses all else."""
    if isinstance(client, str) and client in names:
        return names.index(client)
    number = int(client) if isinstance(client, Integral) and not isinstance(client, bool) else -1
    if 0 <= number < (math.inf if num_clients is None else num_clients):
        return number
    numbers = "a number from 0 on" if num_clients is None else f"a number in 0..{num_clients - 1}"
    said = f"a name such as {names[0]!r} (history.client_names has them), or {numbers}" if names else numbers
    raise ValueError(f"there is no client {client!r}: give {repr(str(client)) if str(client) in names else said}")


def other_model(model: nn.Module, others: Vectors, name: str) -> nn.Module:
    """A copy of the model with the parameters of that name; an unknown name is refused."""
    if name not in others:
        raise ValueError(f"there is no other model {name!r} of the server: there is {', '.join(others) or 'none'}")
    return model_with(model, others[name])


@dataclass(frozen=True, repr=False)
class Result:
    """The result of a simulation."""

    model: nn.Module
    """A copy of the given model with the final global parameters, in their dtype and in evaluation mode."""
    history: History
    method: FederatedMethod
    server: Server
    """The server's final state."""
    stopped: str
    """Why the simulation ended."""
    engine: str = ""
    """The engine that ran the clients: "sequential" or "stacked"."""
    engine_reason: str = ""
    """Details of the engine, and the reason if it is not the one requested."""
    loss: str = ""
    """The name of the loss: the given one, or the default for the targets."""
    name: str = ""
    """The run's name; empty if it has only its method's name."""
    clients: ClientValues = field(default_factory=dict)
    """With `client_test`, the metrics of each client in the last evaluated round."""
    kept: Mapping[int, Kept] = field(default_factory=dict)
    """The private state of each client that took part, if the method or personal parameters need one."""
    num_clients: int | None = None
    """The number of clients, also of those that never took part."""
    inputs: Inputs = AS_GIVEN
    """How whole numbers were read as inputs: the mean and deviation by which images in bytes were scaled."""

    def __repr__(self) -> str:
        return "\n".join([*self._about(), repr(self.history)])

    def _repr_html_(self) -> str:
        return f"<p>{'<br>'.join(map(escape, self._about()))}</p>{self.history._repr_html_()}"

    def _about(self) -> list[str]:
        rows = self.history.rows
        megabytes = sum(row.get("bytes_up", 0) + row.get("bytes_down", 0) for row in rows) / 1e6
        seconds = sum(row.get("seconds") or 0.0 for row in rows)
        size = plural(self.server.params.numel(), "parameter")
        return [
            f"Result of {self.name or self.method.name}: {self.stopped}",
            f"{type(self.model).__name__} with {size} trained by {self.loss or 'its loss'}; "
            f"{megabytes:.2f} MB sent, {seconds:.1f} s",
        ]

    def client_model(self, client: int | str) -> nn.Module:
        """The model of one client, by its number or name: the global one, with the client's own personal parameters.

        Those of a client that never took part are the initial ones.
        """
        number = client_number(client, self.history.client_names, self.num_clients)
        if self.engine == "flower" and self.method.personal is not None:
            raise ValueError("the personal parameters of a federation stay on its nodes: no client's model is here")
        return model_with(self.model, self.method.own_params(self.server.params, self.kept.get(number)))

    def other_model(self, name: str) -> nn.Module:
        """A model that the server optimizer has besides the global one: "mean" of FedDyn, which its authors evaluate.

        Its metrics are those that end in `_of_` and its name, such as `test_accuracy_of_mean`.
        """
        return other_model(self.model, self.method.other_models(self.server), name)

    def evaluate(
        self,
        data: Any,
        loss: Loss | None = None,
        *,
        model: nn.Module | None = None,
        metrics: Mapping[str, Metric] | None = None,
        batch_size: int = AS_USUAL.eval_batch_size,
        collate_fn: Collate | None = None,
    ) -> dict[str, float]:
        """`fedlada.evaluate` of the model on data like those of the run: images in bytes are scaled as in training.

        `model` may be another one, such as a client's. A loss that was given to `simulate` is given here too.
        """
        if model is None and self.method.personal is not None:
            raise ValueError(NO_SINGLE_MODEL)
        about: Any = {"inputs": self.inputs, "trained_by": self.loss, "metrics": metrics, "batch_size": batch_size}
        return evaluate_trained(model or self.model, data, loss, collate_fn=collate_fn, **about)

    def plot(self, metric: str | None = None) -> Figure:
        """A plot of the run (needs matplotlib): the metric against rounds, by default accuracy if there is one."""
        return plot_run(self.history, self.name or self.method.name, metric)


def plot_run(history: History, name: str, metric: str | None) -> Figure:
    """A metric of one run against rounds; an unknown one is an error."""
    from fedlada.plots.draw import plot_histories

    if metric is not None:
        history[metric]
    return plot_histories({name: [history]}, metric=metric)
