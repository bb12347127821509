"""The round loop: plan, run, aggregate, evaluate, notify the observers."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from functools import partial

import torch

from fedlada.data.samples import Samples
from fedlada.engines.clients import ClientTest
from fedlada.engines.cpu_memory import freed_memory_kept
from fedlada.engines.engine import Engine
from fedlada.engines.evaluation import AS_USUAL, EvaluationOptions, Metric
from fedlada.engines.forgery import Forgery
from fedlada.engines.inputs import AS_GIVEN, Inputs
from fedlada.engines.post import Post
from fedlada.engines.tally import CohortResult
from fedlada.engines.threads import check_threads, cpu_threads
from fedlada.federation.attackers import attackers
from fedlada.federation.cohorts import Everyone, FixedSize
from fedlada.federation.plan import Plan, RoundPlan, Rounds
from fedlada.federation.randomness import seeded, torch_seed
from fedlada.messages.exchange import Exchange
from fedlada.messages.spec import Messages
from fedlada.methods.combine import Combiner, Private
from fedlada.methods.recipes import RECIPES, hyper_parameters
from fedlada.methods.server_check import check_aggregation
from fedlada.methods.state import Kept, Server, all_finite
from fedlada.methods.testing.attacks import Attack
from fedlada.methods.validation import count
from fedlada.training.history import History, Result, Row
from fedlada.training.measures import Measures, finite
from fedlada.training.named_round import named_round
from fedlada.training.privacy import Privacy, refuse_measures
from fedlada.training.resumed import ResumedRate


class Observer:
    """Receives events of a simulation: its start, each round and its end. Override what you need.

    `simulation.stop("why")` ends the run after the current round.
    """

    def on_start(self, simulation: Simulation, num_rounds: int) -> None:
        """Before the first round (or the first after a resume)."""

    def on_round(self, simulation: Simulation, row: Row) -> None:
        """After a round, with its row of the history; values added to the row stay in it."""

    def on_end(self, simulation: Simulation) -> None:
        """After the last round, also when a round raised an error."""


class TrainingDiverged(RuntimeError):
    """Every client's update of a round was NaN or infinite; `result` is the state before that round."""

    result: Result | None = None


class Simulation:
    """A federation in memory. Its state is `round`, `server`, `kept` and `history`; all else is configuration."""

    def __init__(
        self,
        engine: Engine,
        plan: Rounds,
        test: Samples | None = None,
        *,
        validation: Samples | None = None,
        metrics: Mapping[str, Metric] | None = None,
        train: Samples | None = None,
        evaluation: EvaluationOptions = AS_USUAL,
        messages: Messages | str = "float32",
        attack: Attack | None = None,
        threads: int = 1,
        best: str | None = None,
        name: str = "",
        client_test: ClientTest | None = None,
        secret_noise: bool = False,
        inputs: Inputs = AS_GIVEN,
    ) -> None:
        self.name, self.inputs = name, inputs
        self.threads = check_threads(threads)
        self.engine = engine
        self.plan = plan
        self.exchange = Exchange(messages, engine.method, plan.seed)
        if isinstance(plan.cohorts, FixedSize | Everyone):
            engine.method.combiner.check(len(plan.cohorts.draw(plan.num_clients, plan.seed, 1)))
        _refuse_unequal_weights(engine.method.combiner, plan)
        self.attack, self.attackers = attack, frozenset[int]()
        self.forgery: Forgery | None = None
        if attack is not None:
            assert isinstance(plan, Plan), "real nodes cannot be made malicious"
            self.attackers = attackers(plan.num_clients, attack.share, plan.seed)
            if not attack.poisons_labels:
                self.forgery = Forgery(attack, engine.method, self.attackers, plan.seed)
        self.privacy: Privacy | None = None
        if isinstance(engine.method.combiner, Private):
            measures = {"eval_train_every": evaluation.eval_train_every, "client_test": client_test}
            refuse_measures(measures, is_personal=engine.method.personal is not None)
            self.privacy = Privacy(engine.method.combiner, plan, self.exchange, is_secret=secret_noise, attack=attack)
        self.test, self.train, self.evaluation = test, train, evaluation
        self.best = best
        """The metric by which the best model is kept; None for the metric that judges the run."""
        self.round = 0
        check_aggregation(engine.method, engine.initial_params())
        with self._seeded("init", 0):
            self.server: Server = engine.method.init(engine.initial_params())
        self.kept: dict[int, Kept] = {}
        self.history = self.history_of([])
        self.stopped, self.paused = "", False
        self.ended = ""
        """"done", "interrupted" (by a pause or the keyboard) or "failed"; empty until the run has ended."""
        self._plans: dict[int, RoundPlan] = {}
        given = {"test": test, "validation": validation}
        self.measures = Measures(engine, plan, given, metrics or {}, train, evaluation, client_test, self.server)
        if best is not None:
            self.measures.check_judge(best)

    def history_of(self, rows: Sequence[Row]) -> History:
        """Rows as a history with the names of clients and classes."""
        names = self.plan.client_names if isinstance(self.plan, Plan) and self.privacy is None else ()
        classes = self.train.class_names if self.train is not None else ()
        return History(rows, client_names=names, class_names=classes, judge=self.best)

    def stop(self, why: str) -> None:
        """End the run after the current round."""
        self.stopped = self.stopped or why

    def pause(self, why: str) -> None:
        """End the run after the current round as if it had been killed: it can be resumed."""
        self.paused = True
        self.stop(why)

    def run(self, num_rounds: int, observers: Sequence[Observer] = (), folder: Observer | None = None) -> None:
        """Run until round `num_rounds`, or until an observer calls `stop`.

        The folder is started first, because it may load an earlier state, and notified last, so that it stores what
        other observers add to a row.
        """
        count("rounds", num_rounds)
        with self._set_up():
            self._run(num_rounds, observers, folder)

    def _run(self, num_rounds: int, observers: Sequence[Observer], folder: Observer | None) -> None:
        self.stopped, self.paused, self.ended = "", False, ""
        storing = [] if folder is None else [folder]
        started: list[Observer] = []
        try:
            before, rate = self.round, None
            for observer in [*storing, *observers]:
                observer.on_start(self, num_rounds)
                started.append(observer)
                if observer is folder and before < self.round < num_rounds:
                    rate = ResumedRate(self.plan, self.history[-1])
            if rate is not None:
                rate.check()
            self._stop_if_spent(num_rounds)
            if self.round == num_rounds or (self.stopped and not self.paused and self.round < num_rounds):
                self._measure_stored(storing)
            while self.round < num_rounds and not self.stopped:
                row = self.run_round(is_last=self.round + 1 == num_rounds)
                self._stop_if_spent(num_rounds)
                for observer in observers:
                    observer.on_round(self, row)
                if self.stopped and not self.paused:
                    self._measure(row, self.server, self.kept, is_last=True)  # also when nobody knew that it was
                for observer in storing:
                    observer.on_round(self, row)
            self.stop("the one round was run" if num_rounds == 1 else f"all {num_rounds} rounds were run")
            self.ended = "interrupted" if self.paused else "done"
        except TrainingDiverged as error:
            self.stop(str(error))
            error.result = self.result()
            raise
        except KeyboardInterrupt:
            self.ended = "interrupted"
            raise
        finally:
            self.ended = self.ended or "failed"
            self._end(started)

    def _stop_if_spent(self, num_rounds: int) -> None:
        """Stop if the next round would exceed the privacy budget."""
        if self.privacy is not None and self.round < num_rounds and (why := self.privacy.exhausted(self.round)):
            self.stop(why)

    def _end(self, observers: Sequence[Observer]) -> None:
        """Notify every observer, whatever the others raise."""
        errors = []
        for observer in observers:
            try:
                observer.on_end(self)
            except Exception as error:
                errors.append(error)
        if errors:
            raise errors[0]

    def run_round(self, is_last: bool = False) -> Row:
        """One round; its row is added to the history. If it fails, nothing has changed."""
        if self.privacy is not None and (why := self.privacy.exhausted(self.round)):
            raise ValueError(f"no further round can be run: {why}")
        with self._set_up(), named_round(self.round + 1):
            return self._run_round(is_last)

    @contextmanager
    def _set_up(self) -> Iterator[None]:
        """Threads, memory and gradients as a round needs them, whatever the caller has set."""
        device = self.engine.device
        with torch.enable_grad(), cpu_threads(device, self.threads), freed_memory_kept(device):
            yield

    def _run_round(self, is_last: bool) -> Row:
        start = time.perf_counter()
        plan = self._plans.pop(self.round + 1, None) or self._planned(self.round + 1)
        self.engine.while_waiting = self._look_ahead
        try:
            earlier = [row["norms"] for row in self.history.rows if row.get("norms")]
            coming = None if self.privacy is None else self.privacy.coming(plan.round)
            combiner = self.engine.method.combiner.for_round(earlier, coming)
            post = Post(self.exchange, plan, self._already_sent(plan), combiner, self.forgery)
            with self._seeded("combine", plan.round):
                result = self.engine.run_cohort(self.server.broadcast, self.kept, post)
        finally:
            self.engine.while_waiting = None  # no cycle that would keep a GPU's memory alive
        if self.privacy is not None and plan.lr != 0:
            result = self.privacy.public(result, combiner, self.engine.method, self.server)
        server = post.kept_as_they_were(self.server, self._aggregate(plan, result))
        row = self._row(plan, result, server)
        if self.privacy is not None:
            row = self.privacy.withheld(row, server)
        if combiner.measures_norms or result.norms:
            bounded = [result.accepted[place] for place in combiner.outliers(result.norms)]
            row.update(norms={name: list(own) for name, own in result.norms.items()}, bounded=bounded)
        if self.attack is not None and self.privacy is None:
            row["attackers"] = [work.client for work in plan.assignments if work.client in self.attackers]
        row["seconds"] = time.perf_counter() - start
        self._measure(row, server, {**self.kept, **result.kept}, is_last=is_last)
        # From here on nothing can fail: the round is committed atomically.
        self.server, self.round = server, plan.round
        self.kept.update(result.kept)
        self.history.rows.append(row)
        return row

    def _planned(self, round: int) -> RoundPlan:
        """The plan of a round; in all processes that of the first, whose callbacks alone know the past."""
        if self.plan.is_fixed or not isinstance(self.plan, Plan):
            return self.plan.round(round)
        return self.plan.assigned(self.engine.agreed(partial(self.plan.draw, round)))

    def _already_sent(self, plan: RoundPlan) -> dict[int, frozenset[str]]:
        """Vectors (sent only every n rounds) that each client has already been sent in their current version."""
        rare = [path for path, rule in self.exchange.rules.items() if path.startswith("down/") and rule.every > 1]
        sent: dict[int, frozenset[str]] = {}
        for path in rare:
            rows = self.history.rows[self.exchange.version(path, plan.round) : plan.round - 1]
            for client in {c for row in rows for who in ("clients", "lost", "refused") for c in row[who]}:
                sent[client] = sent.get(client, frozenset()) | {path}
        return sent

    def _look_ahead(self) -> None:
        """Plan the next round while the device is busy with this one; plans depend on the seed alone."""
        coming = self.round + 2
        if coming in self._plans or not self.plan.is_fixed:
            return
        try:
            plan = self.plan.round(coming)
        except Exception:
            return  # raised when that round is due, if it ever is
        self._plans = {coming: plan}
        self.engine.prepare(plan)

    def _measure(self, row: Row, server: Server, kept: Mapping[int, Kept], *, is_last: bool) -> None:
        own = kept if self.measures.each_client is not None else {}  # nothing else needs the client states
        memories = {client: self.exchange.of_method(one) for client, one in own.items()}
        self.measures.add(row, server, memories, is_last=is_last)

    def _measure_stored(self, storing: Sequence[Observer]) -> None:
        """Evaluate the last round of an earlier run, which may have been interrupted before it could know."""
        for row in self.history.rows[-1:]:
            known = set(row)
            self._measure(row, self.server, self.kept, is_last=True)
            for observer in storing if set(row) != known else ():
                observer.on_round(self, row)

    def result(self) -> Result:
        """The model, the history and the server as they are now."""
        engine = self.engine
        model = engine.model(self.server.params).eval()
        about = (self.stopped, engine.kind, engine.why, engine.loss_name, self.name, self.measures.by_client, self.kept)
        return Result(model, self.history, engine.method, self.server, *about, self.plan.num_clients, self.inputs)

    def _seeded(self, purpose: str, round: int) -> AbstractContextManager[None]:
        """Seed the global generators, from which a combiner or server may draw noise."""
        seed = torch_seed(self.plan.seed, purpose, round)
        return seeded(seed, self.engine.device, python=self.engine.method.may_draw)

    def _aggregate(self, plan: RoundPlan, result: CohortResult) -> Server:
        if result.mean is None:
            if result.refused and not result.is_skipped:
                raise TrainingDiverged(
                    f"round {plan.round}: the updates of all {len(result.refused)} clients were NaN or infinite; "
                    f"the run has diverged, try a smaller learning rate than {plan.lr:g} or clip gradients "
                    f"({_how_to_clip(self.engine.method.name)})"
                )
            return self.server  # no client worked: the round is skipped, and its row lists lost and idle clients
        with self._seeded("server", plan.round):
            server = self.engine.method.aggregate(
                self.server,
                result.mean,
                lr=plan.lr,
                num_steps=result.num_steps,
                participation=result.weight / (self.privacy or self.plan).total_weight,
            )
        if not all_finite(server):
            raise TrainingDiverged(
                f"round {plan.round}: the server's step gave NaN or infinity; the run has diverged, try a smaller "
                "server_lr or learning rate"
            )
        return server

    def _row(self, plan: RoundPlan, result: CohortResult, server: Server) -> Row:
        return {
            "round": plan.round,
            "lr": plan.lr,
            "train_loss": finite(result.train_loss),
            "drift": result.drift(server.params),
            **result.ledger.row(server.params.numel()),
            "seconds": 0.0,
            "clients": list(result.accepted),
            "lost": sorted((*plan.lost, *result.lost)),
            "refused": list(result.refused),
            "idle": list(plan.idle),
        }


def _refuse_unequal_weights(combiner: Combiner, plan: Rounds) -> None:
    """Refuse, before anything is trained, weights that the combiner would refuse after the first round."""
    if combiner.weights_equally and not plan.has_equal_weights:
        raise ValueError(f"{type(combiner).__name__} weights every client equally: use weights='uniform'")


def _how_to_clip(method: str) -> str:
    if method in RECIPES and "clip_norm" in hyper_parameters(method):
        return f"fedlada.recipes.{method}(clip_norm=10) in Python, --clip-norm 10 in the shell"
    return "fedlada.local.ClipNorm in the method's chain"
