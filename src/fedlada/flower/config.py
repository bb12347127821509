"""The configuration of a federation, as its run folder stores it."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from fedlada.federation.weights import describe_weights
from fedlada.flower.engine import Settings
from fedlada.methods.combine import Private
from fedlada.methods.method import FederatedMethod
from fedlada.runs.config import EVALUATED_ON, describe_loss, describe_schedule
from fedlada.runs.parts import describe_method, words_of
from fedlada.training.simulation import Simulation


def config_of(
    strategy: Any, method: FederatedMethod, settings: Settings, simulation: Simulation, rounds: int
) -> dict[str, Any]:
    """Everything that distinguishes the run of a `MethodStrategy`, and the policy of replies, which may change."""
    digests = simulation.measures.digests()
    return {
        "engine": "flower",
        **({} if strategy.best is None else {"best": strategy.best}),
        "run": settings.run,
        **describe_method(method),
        "num_params": simulation.server.params.numel(),
        "num_clients": strategy.num_clients,
        "cohorts": words_of(strategy.cohorts),
        "work": repr(strategy.work),
        "schedule": describe_schedule(strategy.schedule),
        "weights": describe_weights(strategy.weights),
        **({"noise": strategy.noise} if isinstance(strategy.method.combiner, Private) else {}),
        "examples": None,  # reported by the nodes, and stored where weights need them
        "answer": settings.answer,
        "messages": strategy.messages,
        "size_bound": strategy.size_bound,
        **({} if strategy.loss is None else {"loss": describe_loss(strategy.loss)}),
        **({EVALUATED_ON: digests} if digests else {}),
        "seed": strategy.seed,
        "threads": strategy.threads,
        "eval_every": strategy.eval_every,
        "eval_clients_every": strategy.eval_clients_every,
        "rounds": rounds,
        "replies": asdict(strategy.replies),
    }
