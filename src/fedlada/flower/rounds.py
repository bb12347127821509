"""The plan of each round on a server that never sees the data."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch

from fedlada.federation.batches import LocalWork
from fedlada.federation.cohorts import Cohorts, FixedSize
from fedlada.federation.plan import Assignment, RoundPlan, rate_of
from fedlada.federation.randomness import Ints
from fedlada.federation.schedules import Schedule
from fedlada.federation.weights import Weights, check_weights
from fedlada.flower.exchange import Replies
from fedlada.flower.nodes import Nodes
from fedlada.flower.plausible import bounded, name_bounded
from fedlada.methods.state import Upload
from fedlada.methods.validation import count


def check_minimum(replies: Replies, cohorts: Cohorts, num_clients: int) -> None:
    """Refuse a minimum of replies that no round can have."""
    most = cohorts.size if isinstance(cohorts, FixedSize) else num_clients
    if replies.minimum > most:
        raise ValueError(f"minimum={replies.minimum} answers cannot come from {most} clients a round")


class DrawnByTheNode(Sequence[Ints]):
    """The batches of a remote client: the server knows their number only."""

    def __init__(self, num_steps: int) -> None:
        self.num_steps = num_steps

    def __len__(self) -> int:
        return self.num_steps

    def __getitem__(self, index: Any) -> Any:
        raise IndexError("the node draws its own batches")


def believed_work(works: Sequence[Assignment], size_bound: float | None) -> dict[int, Assignment]:
    """The work of clients that replied; a node that claims too many samples cannot dominate the mean K."""
    said = {work.client: float(work.num_steps) for work in works}
    counted = bounded(said, size_bound)
    unlikely = name_bounded("steps", said, counted)
    return {
        work.client: replace(work, batches=DrawnByTheNode(int(counted[work.client])))
        if work.client in unlikely
        else work
        for work in works
    }


def with_steps(upload: Upload, said: Assignment, believed: Assignment) -> Upload:
    """The upload with the number of steps that is believed, where it holds one (`StepCount`) and another was said."""
    if believed is said:
        return upload
    extra = tuple(
        {**vectors, "steps": torch.full_like(vectors["steps"], believed.num_steps)} if "steps" in vectors else vectors
        for vectors in upload.extra
    )
    return replace(upload, extra=extra)


@dataclass(frozen=True, eq=False, kw_only=True)
class RemoteRounds:
    """Cohorts drawn from the seed over client indices, exactly as in a simulation."""

    num_clients: int
    cohorts: Cohorts
    work: LocalWork
    schedule: Schedule
    seed: int
    weights: Weights
    nodes: Nodes
    replies: Replies
    size_bound: float | None
    cohort_seed: int | None = None
    """Draws the cohorts instead of the seed, which every node knows."""
    is_fixed = False

    def __post_init__(self) -> None:
        count("num_clients", self.num_clients)
        object.__setattr__(self, "weights", check_weights(self.weights, self.num_clients))
        self.cohorts.check(self.num_clients)

    @property
    def total_weight(self) -> float:
        """The weight of all clients together."""
        if isinstance(self.weights, str):
            return float(self.num_clients if self.weights == "uniform" else sum(self._believed.values()))
        return float(sum(self.weights))

    @property
    def has_equal_weights(self) -> bool:
        """Whether all clients count the same in a mean, whatever numbers of samples they will report."""
        return self.weights == "uniform" or (not isinstance(self.weights, str) and len({*self.weights} - {0.0}) == 1)

    @property
    def _believed(self) -> dict[int, float]:
        """The reported samples of every client, capped at plausible values; all have reported if weights need them."""
        return bounded(self.nodes.num_examples, self.size_bound)

    def round(self, round: int) -> RoundPlan:
        """The plan of a round for connected clients, if they are enough for it to count; the others are lost."""
        lr = rate_of(self.schedule, round)
        seed = self.seed if self.cohort_seed is None else self.cohort_seed
        cohort = self.cohorts.of_round(self.num_clients, seed, round)
        idle = tuple(client for client in cohort if not isinstance(self.weights, str) and self.weights[client] == 0)
        drawn = [client for client in cohort if client not in idle]
        self.nodes.deadline = time.monotonic() + self.replies.patience
        minimum = self.replies.minimum
        if lr != 0 and len(drawn) >= minimum:
            wanted = len(drawn) if self.replies.on_missing == "wait" else minimum
            self.nodes.wait_for(drawn, wanted, self.replies.patience, enough=0)
        if lr == 0:
            return RoundPlan(round, lr, (), (), tuple(cohort))
        here = tuple(client for client in drawn if client in self.nodes.present)
        lost = tuple(client for client in drawn if client not in self.nodes.present)
        if len(here) < minimum:  # the round cannot count: nobody works in vain
            return RoundPlan(round, lr, (), lost, tuple(sorted((*here, *idle))))
        return RoundPlan(round, lr, self.assigned(here), lost, idle)

    def assigned(self, clients: Sequence[int]) -> tuple[Assignment, ...]:
        """The work of these clients, by the samples that they have reported."""
        said = self.nodes.num_examples
        weights: Mapping[int, float] = dict.fromkeys(clients, 1.0)
        if self.weights == "examples":
            weights = self._believed
            name_bounded("samples", said, {**said, **weights})
        elif not isinstance(self.weights, str):
            weights = dict(enumerate(self.weights))
        return tuple(
            Assignment(client, DrawnByTheNode(self.work.num_steps(said[client])), (), float(weights[client]), 0)
            for client in clients
        )
