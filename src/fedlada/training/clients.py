"""Per-client tests: the server's model on each client's samples, and after local fine-tuning."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

import numpy as np
from torch import Tensor

from fedlada.engines.clients import ClientTest, Measured, measure
from fedlada.engines.engine import Engine
from fedlada.engines.evaluation import EvaluationOptions
from fedlada.federation.plan import Plan, RoundPlan, assign
from fedlada.federation.randomness import Ints, torch_seed
from fedlada.methods.state import Kept, Server


@dataclass(frozen=True, eq=False)
class EachClient:
    """Evaluates each client. The state of the run is not changed."""

    engine: Engine
    plan: Plan
    test: ClientTest
    options: EvaluationOptions

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
            return measure(module, self.test, rows, self.engine.loss, self.options.eval_batch_size)
