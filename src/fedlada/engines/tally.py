"""Clients' answers, and their sums over a cohort in the order of client indices."""

from __future__ import annotations

import math
from collections.abc import Collection, Generator, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from fedlada.federation.plan import Assignment
from fedlada.messages.ledger import Ledger
from fedlada.methods.combine import Combiner
from fedlada.methods.combine.norm_bound import norms_of
from fedlada.methods.state import (
    Broadcast,
    Kept,
    Upload,
    all_finite,
    is_finite,
    map_tensors,
    named_tensors,
    tensors_inside,
)


@dataclass(frozen=True)
class Answer:
    """The answer of one client."""

    work: Assignment
    upload: Upload
    """Valid until the next answer is requested; in the engine's parameter order until it has passed a lossy codec."""
    kept: Kept
    train_loss: float
    """The mean over its local steps."""
    square_delta: float
    is_finite: bool
    """Whether the upload and the new client state are finite."""
    trained: Tensor | None = None
    """Its true delta, if it sends a forged one."""


Answers = Generator[Answer, None, None]
NORM_BLOCK = 2**16
"""Numbers that are converted to float64 at once on a CPU: they stay in its cache."""


def answer_of(work: Assignment, upload: Upload, kept: Kept, train_loss: float) -> Answer:
    """A client's answer with its statistics."""
    square = square_norm(upload.delta)
    others = tensors_inside("extra", upload.extra)  # a NaN or an infinity of the delta is one of the square too
    finite = math.isfinite(square) and all(is_finite(one) for _, one in others) and all_finite(kept)
    return Answer(work, upload, kept, train_loss, square, finite)


def square_norm(vector: Tensor) -> float:
    """||vector||^2, summed in float64."""
    if vector.device.type != "cpu" or vector.dtype == torch.float64:
        return float(torch.linalg.vector_norm(vector, dtype=torch.float64) ** 2)
    wide = torch.empty(min(NORM_BLOCK, vector.numel()), dtype=torch.float64)
    parts = (wide[: len(part)].copy_(part) for part in torch.split(vector, NORM_BLOCK))
    return math.fsum(float(torch.dot(part, part)) for part in parts)


@dataclass(frozen=True)
class CohortResult:
    """The answers of a cohort in a round. The simulation commits `kept` together with the aggregate, never before."""

    mean: Upload | None
    """The mean of the accepted uploads; None when there was none."""
    kept: Mapping[int, Kept]
    """The new private states of the accepted clients."""
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
    """Traffic in bytes: down for each selected client, up for each upload that could be sent."""
    received: Tensor
    """x^t as the clients received it."""
    trained: Tensor | None = None
    """The mean of the clients' deltas before compression, if that is lossy."""
    lost: tuple[int, ...] = ()
    """Selected clients whose answer was not used, beyond those in the plan."""
    is_skipped: bool = False
    """Whether too few clients answered for the round to count; nothing is then said about divergence."""
    norms: Mapping[str, Sequence[float]] = field(default_factory=dict)
    """The norms of the accepted uploads' vectors, if the combiner needs them."""

    def drift(self, params: Tensor) -> float | None:
        """mean_i ||x_{i,K} - x^{t+1}||^2, the paper's consistency, from mean ||d_i||^2 and the mean of d_i."""
        if self.mean is None:
            return None
        moved = (self.received - params).double()
        mean = self.mean.delta if self.trained is None else self.trained
        cross = torch.dot(mean.double(), moved)
        drift = self.mean_square_delta - 2 * float(cross) + float(torch.dot(moved, moved))
        return max(0.0, drift) if math.isfinite(drift) else None


class Tally:
    """Accepted clients, their weights, and weighted sums of the reported statistics."""

    def __init__(
        self,
        positive: Sequence[Collection[str]] = (),
        *,
        measures_norms: bool = False,
        unsent: Collection[str] = (),
    ) -> None:
        self.positive, self.measures_norms, self.unsent = positive, measures_norms, unsent
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
                    if name.rpartition(".")[2] not in self.unsent:
                        self.norms.setdefault(name, []).extend(norms)
            yield answer.upload

    def combined(self, answers: Iterator[Answer], combiner: Combiner) -> Upload | None:
        """The combined upload, or None without any; a mean holds one upload at a time."""
        uploads = self.accepted(answers)
        if not combiner.declares("streams"):
            every = [map_tensors(torch.clone, upload) for upload in uploads]
            return combiner.combine(every, list(self.weights)) if every else None
        first = next(uploads, None)
        if first is None:
            return None

        def everything() -> Iterator[Upload]:
            yield first
            yield from uploads

        return combiner.combine(everything(), self.weights)  # grow just ahead of the sum that reads them

    def result(
        self, mean: Upload | None, ledger: Ledger, received: Broadcast, trained: Tensor | None = None
    ) -> CohortResult:
        """The result of the cohort."""
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
    """The name of a vector that its transform declares positive and that is not; empty if there is none."""
    for extra, names in zip(upload.extra, positive, strict=False):
        for name in names:
            if name in extra and not bool((extra[name] > 0).all()):
                return name
    return ""
