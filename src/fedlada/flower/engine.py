"""An engine whose clients are real nodes: it sends tasks over Flower's grid and aggregates the replies."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, replace

import torch
from flwr.app import ArrayRecord, ConfigRecord, Message, MessageType, MetricRecord, RecordDict
from flwr.serverapp import Grid
from flwr.serverapp.strategy import Strategy
from torch import Tensor, nn

from fedlada.data.samples import Samples
from fedlada.engines.check_fit import check_fit
from fedlada.engines.cpu_kernels import fast_cpu_kernels
from fedlada.engines.engine import Engine
from fedlada.engines.evaluation import AS_USUAL, EvaluationOptions, Loss, Metric, evaluate
from fedlada.engines.post import Post
from fedlada.engines.tally import Answer, Answers, CohortResult, Tally, answer_of, not_positive
from fedlada.federation.batches import LocalWork
from fedlada.federation.plan import Assignment, RoundPlan
from fedlada.flower import wire
from fedlada.flower.coding import Coding
from fedlada.flower.exchange import CLOCKS, Replies, SkippedRounds, TooFewReplies, in_words, log, one_line, reasons
from fedlada.flower.inbox import ask
from fedlada.flower.inflation import bounded_grid
from fedlada.flower.nodes import Nodes, said_examples
from fedlada.flower.plausible import check_steps
from fedlada.flower.rounds import RemoteRounds, believed_work, with_steps
from fedlada.flower.untrained import summary
from fedlada.flower.versions import Versions
from fedlada.messages.exchange import Exchange
from fedlada.messages.ledger import ENVELOPE
from fedlada.methods.combine import Private
from fedlada.methods.method import FederatedMethod
from fedlada.methods.state import Broadcast, Kept
from fedlada.models.flat import FlatModel, model_with
from fedlada.training.history import History

FIRST_PAUSE = 2.0
"""Seconds before missing clients of a round are asked again; doubled each time."""
LONGEST_PAUSE = 60.0


@dataclass(frozen=True, kw_only=True)
class Settings:
    """Settings common to all tasks of a run."""

    run: str
    attempt: str
    seed: int
    work: LocalWork
    threads: int
    size_bound: float | None
    answer: str
    """"delta", or "params" if one of Flower's wrappers processes the replies."""


class GridEngine(Engine):
    """Sends the broadcast, collects the uploads by the reply policy, orders them by client and aggregates them."""

    def __init__(
        self,
        model: nn.Module,
        method: FederatedMethod,
        loss: Loss | None,
        *,
        settings: Settings,
        replies: Replies,
        device: torch.device,
        dtype: torch.dtype | None = None,
    ) -> None:
        self.device = device
        self.settings = settings
        self.replies = replies
        self.template = model
        self.flat = FlatModel(model, device, dtype)
        self.method = method = method.suited_to(self.flat.vector)
        self.fingerprint, self.untrained = wire.fingerprint(method), summary(model)
        self.given_loss = loss
        self.kind = "flower"
        self.why = "real nodes, over Flower"
        probe = method.init(self.initial_params())
        local = method.begin(probe.broadcast, method.init_kept(probe.params), lr=1.0)
        self.like_upload = method.finish(local, 1)[0]
        if settings.answer == "params" and (any(probe.shared) or any(self.like_upload.extra)):
            raise ValueError(
                f"Flower's wrappers know one vector down and one up, and {method.name} sends more: use FedAvg, FedProx "
                "or FedAdam with them"
            )
        if settings.answer == "params" and method.keeps_memory:
            raise ValueError(f"Flower's wrappers do not cover what clients of {method.name} remember: use FedAvg")

    def connect(
        self, grid: Grid, nodes: Nodes, rounds: RemoteRounds, asking: Strategy, history: Callable[[], History]
    ) -> None:
        """Connect to the grid; `asking`, the strategy or a wrapper around it, makes messages and takes replies."""
        self.grid, self.nodes, self.rounds, self.asking, self.history = grid, nodes, rounds, asking, history
        self.versions = Versions()
        self.skipped = SkippedRounds()
        self.checkpoints: Callable[[], list[int]] = list

    def bounded(self, grid: Grid, messages: str) -> Grid:
        """The grid, which refuses replies that are larger than any upload."""
        coding = Coding(Exchange(messages, self.method, self.settings.seed))
        return bounded_grid(grid, coding.most_bytes(self.like_upload))

    def initial_params(self) -> Tensor:
        return self.flat.vector.clone()

    def data_digest(self) -> str:
        return ""  # the data never leave the nodes

    def check_test(self, samples: Samples, what: str = "test") -> None:
        self.loss = check_fit(self.flat, samples, self.given_loss, what)

    def evaluate(
        self,
        params: Tensor,
        samples: Samples,
        metrics: Mapping[str, Metric],
        options: EvaluationOptions = AS_USUAL,
    ) -> dict[str, float]:
        self.flat.load(params)
        with fast_cpu_kernels(self.device, self.flat.vector.numel()):
            return evaluate(self.flat.module, samples, self.loss, metrics=metrics, batch_size=options.eval_batch_size)

    def model(self, params: Tensor) -> nn.Module:
        return model_with(self.template, params)

    def answers(self, broadcast: Broadcast, plan: RoundPlan, kept: Mapping[int, Kept]) -> Answers:
        raise NotImplementedError("a cohort of real nodes answers as a whole: see run_cohort")

    def run_cohort(self, broadcast: Broadcast, kept: Mapping[int, Kept], post: Post) -> CohortResult:
        self.broadcast, self.plan, self.ledger = broadcast, post.plan, post.ledger
        plan = post.plan
        self.coding, self.post = Coding(post.exchange), post
        self.packed = self.coding.pack(broadcast, plan.round)
        self.remembers = self.method.keeps_memory or bool(post.exchange.remembered)
        self.stored = self.checkpoints() if self.remembers else []
        self.versions.read(self.history())
        self.refused: dict[int, str] = {}
        self.diverged: set[int] = set()
        good = self._collect({work.client: work for work in plan.assignments}) if plan.assignments else {}
        self._take_numbers(good)
        lost = tuple(work.client for work in plan.assignments if work.client not in {*good, *self.refused})
        self.result = Tally().result(None, self.ledger, self.packed.received)
        num_drawn = plan.num_asked + len(plan.idle)
        has_nothing_to_do = plan.lr == 0 or not num_drawn
        if len(good) < self.replies.minimum and not has_nothing_to_do and not self._has_diverged(good):
            why = self._too_few(good, (*lost, *plan.lost))
            if num_drawn < self.replies.minimum:  # by chance: no node is to blame
                log.warning("%s. The round is skipped", why)
            else:
                self.skipped.add(why, self.replies.minimum)
            lost, good = tuple(sorted((*lost, *good))), {}
            self.result = replace(self.result, is_skipped=True)
        elif good:
            self.skipped = SkippedRounds()
            arrays, _ = self.asking.aggregate_train(plan.round, list(good.values()))
            if arrays is None:
                raise TooFewReplies(f"round {plan.round}: the wrapper around the strategy gave no mean")
            mean = wire.received_upload(arrays, broadcast, self.like_upload, self.settings.answer)
            self.result = replace(self.result, mean=post.completed(mean, broadcast))
            if not post.exchange.rules["up/delta"].codec.is_exact:  # the clients' true updates stay with them
                self.result = replace(self.result, mean_square_delta=math.nan)
        if places := post.combiner.outliers(self.result.norms):
            clients = in_words([self.result.accepted[place] for place in places])
            log.warning("round %d: %s sent more than the bound: scaled down", plan.round, clients)
        return replace(
            self.result,
            kept={},  # client states stay on their nodes
            refused=tuple(sorted(self.refused)),
            lost=lost,
        )

    def _collect(self, works: Mapping[int, Assignment]) -> dict[int, Message]:
        """The usable replies in the order of the clients; asks again as the policy allows."""
        made = list(self.asking.configure_train(self.plan.round, self.packed.record, ConfigRecord(), self.grid))
        contents = {work.client: message.content for work, message in zip(works.values(), made, strict=True)}
        good: dict[int, Message] = {}
        wanted, pause, limit = list(works), FIRST_PAUSE, self.replies.time_limit
        while wanted and limit > 0:
            here = [client for client in wanted if client in self.nodes.present]
            replies = ask(self.grid, {client: self._message(client, contents[client]) for client in here}, limit)
            good |= {
                client: reply for client, reply in sorted(replies.items()) if self._is_usable(reply, works[client])
            }
            wanted = self._wanted(works, good)
            if wanted and (left := self.nodes.left) > 0:
                log.warning("round %d: %s asked again", self.plan.round, in_words(wanted))
                time.sleep(min(pause, self.replies.time_limit, left))
                self.nodes.wait_for(wanted, 1, self.nodes.left, enough=0)
            pause, limit = min(2 * pause, LONGEST_PAUSE), min(self.replies.time_limit, self.nodes.left)
        return dict(sorted(good.items()))

    def _is_usable(self, reply: Message, work: Assignment) -> bool:
        """Whether a reply is usable; if not, the reason is noted."""
        sizes: dict[str, int] = {}
        try:
            sizes = self.read(reply, work)[1]
            self.refused.pop(work.client, None)
        except wire.WrongMessage as error:
            self.refused[work.client] = one_line(error)
            log.warning("round %d: client %d is refused: %s", self.plan.round, work.client, one_line(error))
        self._count(work.client, "up", sizes, reply)
        return work.client not in self.refused

    def _take_numbers(self, good: Mapping[int, Message]) -> None:
        """Plan the work again where a node's samples became more or fewer since it reported them."""
        said = {client: wire.metric(reply, "num-examples", int) for client, reply in good.items()}
        changed = [client for client, number in said.items() if self.nodes.take_number(client, number)]
        if changed:
            clients = [work.client for work in self.plan.assignments]
            self.plan = replace(self.plan, assignments=self.rounds.assigned(clients))

    def _wanted(self, works: Collection[int], good: Collection[int]) -> list[int]:
        """Clients to ask again. With too few replies also refused ones, except for a NaN, which would repeat."""
        if len(good) >= self.replies.minimum:
            missing = [client for client in works if client not in {*good, *self.refused}]
            return missing if self.replies.on_missing == "wait" else []
        return [client for client in works if client not in {*good, *self.diverged}]

    def _has_diverged(self, good: Collection[int]) -> bool:
        """Whether the run has diverged: all replies of a round say so, of two clients and of half of the cohort.

        The word of one client is enough only where there is no other.
        """
        told = len(self.diverged)
        is_enough = told >= min(2, self.nodes.num_clients) and 2 * told >= self.plan.num_asked
        # A private run cannot end so: noise stands in for the missing mean.
        is_private = isinstance(self.method.combiner, Private)
        return not good and self.diverged == set(self.refused) and is_enough and not is_private

    def _too_few(self, good: Collection[int], lost: Collection[int]) -> str:
        """The reason why a round has too few replies."""
        plan, minimum = self.plan, self.replies.minimum
        if not plan.assignments:
            here, drawn = len(plan.idle), plan.num_asked + len(plan.idle)
            if drawn < minimum:
                return f"round {plan.round} has a cohort of {drawn} and needs {minimum}"
            return f"round {plan.round} has {here} of its {drawn} clients connected and needs {minimum}"
        others = len(self.refused) - len(self.diverged)
        return (
            f"round {plan.round} has {len(good)} usable answers and needs {minimum}: {len(lost)} clients did not "
            f"answer, {len(self.diverged)} had a NaN or an infinity, {others} were refused for other reasons"
            + reasons({f"client {client}": why for client, why in self.refused.items()})
        )

    def _message(self, client: int, content: RecordDict) -> Message:
        node_id = self.nodes.present[client]
        group = str(self.plan.round)
        ttl = self.replies.time_limit + CLOCKS
        message = Message(content, dst_node_id=node_id, message_type=MessageType.TRAIN, group_id=group, ttl=ttl)
        self._count(client, "down", self.packed.sizes, message)
        return message

    def _count(self, client: int, direction: str, sizes: Mapping[str, int], message: Message) -> None:
        """Count a message: its vectors and its header; an unreadable one counts as header."""
        for path, size in sizes.items():
            self.ledger.add(client, path, size)
        whole = wire.packed_bytes(message.content) if message.has_content() else 0
        # Vectors with the same bytes are sent once, and counted as two.
        self.ledger.add(client, f"{direction}/{ENVELOPE}", max(0, whole - sum(sizes.values())))

    def task(self, client: int, after: int | None = None) -> wire.Task:
        """A client's task in this round, starting from its state after an earlier round, by default the last."""
        work, round = self.settings.work, self.plan.round
        memory = self.versions.of(client, round - 1 if after is None else after) if self.remembers else None
        nameable = [memory] + [self.versions.of(client, done) for done in self.stored]
        needed = {version.text for version in nameable if version is not None}
        return wire.Task(
            method=self.fingerprint,
            untrained=self.untrained,
            run=self.settings.run,
            round=round,
            client=client,
            lr=self.plan.lr,
            seed=str(self.settings.seed),
            batch_size=work.batch_size,
            epochs=work.epochs,
            steps=work.steps or 0,
            attempt=self.settings.attempt,
            memory="" if memory is None else memory.text,
            needed_memories=",".join(sorted(needed)),
            messages=self.coding.exchange.messages.text,
            threads=self.settings.threads,
            answer=self.settings.answer,
        )

    def read(self, reply: Message, work: Assignment) -> tuple[Answer, dict[str, int]]:
        """A client's reply, checked against its task, with the bytes of its vectors."""
        status = wire.read_header(reply, wire.Done).status
        if status == "diverged":
            self.diverged.add(work.client)
        elif status == "moved":
            self.nodes.present.pop(work.client, None)
        wire.check_done(reply, (self.settings.run, self.plan.round, work.client))
        num_examples = said_examples(wire.metric(reply, "num-examples", int))
        num_steps = self.settings.work.num_steps(num_examples)
        if (said := wire.metric(reply, "num-steps", int)) != num_steps:
            raise wire.WrongMessage(f"it says num-steps {said}, and its {num_examples} samples make {num_steps}")
        try:
            record = wire.vectors_of(reply)
            if self.settings.answer == "delta":
                upload, sizes = self.coding.unpack(record, self.like_upload, self.plan.round)
            else:
                upload = wire.received_upload(record, self.broadcast, self.like_upload, self.settings.answer)
                sizes = {"up/params": upload.delta.numel() * upload.delta.element_size()}
        except wire.NotFinite:
            self.diverged.add(work.client)
            raise
        if name := not_positive(upload, [part.positive for part in self.method.local]):
            raise wire.WrongMessage(f"its vector {name} holds numbers that are not positive, and all must be")
        check_steps(upload, num_steps)
        answer = answer_of(work, upload, Kept(()), wire.metric(reply, "train-loss", float))
        if not answer.is_finite:
            self.diverged.add(work.client)
            raise wire.NotFinite("the norm of its update is infinite")
        return answer, sizes

    def average(self, replies: list[Message]) -> tuple[ArrayRecord, MetricRecord]:
        """The mean of the replies in the order of the clients, whatever order they arrived in."""
        works = {work.client: work for work in self.plan.assignments}
        ordered = sorted(replies, key=lambda reply: wire.read_header(reply, wire.Done).client)
        tally = self.post.tally()
        replied = [works[wire.read_header(reply, wire.Done).client] for reply in ordered]
        believed = believed_work(replied, self.settings.size_bound)
        trained = None if self.method.combiner.declares("is_linear") else torch.zeros_like(self.broadcast.params)

        def answers() -> Iterator[Answer]:
            for reply in ordered:
                client = wire.read_header(reply, wire.Done).client
                got = self.read(reply, works[client])[0]
                upload = with_steps(self.post.completed(got.upload, self.broadcast), works[client], believed[client])
                answer = replace(got, work=believed[client], upload=upload)
                if trained is not None:
                    trained.add_(answer.work.weight * answer.upload.delta)
                yield answer

        mean = tally.combined(answers(), self.post.combiner)
        assert mean is not None
        self.result = tally.result(mean, self.ledger, self.packed.received, trained)
        metrics = MetricRecord({"train-loss": self.result.train_loss, "num-clients": len(self.result.accepted)})
        return wire.sent_upload(mean, self.broadcast, self.settings.answer), metrics
