"""Answers of clients, and their sum over a cohort, one after another in the order of their numbers."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from fedlada.federation.plan import Assignment
from fedlada.messages.ledger import Ledger
from fedlada.methods.combine.norm_bound import norms_of
from fedlada.methods.state import Broadcast, Kept, Upload, all_finite, named_tensors

Combine = Callable[[Iterable[Upload], Sequence[float]], Upload]


@dataclass(frozen=True)
class Answer:
    """The answer of one client."""

    work: Assignment
    upload: Upload
    """Valid until the next answer is asked for; in the engine's own order of the parameters until it has travelled in a
    code that is not exact."""
    kept: Kept
    train_loss: float
    """The mean over its local steps."""
    square_delta: float
    is_finite: bool
    """Whether nothing that would reach the server or the client's memory is NaN or infinite."""
    trained: Tensor | None = None
    """Its delta as it trained it, where it sends another."""


def answer_of(work: Assignment, upload: Upload, kept: Kept, train_loss: float) -> Answer:
    """A client's answer with what is measured on it."""
    square = float(torch.linalg.vector_norm(upload.delta, dtype=torch.float64) ** 2)
    is_finite = math.isfinite(square) and all_finite(upload) and all_finite(kept)
    return Answer(work, upload, kept, train_loss, square, is_finite)


@dataclass(frozen=True)
class CohortResult:
    """The answers of a cohort in a round. The simulation commits `kept` together with the aggregate, never before."""

    mean: Upload | None
    """The mean of the accepted uploads; None when there was none."""
    kept: Mapping[int, Kept]
    """The new private memories of the accepted clients."""
    accepted: tuple[int, ...]
    refused: tuple[int, ...]
    """Clients whose upload held a NaN or an infinity, or what is not positive and must be."""
    weight: float
    """The accepted clients' weight."""
    num_steps: float
    """Their weighted mean of K_i."""
    train_loss: float
    """Their weighted mean of the loss over all local steps."""
    mean_square_delta: float
    """Their weighted mean of ||delta_i||^2, from which drift follows without keeping the deltas;
    NaN where nobody knows it."""
    ledger: Ledger
    """The bytes that travelled: down for each client that was asked, up for each whose upload could be sent."""
    received: Tensor
    """x^t as the clients had it."""
    trained: Tensor | None = None
    """The mean delta as the clients had it, where the server got another."""
    lost: tuple[int, ...] = ()
    """Clients that were asked and did not answer, where the plan could not know."""
    norms: Mapping[str, Sequence[float]] = field(default_factory=dict)
    """The norms of the accepted uploads' vectors, where the combiner has them measured."""


class Tally:
    """Who was accepted with what weight, and the weighted sums of what is reported."""

    def __init__(self, positive: Sequence[Collection[str]] = (), *, measures_norms: bool = False) -> None:
        self.positive, self.measures_norms = positive, measures_norms
        self.norms: dict[str, list[float]] = {}
        self.kept: dict[int, Kept] = {}
        self.refused: list[int] = []
        self.weights: list[float] = []
        self.steps = self.loss = self.square = 0.0

    def accepted(self, answers: Iterator[Answer]) -> Iterator[Upload]:
        """The uploads that go into the mean; each is counted just before it is given out."""
        for answer in answers:
            if not answer.is_finite or not_positive(answer.upload, self.positive):
                self.refused.append(answer.work.client)
                continue
            weight = answer.work.weight
            self.kept[answer.work.client] = answer.kept
            self.weights.append(weight)
            self.steps += weight * answer.work.num_steps
            self.loss += weight * answer.train_loss
            self.square += weight * answer.square_delta
            if self.measures_norms:
                for name, norms in norms_of([answer.upload]).items():
                    self.norms.setdefault(name, []).extend(norms)
            yield answer.upload

    def combined(self, answers: Iterator[Answer], combine: Combine) -> Upload | None:
        """The accepted uploads as one, or None of none; a mean has one of them alive at a time."""
        uploads = self.accepted(answers)
        first = next(uploads, None)
        if first is None:
            return None

        def everything() -> Iterator[Upload]:
            yield first
            yield from uploads

        return combine(everything(), self.weights)  # the weights grow just ahead of the sum that reads them

    def result(
        self, mean: Upload | None, ledger: Ledger, received: Broadcast, trained: Tensor | None = None
    ) -> CohortResult:
        """All of it."""
        total = sum(self.weights)
        return CohortResult(
            mean=mean,
            kept={client: kept for client, kept in self.kept.items() if any(named_tensors(kept))},
            accepted=tuple(self.kept),
            refused=tuple(self.refused),
            weight=total,
            num_steps=self.steps / total if total else 0.0,
            train_loss=self.loss / total if total else math.nan,
            mean_square_delta=self.square / total if total else math.nan,
            ledger=ledger,
            received=received.params,
            trained=trained / total if trained is not None and total else None,
            norms=self.norms,
        )


def not_positive(upload: Upload, positive: Sequence[Collection[str]]) -> str:
    """The name of a vector that must be positive, by its transform's declaration, and is not; or nothing."""
    for extra, names in zip(upload.extra, positive, strict=False):
        for name in names:
            if name in extra and not bool((extra[name] > 0).all()):
                return name
    return ""
