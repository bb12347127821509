"""Per-client tests: the server's model on each client's samples, and after local fine-tuning."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
from torch import Tensor

from fedlada.engines.clients import ClientTest, Measured, measure
from fedlada.engines.engine import Engine
from fedlada.engines.evaluation import BUILT_IN, EvaluationOptions, Metric
from fedlada.federation.plan import Plan, RoundPlan, assign
from fedlada.federation.randomness import Ints, torch_seed
from fedlada.methods.state import Kept, Server
from fedlada.training.target import declared

WORST = "_worst_decile"
SPREAD = ("", WORST, "_std")
"""Endings of the columns that sum up a metric over clients."""
MISSING = "_missing"
"""The ending of the number of clients on which a metric gave no finite number."""


@dataclass(frozen=True, eq=False)
class EachClient:
    """Evaluates each client. The state of the run is not changed."""

    engine: Engine
    plan: Plan
    test: ClientTest
    options: EvaluationOptions
    metrics: Mapping[str, Metric]

    def __post_init__(self) -> None:
        columns = Counter(
            f"{name}{of}" for name in dict.fromkeys((*BUILT_IN, *self.metrics)) for of in (*SPREAD, MISSING)
        )
        if twice := [name for name, number in columns.items() if number > 1]:
            raise ValueError(f"two metrics of each client would be stored as 'client_{twice[0]}': rename one of them")

    def measured(self, server: Server, kept: Mapping[int, Kept]) -> Measured:
        """Metrics of the server's model, with each client's personal parameters if there are any."""
        if self.engine.method.personal is None:
            return self._on(server.params, np.arange(len(self.test.owners)))
        own = ((client, self.engine.method.own_params(server.params, kept.get(client))) for client in self.test.clients)
        return self._of_each(own)

    def fine_tuned(self, server: Server, kept: Mapping[int, Kept], *, round: int, lr: float, at_once: int) -> Measured:
        """Each client's model after `personal_steps` steps of the method's own chain on its training samples.

        As many clients train at once as in a round. The batches differ from those of all rounds.
        """
        assert self.options.personal_steps is not None
        work = replace(self.plan.work, steps=self.options.personal_steps)
        seed = torch_seed(self.plan.seed, "personal steps")
        able = [client for client in self.test.clients if len(self.plan.clients[client]) and lr > 0]
        measured = self.measured(server, kept) if len(able) < len(self.test.clients) else {}
        for start in range(0, len(able), at_once):
            assignments = [
                assign(
                    self.plan.clients[client], work, seed=seed, round=round, client=client, num_steps=work.steps or 0
                )
                for client in able[start : start + at_once]
            ]
            plan = RoundPlan(round, lr, tuple(assignments), (), ())
            measured |= self._of_each(self._trained(server, kept, plan))
        return measured

    def _trained(self, server: Server, kept: Mapping[int, Kept], plan: RoundPlan) -> Iterator[tuple[int, Tensor]]:
        engine = self.engine
        # All uploads first: client state may still be copying to the host, and evaluation needs the engine's model.
        answers = [
            (answer.work.client, server.params - engine.outward(answer.upload).delta, answer.kept)
            for answer in engine.answers(server.broadcast, plan, kept)
        ]
        for client, params, memory in answers:
            yield client, engine.method.own_params(params, memory)

    def _of_each(self, models: Iterator[tuple[int, Tensor]]) -> Measured:
        measured: Measured = {}
        for client, params in models:
            measured |= self._on(params, self.test.rows(client))
        return measured

    def _on(self, params: Tensor, rows: Ints) -> Measured:
        with self.engine.loaded(params) as module:
            batch_size = self.options.eval_batch_size
            return measure(module, self.test, rows, self.engine.loss, batch_size, self.metrics)


def columns(prefix: str, measured: Measured, own: Collection[str] = ()) -> dict[str, float]:
    """Over clients: the mean, the mean of the worst tenth (at least one) and the standard deviation.

    They are those of the built-in accuracy, or of the loss without one, and of each metric of the user's, whose names
    are `own` if they could be built-in ones. Values that are not finite are left out and counted: a client may have no
    target that counts, or too few samples for a metric.
    """
    is_built_in = "accuracy" not in own and all("accuracy" in one for one in measured.values())
    what = "accuracy" if is_built_in else "loss"
    users = (name for one in measured.values() for name in one if name in own or name not in BUILT_IN)
    found: dict[str, float] = {}
    for name in dict.fromkeys([what, *users]):
        values = [one[name] for one in measured.values()]
        known = [value for value in values if math.isfinite(value)]
        found |= _spread(prefix, name, known)
        if missing := len(values) - len(known):
            found[f"{prefix}_{name}{MISSING}"] = missing
    return found


def spread_of(metric: str) -> list[str]:
    """The columns of a metric over clients; none for the worst where its name does not say which way is better."""
    return [f"{metric}{of}" for of in SPREAD if of != WORST or declared(metric)[0] is not None]


def _spread(prefix: str, what: str, values: Sequence[float]) -> dict[str, float]:
    names = spread_of(what)
    if not values:
        return {f"{prefix}_{name}": math.nan for name in names}
    ordered = np.array(sorted(values, reverse=bool(declared(what)[0])))
    worst = ordered[: max(1, round(len(ordered) / 10))]
    found = {"": ordered.mean(), WORST: worst.mean(), "_std": ordered.std()}
    return {f"{prefix}_{name}": float(found[name.removeprefix(what)]) for name in names}
