"""One run on several processes under torchrun: each runs a share of the cohort, and all have the full result."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from fedlada.data.samples import Samples
from fedlada.engines.engine import Engine, T
from fedlada.engines.evaluation import AS_USUAL, EvaluationOptions, Metric
from fedlada.engines.post import Post
from fedlada.engines.stacked.engine import StackedEngine
from fedlada.engines.tally import Answer, Answers, CohortResult, Tally
from fedlada.federation.plan import Assignment, RoundPlan
from fedlada.messages.errors import CannotEncode
from fedlada.messages.ledger import Ledger
from fedlada.methods.state import Broadcast, Kept, Upload, map_tensors, named_tensors


class RankLost(RuntimeError):
    """Another process of the run has died."""


class DistributedEngine(Engine):
    """Shares the cohort among all processes by its local steps; every process ends a round with the same server.

    With `ordered`, uploads are summed one by one in the order of the clients, as in one process, so the sum is the
    same to the bit. Otherwise each process sums its own first: the same up to rounding, with less traffic.
    """

    def __init__(self, inner: Engine, *, ordered: bool = False) -> None:
        self.inner, self.ordered = inner, ordered
        self.method, self.loss, self.device, self.flat = inner.method, inner.loss, inner.device, inner.flat
        self.rank, self.num_ranks = dist.get_rank(), dist.get_world_size()
        self.kind, self.template = inner.kind, inner.template
        self.why = f"{inner.why}; shared among {self.num_ranks} processes"
        same: list[Any] = [None] * self.num_ranks
        together(dist.all_gather_object, same, (type(inner).__name__, inner.data_digest()))
        if len(set(same)) > 1:
            raise ValueError(f"the processes of this run differ in their engine or their data: {sorted(set(same))}")

    def agreed(self, decide: Callable[[], T]) -> T:
        """The decision of the first process; its error ends all, so that nobody waits for it."""
        decision: T | None = None
        error: Exception | None = None
        if self.rank == 0:
            try:
                decision = decide()
            except Exception as raised:
                error = raised
        decision, text = of_first((decision, "" if error is None else str(error) or repr(error)), self.device)
        if error is not None:
            raise error
        if text:
            raise RuntimeError(f"the first process of this run has failed: {text}")
        return decision

    def initial_params(self) -> Tensor:
        params = self.inner.initial_params()
        together(dist.broadcast, params, src=0)  # a factory may have drawn other weights here
        return params

    def data_digest(self) -> str:
        return self.inner.data_digest()

    def check_test(self, samples: Samples, what: str = "test") -> None:
        self.inner.check_test(samples, what)

    def evaluate(
        self,
        params: Tensor,
        samples: Samples,
        metrics: Mapping[str, Metric],
        options: EvaluationOptions = AS_USUAL,
    ) -> dict[str, float]:
        # In each process separately: a callback of the first may evaluate too, without the others.
        return self.inner.evaluate(params, samples, metrics, options)

    def prepare(self, plan: RoundPlan) -> None:
        part = shares(plan.assignments, self.num_ranks)[self.rank]
        self.inner.prepare(replace(plan, assignments=tuple(part)))

    def model(self, params: Tensor) -> nn.Module:
        return self.inner.model(params)

    def answers(self, broadcast: Broadcast, plan: RoundPlan, kept: Mapping[int, Kept]) -> Answers:
        """All answers in the clients' order, each sent by the process that ran the client."""
        parts = shares(plan.assignments, self.num_ranks)
        # The next answer may overwrite this one's upload.
        own = [
            replace(answer, upload=map_tensors(torch.clone, answer.upload))
            for answer in self._own(broadcast, plan, kept)
        ]
        for rank, part in enumerate(parts):
            for place, work in enumerate(part):
                yield self._sent(work, own[place] if rank == self.rank else None, rank, broadcast)

    def outward(self, upload: Upload) -> Upload:
        return self.inner.outward(upload)

    def run_cohort(self, broadcast: Broadcast, kept: Mapping[int, Kept], post: Post) -> CohortResult:
        if (
            self.ordered or post.compares
        ):  # every upload goes to every process; otherwise each sends one for all its clients
            return super().run_cohort(broadcast, kept, post)
        received, tally = post.down(broadcast), post.tally()
        with closing(self._own(received, post.plan, post.memories(kept))) as answers:
            mean = tally.combined(post.up(answers, self.outward, kept), post.combiner)
        own_weight = sum(tally.weights)
        # The sums of all processes; one without an accepted client adds nothing.
        total = self._empty_upload(broadcast) if mean is None else map_tensors(lambda v: v * own_weight, mean)
        for _, vector in named_tensors(total):
            together(dist.all_reduce, vector)
        if not post.is_exact:
            post.trained = torch.zeros_like(broadcast.params) if post.trained is None else post.trained
            together(dist.all_reduce, post.trained)
        merged = self._merged(tally, broadcast, post)
        weight = sum(merged.weights)
        mean = None if weight == 0 else map_tensors(lambda vector: vector / weight, total)
        if mean is not None:
            mean = post.completed(self.outward(mean) if post.is_exact else mean, broadcast)
        return merged.result(mean, post.ledger, received, post.trained)

    def _own(self, broadcast: Broadcast, plan: RoundPlan, kept: Mapping[int, Kept]) -> Answers:
        part = shares(plan.assignments, self.num_ranks)[self.rank]
        own = replace(plan, assignments=tuple(part))
        self.inner.while_waiting = self.while_waiting
        try:
            yield from self.inner.answers(broadcast, own, kept)
        finally:
            self.inner.while_waiting = None  # break the reference cycle with the simulation

    def _sent(self, work: Assignment, answer: Answer | None, rank: int, broadcast: Broadcast) -> Answer:
        """One client's answer, from the process that has it to all."""
        numbers = torch.zeros(3, device=self.device, dtype=torch.float64)
        if answer is not None:
            values = (answer.train_loss, answer.square_delta, float(answer.is_finite))
            numbers.copy_(torch.tensor(values, dtype=torch.float64))
        upload = self._empty_upload(broadcast) if answer is None else answer.upload
        kept = self.method.init_kept(broadcast.params) if answer is None else answer.kept
        # A copy: an initial state may alias a tensor of the method itself.
        kept = map_tensors(lambda vector: vector.to(self.device, copy=True).contiguous(), kept)
        for vector in (numbers, *(vector for state in (upload, kept) for _, vector in named_tensors(state))):
            together(dist.broadcast, vector, src=rank)
        loss, square, finite = numbers.tolist()
        memory = self._settled(kept) if self.method.keeps_memory else Kept(())
        return Answer(work, upload, memory, loss, square, bool(finite))

    def _empty_upload(self, broadcast: Broadcast) -> Upload:
        """An upload of the right form, of zeros."""
        local = self.method.begin(broadcast, self.method.init_kept(broadcast.params), lr=1.0)
        upload, _ = self.method.finish(local, 1)
        return map_tensors(torch.zeros_like, upload)

    def _merged(self, own: Tally, broadcast: Broadcast, post: Post) -> Tally:
        """The tallies of all processes merged in the clients' order; all get the client states and traffic."""
        mine = _Numbers(
            tuple(own.kept),
            own.weights,
            own.refused,
            own.steps,
            own.loss,
            own.square,
            post.ledger.only("up"),
            post.misfit(),
        )
        everybody: list[Any] = [None] * self.num_ranks
        together(dist.all_gather_object, everybody, mine)
        for misfit in (one.misfit for one in everybody if one.misfit):
            raise CannotEncode(misfit)  # in all of them, or the others would wait forever
        fresh = post.exchange.init_kept(broadcast.params)
        merged = Tally()
        for rank, one in enumerate(everybody):
            for client in one.accepted:
                kept = own.kept[client] if rank == self.rank else fresh
                merged.kept[client] = self._kept_from(kept, rank) if any(named_tensors(fresh)) else Kept(())
            merged.weights += one.weights
            merged.refused += one.refused
            merged.steps += one.steps
            merged.loss += one.loss
            merged.square += one.square
            if rank != self.rank:
                post.ledger.merge(one.sent)
        return merged

    def _kept_from(self, kept: Kept, rank: int) -> Kept:
        kept = map_tensors(lambda vector: vector.to(self.device, copy=True).contiguous(), kept)
        for _, vector in named_tensors(kept):
            together(dist.broadcast, vector, src=rank)
        return self._settled(kept)

    def _settled(self, kept: Kept) -> Kept:
        """The state on the host, if this process's engine keeps client states there."""
        on_host = isinstance(self.inner, StackedEngine) and self.inner.memories.on_host
        return map_tensors(Tensor.cpu, kept) if on_host else kept


@dataclass(frozen=True)
class _Numbers:
    accepted: tuple[int, ...]
    weights: list[float]
    refused: list[int]
    steps: float
    loss: float
    square: float
    sent: Ledger
    misfit: str


def shares(work: Sequence[Assignment], num_ranks: int) -> list[Sequence[Assignment]]:
    """The clients in order, split so that the processes have about equal numbers of local steps."""
    total = sum(one.num_steps for one in work)
    parts: list[list[Assignment]] = [[] for _ in range(num_ranks)]
    done = 0
    for one in work:
        middle = done + one.num_steps / 2
        parts[min(num_ranks - 1, int(middle * num_ranks / total))].append(one)
        done += one.num_steps
    return list(parts)


def of_first(value: Any, device: torch.device) -> Any:
    """The first process's value in all of them."""
    said = [value]
    on = device if device.type == "cuda" else torch.device("cpu")
    together(dist.broadcast_object_list, said, src=0, device=on)
    return said[0]


def together(collective: Any, *arguments: Any, **options: Any) -> None:
    """A collective call; raises `RankLost` if another process has died."""
    try:
        partial(collective, *arguments, **options)()
    except RuntimeError as error:
        raise RankLost(
            "another process of this run has died, so this one ends too; start it again with fedlada resume FOLDER, "
            f"with any number of processes ({str(error).splitlines()[0][:120]})"
        ) from None
