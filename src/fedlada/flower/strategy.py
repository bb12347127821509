"""Any federated method as a Flower `Strategy`, with the round loop, run folder and report of a simulation."""

from __future__ import annotations

import secrets
import uuid
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from flwr.app import ArrayRecord, ConfigRecord, Message, MessageType, MetricRecord
from flwr.serverapp import Grid
from flwr.serverapp.strategy import Result as FlowerResult
from flwr.serverapp.strategy import Strategy

from fedlada.data.paths import user_path
from fedlada.data.samples import as_samples
from fedlada.engines.evaluation import EvaluationOptions, Loss, Metric
from fedlada.engines.inputs import inputs_for
from fedlada.engines.threads import check_threads
from fedlada.federation.cohorts import Cohorts
from fedlada.federation.schedules import Schedule
from fedlada.federation.weights import Weights, check_weights
from fedlada.flower import wire
from fedlada.flower.config import config_of
from fedlada.flower.engine import GridEngine, Settings
from fedlada.flower.evaluation import ClientEvaluation, FlowerEvaluation, as_flower_result, set_judge
from fedlada.flower.exchange import CLOCKS, Replies, log, show_log
from fedlada.flower.nodes import Nodes, Shared, check_clients, check_node_ids
from fedlada.flower.plausible import SIZE_BOUND, check_bound
from fedlada.flower.private import check_every_answer_counts, check_private, check_wrapped
from fedlada.flower.rounds import RemoteRounds, check_minimum
from fedlada.flower.stored import StoresExamples, has_ended, run_name, stored_examples
from fedlada.flower.versions import NotesAttempt, Versions
from fedlada.methods.combine import Combiner, Mean, Private
from fedlada.methods.method import FederatedMethod
from fedlada.methods.validation import count, one_of, seed_number
from fedlada.models.flat import copied, trainable, trained_digest
from fedlada.runs.config import describe_loss
from fedlada.runs.folder import RunFolder
from fedlada.training.history import Result
from fedlada.training.observers import Callback, PlainProgress, as_observers
from fedlada.training.privacy import with_solved_noise
from fedlada.training.resolve import (
    Model,
    resolve_cohorts,
    resolve_device,
    resolve_dtype,
    resolve_messages,
    resolve_method,
    resolve_model,
    resolve_personal,
    resolve_schedule,
    resolve_stops,
    resolve_targets,
    resolve_work,
)
from fedlada.training.simulation import Simulation


class MethodStrategy(Strategy):
    """A federated method on a real federation. `run` gives what `fedlada.simulate` gives; `start` is Flower's form.

    Args:
        model, method, cohort_size, cohorts, batch_size, local_epochs, local_steps, lr, lr_decay, weights, loss, test,
            metrics, eval_every, best, stop_at, stop_after_seconds, patience, messages, personal, seed, device, threads,
            dtype: as in `fedlada.simulate`; `device` is where the server evaluates, `threads` holds for nodes too. A
            node that trains with another `loss` is refused: give it to `client_app` too.
        num_clients: m. Each node reports which client it is, 0 to m - 1 (its `partition-id`).
        node_ids: the id that Flower gave to each client's key, by client; no other node takes part.
        forget: clients whose node has lost its memory: they begin with a fresh state. Leave it out at the next start.
        combiner: how the nodes' uploads are aggregated, as in `fedlada.simulate`; by default the method's own, or a
            mean under an adaptive bound on their norms, which "mean" switches off.
        size_bound: cap on a node's reported samples in weights, steps and evaluation, and on its loss in an
            evaluation, as a multiple of the median. None switches it off.
        noise: where the noise and the cohorts of `Private` come from: "secret" is the operating system's generator, and
            no run repeats; "seed" is the run's seed, as in a simulation: every node knows it, so it gives no privacy.
        replies: how many replies a round needs, how long it waits, and what happens to missing clients.
        eval_clients_every: also evaluate on the nodes' own samples after so many rounds and after the last:
            `nodes_loss`, `nodes_accuracy`. Without `test` these judge the run, and it can stop at them.
    """

    def __init__(
        self,
        model: Model,
        method: FederatedMethod | str = "fedlada",
        *,
        num_clients: int,
        node_ids: Mapping[int, int] | None = None,
        forget: Collection[int] = (),
        cohort_size: int | None = None,
        cohorts: Cohorts | None = None,
        batch_size: int = 50,
        local_epochs: int | None = None,
        local_steps: int | None = None,
        lr: float | Schedule | None = None,
        lr_decay: float | None = None,
        weights: Weights = "uniform",
        replies: Replies | None = None,
        loss: Loss | None = None,
        test: Any = None,
        metrics: Mapping[str, Metric] | None = None,
        eval_every: int = 1,
        eval_clients_every: int | None = None,
        best: str | None = None,
        stop_at: Mapping[str, float] | None = None,
        stop_after_seconds: float | None = None,
        patience: int | None = None,
        messages: str = "float32",
        combiner: Combiner | str | None = None,
        personal: str | Sequence[str] = (),
        size_bound: float | None = SIZE_BOUND,
        noise: str = "secret",
        seed: int = 0,
        device: str | torch.device = "auto",
        threads: int = 1,
        dtype: torch.dtype | str | None = None,
    ) -> None:
        self.work = resolve_work(batch_size, local_epochs, local_steps)
        if eval_clients_every is not None:
            count("eval_clients_every", eval_clients_every)
        count("num_clients", num_clients)
        self.seed, dtype = seed_number(seed), resolve_dtype(dtype)
        self.model = resolve_model(model, self.seed, dtype)
        self.method = resolve_method(method)
        bounded = "norm-bound" if isinstance(self.method.combiner, Mean) else None  # a method's own combiner stays
        self.method = self.method.with_combiner(bounded if combiner is None else combiner)
        self.method = resolve_personal(personal, self.method, self.model)
        if self.method.personal is not None and test is not None:
            raise ValueError(
                "with personal parameters there is no single model: leave test out, and let the nodes evaluate theirs "
                "with eval_clients_every"
            )
        self.messages = resolve_messages(messages, self.method).text
        self.num_clients, self.node_ids = num_clients, check_node_ids(node_ids, num_clients)
        self.forget = frozenset(check_clients("forget", forget, num_clients))
        self.cohorts = resolve_cohorts(cohorts, cohort_size)
        self.schedule = resolve_schedule(lr, lr_decay, method)
        self.weights, self.size_bound = check_weights(weights, num_clients), check_bound(size_bound)
        self.replies = replies or Replies()
        self.loss, self.metrics = loss, metrics
        self.eval_every, self.eval_clients_every = eval_every, eval_clients_every
        self.best, self.stop = best, (resolve_targets(stop_at), stop_after_seconds, patience)
        self.device, self.threads, self.dtype = resolve_device(device), check_threads(threads), dtype
        numbers = dtype or next(iter(trainable(self.model).values())).dtype
        self.test = None if test is None else as_samples(test, self.device, numbers)
        if self.test is not None:
            self.test = inputs_for(self.model, self.test, self.device, numbers, scaled=False).of(self.test)
        self.engine: GridEngine | None = None
        self.cohorts.check(num_clients)
        one_of("noise", noise, ("secret", "seed"))
        self.noise = noise
        if isinstance(self.method.combiner, Private):
            check_private(self.method.combiner, self.method, self.messages, self.seed, self.eval_clients_every)
            check_every_answer_counts(self.replies)
        check_minimum(self.replies, self.cohorts, num_clients)

    def run(
        self,
        grid: Grid,
        rounds: int = 100,
        *,
        out: str | Path | None = None,
        checkpoint_every: int = 10,
        callbacks: Sequence[Callback] = (),
        progress: bool = True,
        around: Strategy | None = None,
    ) -> Result:
        """Train for this many rounds; returns the model and the history.

        Whatever can be refused is refused before the server waits for its nodes.

        Args:
            grid: what Flower hands to a `ServerApp`.
            rounds: how many rounds to run in all.
            out: the run folder; a run found there resumes from its newest checkpoint, to the same bits. One that has
                ended is loaded, and needs no node.
            checkpoint_every: rounds between checkpoints.
            callbacks: as in `fedlada.simulate`.
            progress: print progress lines.
            around: one of Flower's wrappers around this strategy (differential privacy): it sees each client's
                parameters and their mean. For methods that send one vector each way.
        """
        if around is not None:
            check_wrapped(self.method, self.messages, self.weights)
        count("rounds", rounds)
        count("checkpoint_every", checkpoint_every)
        observers = as_observers(callbacks)
        method = with_solved_noise(self.method, self.cohorts, self.num_clients, rounds)
        show_log()
        out = None if out is None else user_path("out", out)
        simulation, engine, nodes = self._simulation(method, grid, around, run_name(out))
        engine.versions = Versions(engine.settings.attempt, self.forget)
        stops = resolve_stops(simulation, *self.stop)
        observers += stops
        folder, ended = None, False
        if out is not None:
            nodes.num_examples.update(stored_examples(out, self.num_clients))
            config = config_of(self, method, engine.settings, simulation, rounds)
            folder = RunFolder(out, config, checkpoint_every=checkpoint_every, warn=log.warning)
            folder.check(simulation, rounds)
            engine.checkpoints = folder.checkpoints.rounds
            ended = has_ended(folder, simulation, rounds, stops)
        if not ended:
            nodes.wait_at_start(self.replies, need_numbers=self.weights == "examples")
        if folder is not None and self.weights == "examples":
            folder.config = {**config, "examples": nodes.examples()}
            observers.append(StoresExamples(folder.path, nodes.examples))
        if self.eval_clients_every is not None:
            evaluation = ClientEvaluation(engine, self.eval_clients_every)
            observers = [evaluation, *observers, evaluation]
        observers.insert(0, NotesAttempt(engine.settings.attempt, self.forget))
        if progress:
            observers.append(PlainProgress(label=self.method.name))
        simulation.run(rounds, observers, folder=folder)
        return simulation.result()

    def start(
        self,
        grid: Grid,
        initial_arrays: ArrayRecord | None = None,
        num_rounds: int = 3,
        timeout: float | None = None,
        train_config: ConfigRecord | None = None,
        evaluate_config: ConfigRecord | None = None,
        evaluate_fn: Callable[[int, ArrayRecord], MetricRecord | None] | None = None,
    ) -> FlowerResult:
        """Flower's form of `run`: arrays are the model's `state_dict`, `timeout` the limit for an answer."""
        if train_config or evaluate_config:
            raise ValueError("nodes get what the method needs; pass more through the run config")
        if initial_arrays is not None:
            self.model = copied(self.model)  # what the user gave stays as it is
            self.model.load_state_dict(initial_arrays.to_torch_state_dict())
        if timeout is not None:
            self.replies = replace(self.replies, time_limit=timeout)
        callbacks = [] if evaluate_fn is None else [FlowerEvaluation(evaluate_fn)]
        return as_flower_result(self.run(grid, num_rounds, callbacks=callbacks))

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """One message for each client of the round, in their order."""
        engine = self._running()
        return [
            Message(
                wire.content(engine.task(work.client), arrays, more=config),
                dst_node_id=engine.nodes.present[work.client],
                message_type=MessageType.TRAIN,
            )
            for work in engine.plan.assignments
        ]

    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        """The mean of the replies, from which the server takes its step."""
        return self._running().average(list(replies))

    def configure_evaluate(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """Do nothing: `eval_clients_every` sets when nodes evaluate."""
        return []

    def aggregate_evaluate(self, server_round: int, replies: Iterable[Message]) -> MetricRecord | None:
        return None

    def summary(self) -> None:
        log.info("%s over %d clients, %s", self.method.name, self.num_clients, self.replies)

    @property
    def _is_secret(self) -> bool:
        return isinstance(self.method.combiner, Private) and self.noise == "secret"

    def _running(self) -> GridEngine:
        if self.engine is None:
            raise ValueError("the strategy has a round loop of its own: call strategy.run(grid, around=wrapper)")
        return self.engine

    def _simulation(
        self, method: FederatedMethod, grid: Grid, around: Strategy | None, name: str
    ) -> tuple[Simulation, GridEngine, Nodes]:
        engine = GridEngine(
            self.model,
            # A wrapper bounds and adds noise itself, for a plain mean.
            method if around is None else replace(method, combiner=Mean()),
            self.loss,
            settings=Settings(
                run=name,
                attempt=uuid.uuid4().hex[:16],
                seed=self.seed,
                work=self.work,
                threads=self.threads,
                size_bound=self.size_bound,
                answer="delta" if around is None else "params",
            ),
            replies=self.replies,
            device=self.device,
            dtype=self.dtype,
        )
        shared = Shared(
            method=wire.fingerprint(method),
            seed=self.seed,
            num_params=engine.initial_params().numel(),
            trained=trained_digest(engine.flat.module),
            untrained=engine.untrained,
            loss="" if self.loss is None else describe_loss(self.loss),
        )
        limit = self.replies.time_limit + CLOCKS
        nodes = Nodes(engine.bounded(grid, self.messages), shared, self.num_clients, limit, self.node_ids)
        rounds = RemoteRounds(
            num_clients=self.num_clients,
            cohorts=self.cohorts,
            work=self.work,
            schedule=self.schedule,
            seed=self.seed,
            weights=self.weights,
            nodes=nodes,
            replies=self.replies,
            size_bound=self.size_bound,
            cohort_seed=secrets.randbits(62) if self._is_secret else None,
        )
        simulation = Simulation(
            engine,
            rounds,
            self.test,
            metrics=self.metrics,
            evaluation=EvaluationOptions(eval_every=self.eval_every),
            messages=self.messages,
            threads=self.threads,
            secret_noise=self._is_secret,
        )
        if self.test is not None:
            nodes.shared = replace(shared, loss=describe_loss(engine.loss))
        set_judge(simulation, self.best, on_nodes=self.eval_clients_every is not None)
        engine.connect(nodes.grid, nodes, rounds, around or self, lambda: simulation.history)
        self.engine = engine
        return simulation, engine, nodes
