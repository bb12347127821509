"""The plan of each round: clients, batches and learning rate, all drawn from the seed alone."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, fields, is_dataclass
from functools import cached_property
from inspect import signature
from typing import Protocol

from fedlada.federation.batches import LocalWork
from fedlada.federation.cohorts import Cohorts, Unreliable
from fedlada.federation.randomness import Ints, Words, bits, torch_seed, words
from fedlada.federation.schedules import Schedule
from fedlada.federation.weights import Weights, check_weights
from fedlada.methods.validation import seed_number


@dataclass(frozen=True, eq=False)
class Assignment:
    """One client's work in one round."""

    client: int
    batches: Sequence[Ints]
    words: Sequence[Words]
    """One random word per sample of each batch, which augmentation draws from."""
    weight: float
    seed: int
    """Seed for models that draw random numbers themselves (dropout)."""

    @property
    def num_steps(self) -> int:
        """K_i."""
        return len(self.batches)


@dataclass(frozen=True, eq=False)
class RoundPlan:
    """One round: the clients that will answer, in the order of their indices, and those that will not."""

    round: int
    lr: float
    assignments: tuple[Assignment, ...]
    lost: tuple[int, ...]
    """Clients whose answer never arrives."""
    idle: tuple[int, ...]
    """Clients that have nothing to do: no samples, a weight of zero, or a rate of zero."""

    @property
    def num_asked(self) -> int:
        """How many clients receive the broadcast."""
        return len(self.assignments) + len(self.lost)


@dataclass(frozen=True)
class Drawn:
    """Choices of a round that a user's code may make: a small part of its plan, from which the rest follows."""

    round: int
    lr: float
    num_steps: dict[int, int]
    """K_i of the clients that will answer, in the order of their indices."""
    lost: tuple[int, ...]
    idle: tuple[int, ...]


def assign(
    samples: Ints, work: LocalWork, *, seed: int, round: int, client: int, num_steps: int, weight: float = 1.0
) -> Assignment:
    """One client's batches of a round over its own samples; they depend on the key alone."""
    batches = work.batches(samples, bits(seed, "batches", round, client), num_steps)
    stream = bits(seed, "augmentation", round, client)
    return Assignment(
        client,
        batches,
        [words(stream, len(batch)) for batch in batches],
        weight,
        torch_seed(seed, "model", round, client),
    )


class Rounds(Protocol):
    """The interface of a plan: a simulation asks it for each round."""

    @property
    def seed(self) -> int:
        """Fixes all random choices."""

    @property
    def num_clients(self) -> int:
        """m."""

    @property
    def cohorts(self) -> Cohorts:
        """The client sampling."""

    @property
    def schedule(self) -> Schedule:
        """The clients' learning rate by round."""

    @property
    def is_fixed(self) -> bool:
        """Whether rounds can be drawn ahead."""

    @property
    def total_weight(self) -> float:
        """The weight of all clients together."""

    @property
    def has_equal_weights(self) -> bool:
        """Whether all clients that are asked count the same in a mean."""

    def round(self, round: int) -> RoundPlan:
        """The plan of round 1, 2, ..."""


def rate_of(schedule: Schedule, round: int) -> float:
    """The clients' learning rate of a round, checked: a schedule may be any function."""
    try:
        signature(schedule).bind(round)
    except TypeError:
        raise ValueError(f"lr must be a number or a function of the round, lambda t: 1 / t, got {schedule!r}") from None
    except ValueError:  # a function that is not written in Python may not tell its arguments
        pass
    given = schedule(round)
    try:
        lr = float(given)
    except (TypeError, ValueError):
        raise ValueError(f"lr must give the learning rate of round {round} as one number, got {given!r}") from None
    if not 0 <= lr < math.inf:
        raise ValueError(f"the learning rate of round {round} must be a finite number of at least 0, got {lr}")
    return lr


@dataclass(frozen=True, eq=False, kw_only=True)
class Plan:
    """The plan of a whole simulation."""

    clients: Sequence[Ints]
    """The sample indices of each client."""
    cohorts: Cohorts
    work: LocalWork
    schedule: Schedule
    seed: int = 0
    weights: Weights = "uniform"
    """Weights of clients in the mean: "uniform" (1/S, as in the paper), by their number of "examples", or p_i of each.

    A client of weight zero is not asked, and one without samples has that weight.
    """
    unreliable: Unreliable = field(default_factory=Unreliable)
    client_names: Sequence[str] = ()
    """One name per client, if they have names."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "weights", check_weights(self.weights, self.num_clients))
        if not any(len(own) for own in self.clients):
            raise ValueError("no client has any samples")
        is_given = not isinstance(self.weights, str)
        if is_given and not any(len(own) and self.weight(client) > 0 for client, own in enumerate(self.clients)):
            raise ValueError("weights are zero for every client that has samples: nothing would be trained")
        if not isinstance(self.unreliable, Unreliable):
            example = "fedlada.Unreliable(dropout=0.1)"
            raise ValueError(f"unreliable must be an object such as {example}, got {self.unreliable!r}")
        object.__setattr__(self, "seed", seed_number(self.seed))
        self.cohorts.check(self.num_clients)

    @property
    def num_clients(self) -> int:
        """m."""
        return len(self.clients)

    @cached_property  # a round needs it, and there may be a hundred thousand clients
    def total_weight(self) -> float:
        """The weight of all clients together."""
        return float(sum(self.weight(client) for client in range(self.num_clients)))

    @property
    def is_fixed(self) -> bool:
        """Whether rounds can be planned ahead: schedules or cohorts may depend on the past."""
        return all(map(is_pure, (self.schedule, self.cohorts, self.unreliable)))

    @property
    def largest_num_steps(self) -> int:
        """The most local steps that any client takes in a round."""
        return max(self.work.num_steps(len(own)) for own in self.clients)

    @property
    def largest_batch(self) -> int:
        """The most samples in a batch of any client."""
        return min(self.work.batch_size, max(map(len, self.clients)))

    @property
    def has_short_batches(self) -> bool:
        """Whether batches differ in size."""
        return any(len(own) % self.work.batch_size for own in self.clients)

    @property
    def has_equal_weights(self) -> bool:
        """Whether all clients that are asked count the same in a mean."""
        return len({self.weight(client) for client, own in enumerate(self.clients) if len(own)} - {0.0}) == 1

    def weight(self, client: int) -> float:
        """This client's weight in a mean; none without samples."""
        if len(self.clients[client]) == 0:
            return 0.0
        if isinstance(self.weights, str):
            return 1.0 if self.weights == "uniform" else float(len(self.clients[client]))
        return self.weights[client]

    def round(self, round: int) -> RoundPlan:
        """The plan of round 1, 2, ...; any round can be asked for at any time."""
        return self.assigned(self.draw(round))

    def draw(self, round: int) -> Drawn:
        """The rate and the clients of a round, with the number of their steps."""
        lr = rate_of(self.schedule, round)
        steps: dict[int, int] = {}
        lost, idle = [], []
        for client in self.cohorts.of_round(self.num_clients, self.seed, round):
            all_steps = self.work.num_steps(len(self.clients[client]))
            num_steps = self.unreliable.steps_done(all_steps, self.seed, round, client)
            has_no_weight = not isinstance(self.weights, str) and self.weights[client] == 0
            if num_steps == 0 or lr == 0 or has_no_weight:
                idle.append(client)
            elif not self.unreliable.answers(self.seed, round, client):
                lost.append(client)
            else:
                steps[client] = num_steps
        return Drawn(round, lr, steps, tuple(lost), tuple(idle))

    def assigned(self, drawn: Drawn) -> RoundPlan:
        """The plan of a round whose clients were drawn, with their batches."""
        assignments = (
            assign(
                self.clients[client],
                self.work,
                seed=self.seed,
                round=drawn.round,
                client=client,
                num_steps=num_steps,
                weight=self.weight(client),
            )
            for client, num_steps in drawn.num_steps.items()
        )
        return RoundPlan(drawn.round, drawn.lr, tuple(assignments), drawn.lost, drawn.idle)


def is_pure(part: object) -> bool:
    """Whether it and every schedule that it wraps declare to depend on the round alone."""
    inner = [getattr(part, one.name) for one in fields(part)] if is_dataclass(part) else []
    return getattr(part, "is_pure", False) and all(is_pure(one) for one in inner if callable(one))
