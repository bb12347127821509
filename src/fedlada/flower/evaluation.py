"""Evaluation on the nodes' own samples, and by a user's `evaluate_fn` as in Flower."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from flwr.app import ArrayRecord, Message, MessageType, MetricRecord
from flwr.serverapp.strategy import Result as FlowerResult

from fedlada.flower import wire
from fedlada.flower.engine import GridEngine
from fedlada.flower.exchange import CLOCKS, log, one_line
from fedlada.flower.inbox import ask
from fedlada.flower.nodes import MOST_EXAMPLES
from fedlada.flower.plausible import bounded, name_bounded
from fedlada.methods.state import Broadcast
from fedlada.training.history import Result, Row
from fedlada.training.simulation import Observer, Simulation
from fedlada.training.target import judged_by

SENT = "down/(evaluation)"
"""The column of the bytes that went to the nodes."""


class ClientEvaluation(Observer):
    """Adds `nodes_loss` and the like to a row: the mean over connected nodes, weighted by their samples.

    `nodes_bounded` lists clients whose reported samples or loss were capped. It is notified before the observers that
    may end the run, and once more after them.
    """

    def __init__(self, engine: GridEngine, every: int) -> None:
        self.engine = engine
        self.every = every
        self.num_rounds = 0

    def on_start(self, simulation: Simulation, num_rounds: int) -> None:
        self.num_rounds = num_rounds

    def on_round(self, simulation: Simulation, row: Row) -> None:
        is_last = row["round"] == self.num_rounds or (simulation.stopped and not simulation.paused)
        if SENT in row["bytes_by_vector"] or (row["round"] % self.every and not is_last):
            return
        engine = self.engine
        engine.nodes.refresh()
        engine.versions.read(simulation.history)  # the client states after this round
        vectors = wire.pack(simulation.exchange.sent(Broadcast(simulation.server.params, ())))
        messages = {
            client: Message(
                wire.content(engine.task(client, after=row["round"]), vectors),
                dst_node_id=node_id,
                message_type=MessageType.EVALUATE,
                ttl=engine.replies.time_limit + CLOCKS,
            )
            for client, node_id in sorted(engine.nodes.present.items())
        }
        sent = sum(wire.packed_bytes(message.content) for message in messages.values())
        row["bytes_by_vector"][SENT] = sent
        replies = ask(engine.grid, messages, engine.replies.time_limit)
        asked = {client: (engine.settings.run, engine.plan.round, client) for client in sorted(replies)}
        row.update(_mean(replies, asked, engine.settings.size_bound))


def set_judge(simulation: Simulation, best: str | None, *, on_nodes: bool) -> None:
    """Set the metric that judges a run; refuses one that is not measured."""
    simulation.measures.elsewhere = ("nodes_loss", "nodes_accuracy") if on_nodes else ()
    if best is not None:
        simulation.measures.check_judge(best)
    elif on_nodes and simulation.test is not None:  # which judges before the nodes do, also until its first round
        best = judged_by(simulation.measures.names())
    simulation.best = simulation.history.judge = best


def _measured(reply: Message, asked: tuple[str, int, int]) -> tuple[int, dict[str, float]]:
    """A node's number of samples and metrics; refuses values that would spoil the mean."""
    wire.check_done(reply, asked)
    num_examples = wire.metric(reply, "num-examples", int)
    if not 1 <= num_examples <= MOST_EXAMPLES:
        raise wire.WrongMessage(f"it evaluated on {num_examples} samples: 1 to {MOST_EXAMPLES} are possible")
    record = reply.content.metric_records[wire.METRICS]
    values = {name: wire.metric(reply, name, float) for name in ("loss", "accuracy") if name in record}
    for name, value in values.items():
        if not math.isfinite(value) or (name == "accuracy" and not 0 <= value <= 1):
            raise wire.WrongMessage(f"its {name} is {value}")
    return num_examples, values


def _mean(
    replies: dict[int, Message], asked: dict[int, tuple[str, int, int]], size_bound: float | None
) -> dict[str, Any]:
    """The means over all readable replies; weights and losses are capped at plausible values."""
    samples: dict[int, float] = {}
    measured: dict[str, dict[int, float]] = {}
    for client in asked:
        try:
            samples[client], values = _measured(replies[client], asked[client])
        except wire.WrongMessage as error:
            log.warning("client %d could not evaluate: %s", client, one_line(error))
            continue
        for name, value in values.items():
            measured.setdefault(name, {})[client] = value
    if not samples:
        return {}
    weights = bounded(samples, size_bound)
    bad = set(name_bounded("samples", samples, weights))
    row: dict[str, Any] = {}
    for name, said in measured.items():
        counted = bounded(said, size_bound) if name == "loss" else said
        bad |= set(name_bounded(name, said, counted))
        total = sum(weights[client] for client in said)
        row[f"nodes_{name}"] = sum(weights[client] * value for client, value in counted.items()) / total
    return {**row, "nodes_samples": int(sum(weights.values())), "nodes_bounded": sorted(bad)}


class FlowerEvaluation(Observer):
    """Calls a user's `evaluate_fn(round, arrays)`, as Flower's strategies do, and adds its metrics to the row."""

    def __init__(self, function: Callable[[int, ArrayRecord], MetricRecord | None]) -> None:
        self.function = function

    def on_round(self, simulation: Simulation, row: Row) -> None:
        model = simulation.engine.model(simulation.server.params)
        measured = self.function(row["round"], ArrayRecord(model.state_dict())) or MetricRecord()
        row.update({f"test_{name}": value for name, value in measured.items()})


def as_flower_result(done: Result) -> FlowerResult:
    """A run's result in Flower's form: the model's `state_dict`, and each round's metrics by origin."""
    result = FlowerResult(arrays=ArrayRecord(done.model.state_dict()))
    places = {
        "test_": result.evaluate_metrics_serverapp,
        "nodes_": result.evaluate_metrics_clientapp,
        "train_": result.train_metrics_clientapp,
    }
    for row in done.history:
        numbers = {name: value for name, value in row.items() if isinstance(value, (int, float))}
        for prefix, place in places.items():
            if found := {name: value for name, value in numbers.items() if name.startswith(prefix)}:
                place[row["round"]] = MetricRecord({**found})
    return result
