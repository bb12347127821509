"""The evaluations of a run: on test and validation data, on the clients' training data, and per client."""

from __future__ import annotations

import math
import warnings
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass

import numpy as np
from torch import Tensor

from fedlada.data.samples import Samples
from fedlada.engines.clients import ClientTest, Measured
from fedlada.engines.engine import Engine
from fedlada.engines.evaluation import EvaluationOptions, Metric, check_metrics, replaces_built_in
from fedlada.federation.plan import Plan, Rounds
from fedlada.federation.randomness import bits, permutation, seeded, torch_seed
from fedlada.methods.combine import Private
from fedlada.methods.random_state import python_randomness_restored, randomness_restored
from fedlada.methods.state import Kept, Server
from fedlada.training.clients import EachClient, columns, spread_of
from fedlada.training.history import ClientValues, Row
from fedlada.training.target import column_of, lower_is_better

TRIED = 16
"""Samples on which metrics are checked before the first round."""


@dataclass(frozen=True)
class Due:
    """One evaluation: its samples and its interval in rounds."""

    name: str
    samples: Samples
    every: int
    metrics: Mapping[str, Metric]
    with_others: bool = True
    """Whether the server's other models are evaluated too."""


class Measures:
    """Adds to a row the evaluations due in its round. Metrics that fail are reported before the first round."""

    def __init__(
        self,
        engine: Engine,
        plan: Rounds,
        data: Mapping[str, Samples | None],
        metrics: Mapping[str, Metric],
        train: Samples | None,
        options: EvaluationOptions,
        client_test: ClientTest | None,
        start: Server,
    ) -> None:
        self.engine, self.options, self.start, self.seed = engine, options, start, plan.seed
        metrics = check_metrics(metrics)
        given = {name: samples for name, samples in data.items() if samples is not None}
        if metrics and not given and client_test is None:
            raise ValueError(
                "metrics are measured on test or validation data, or on each client's: give test=, validation= or "
                "client_test=, or leave metrics out"
            )
        self.due = [Due(name, samples, options.eval_every, metrics) for name, samples in given.items()]
        if train is not None and options.eval_train_every is not None and isinstance(plan, Plan):
            # Repeated for each client that holds them; a partition may leave some out.
            held = train.chosen(np.sort(np.concatenate(plan.clients)))
            self.due.append(Due("full_train", held, options.eval_train_every, {}, with_others=False))
        self.each_client: EachClient | None = None
        if client_test is not None:
            assert isinstance(plan, Plan)
            self.each_client = EachClient(engine, plan, client_test, options, metrics)
            given["client test"] = client_test.samples
        elif options.personal_steps is not None:
            raise ValueError(
                "personal_steps needs the clients' test samples: give client_test, such as client_test=0.2"
            )
        self.elsewhere: Sequence[str] = ()
        """Names of metrics that an observer adds to rows."""
        self.by_client: ClientValues = {}
        """Metrics of each client in the last round in which clients were tested."""
        with python_randomness_restored():  # reading a user's data set may draw random numbers
            for what, samples in given.items():
                engine.check_test(samples, what)
        if "accuracy" in metrics and any("accuracy" in self._tried(samples, {}) for samples in given.values()):
            raise ValueError(replaces_built_in("accuracy"))
        if metrics:
            self.names()

    def digests(self) -> dict[str, str]:
        """A digest of the test and validation data, as far as they are given."""
        return {one.name: one.samples.digest() for one in self.due if one.with_others}

    def names(self) -> list[str]:
        """Names of all metrics, found by evaluating a few samples: errors are reported before the first round."""
        names = [] if isinstance(self.engine.method.combiner, Private) else ["train_loss"]
        others = self.engine.method.other_models(self.start)
        for one in self.due:
            endings = ["", *(f"_of_{other}" for other in others if one.with_others)]
            names += [
                f"{one.name}_{name}{ending}" for ending in endings for name in self._tried(one.samples, one.metrics)
            ]
        if self.each_client is not None:
            own = self.each_client.metrics
            built_in = [name for name in self._tried(self.each_client.test.samples, own) if name not in own]
            what = "accuracy" if "accuracy" in built_in else "loss"
            tests = ["client", *(["personal"] if self.options.personal_steps else [])]
            names += [f"{one}_{name}" for one in tests for metric in (what, *own) for name in spread_of(metric)]
        return [*names, *self.elsewhere]

    def _tried(self, samples: Samples, metrics: Mapping[str, Metric]) -> list[str]:
        """Names of the metrics of these samples."""
        few = samples.chosen(permutation(bits(0, "metrics"), len(samples))[:TRIED])
        given = {**metrics, "": lambda *_: 0.0}  # at least one: a graph is not captured for this
        with randomness_restored():
            try:
                with warnings.catch_warnings():
                    warnings.simplefilter("ignore")
                    measured = self.engine.evaluate(self.start.params, few, given, self.options)
            except ValueError:  # a metric may need more samples, such as all classes
                measured = self.engine.evaluate(self.start.params, samples, given, self.options)
        return [name for name in measured if name]

    def check_judge(self, metric: str) -> None:
        """Refuse a metric that no round will have, or whose name does not say which way is better."""
        known = self.names()
        if column_of(metric) not in known:
            data = "" if any(one.with_others for one in self.due) else "; give test="
            raise ValueError(f"{metric!r} is not measured in this run, which has {', '.join(known) or 'none'}{data}")
        lower_is_better(metric)

    def judged_params(self, metric: str, row: Row, server: Server) -> Tensor:
        """The parameters that a metric of this row was measured with: the server's, or those of another of its models.

        Every metric is measured with the server's own too: without that column it is a metric with such a name.
        """
        column = column_of(metric)
        if any(column.startswith(f"{one.name}_") for one in self.due if one.with_others):
            for name, params in self.engine.method.other_models(server).items():
                if column.endswith(of := f"_of_{name}") and column.removesuffix(of) in row:
                    return params
        return server.params

    def add(self, row: Row, server: Server, kept: Mapping[int, Kept], *, is_last: bool) -> None:
        """Add the evaluations due in this round, unless present; `kept` is the method's part of client states."""
        for one in self.due:
            if f"{one.name}_loss" in row or not (is_last or row["round"] % one.every == 0):
                continue
            others = self.engine.method.other_models(server) if one.with_others else {}
            for ending, params in {"": server.params, **others}.items():
                with self._seeded(f"{one.name} {ending}", row["round"]):
                    measured = self.engine.evaluate(params, one.samples, one.metrics, self.options)
                of = f"_of_{ending}" if ending else ""
                row.update({f"{one.name}_{key}{of}": finite(value) for key, value in measured.items()})
        if self.each_client is not None:
            self._add_clients(self.each_client, row, server, kept, is_last=is_last)

    def _seeded(self, what: str, round: int) -> AbstractContextManager[None]:
        """Seed the numbers that a user's data set, model, loss or metric may draw."""
        return seeded(torch_seed(self.seed, f"evaluation {what}", round), self.engine.device)

    def _add_clients(
        self, each: EachClient, row: Row, server: Server, kept: Mapping[int, Kept], *, is_last: bool
    ) -> None:
        """Add the clients' metrics on their own test samples, and store them per client."""
        options, round = self.options, row["round"]
        values: ClientValues = self.by_client if self.by_client.get("round") == round else {"round": round}

        def add(prefix: str, measured: Measured) -> None:
            row.update({name: finite(value) for name, value in columns(prefix, measured, each.metrics).items()})
            for what in ("accuracy", "loss", *each.metrics):
                own = [measured.get(client, {}).get(what) for client in range(each.test.num_clients)]
                if any(value is not None for value in own):
                    values[f"{prefix}_{what}"] = [None if one is None else finite(one) for one in own]

        if (is_last or round % options.eval_every == 0) and "client_loss" not in values:
            with self._seeded("client", round):
                add("client", each.measured(server, kept))
        every = options.personal_every or options.eval_every
        if options.personal_steps and (is_last or round % every == 0) and "personal_loss" not in values:
            at_once = max(1, len(row["clients"]) + len(row["refused"]))
            with self._seeded("personal", round):
                add("personal", each.fine_tuned(server, kept, round=round, lr=row["lr"], at_once=at_once))
        if len(values) > 1:
            self.by_client = values


def finite(value: float) -> float | None:
    """The value, or None if it is not finite: rows must be valid JSON."""
    return value if math.isfinite(value) else None
