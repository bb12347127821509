"""One client after another: the readable engine, against which all others are held."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from fedlada.data.samples import Samples
from fedlada.engines.cpu_kernels import fast_cpu_kernels
from fedlada.engines.engine import CohortResult, Engine
from fedlada.evaluation import Loss, Metric, evaluate
from fedlada.flat import FlatModel, model_with
from fedlada.method import FederatedMethod, average
from fedlada.plan import Assignment, RoundPlan
from fedlada.probe import check_fit
from fedlada.state import Broadcast, Kept, Upload, all_finite, num_bytes


@dataclass(frozen=True)
class ClientResult:
    """What one client gave back."""

    upload: Upload
    kept: Kept
    train_loss: float
    square_delta: float

    @property
    def is_finite(self) -> bool:
        """Whether nothing that would reach the server or the client's memory is NaN or infinite."""
        return math.isfinite(self.square_delta) and all_finite(self.upload) and all_finite(self.kept)


class SequentialEngine(Engine):
    """Runs on any device, in float32 or float64, and holds one client at a time."""

    def __init__(
        self,
        model: nn.Module,
        method: FederatedMethod,
        samples: Samples,
        loss: Loss | None,
        *,
        device: torch.device,
        dtype: torch.dtype | None = None,
    ) -> None:
        self.method = method
        self.samples = samples
        self.device = device
        self.template = model
        self.flat = FlatModel(model, device, dtype)
        self.loss = check_fit(self.flat, samples, loss, "training")

    def initial_params(self) -> Tensor:
        return self.flat.vector.clone()

    def data_digest(self) -> str:
        return self.samples.digest()

    def check_test(self, samples: Samples) -> None:
        check_fit(self.flat, samples, self.loss, "test")

    def evaluate(self, params: Tensor, samples: Samples, metrics: Mapping[str, Metric]) -> dict[str, float]:
        self.flat.load(params)
        with self._kernels():
            return evaluate(self.flat.module, samples, self.loss, metrics=metrics)

    def model(self, params: Tensor) -> nn.Module:
        return model_with(self.template, params)

    def run_cohort(self, broadcast: Broadcast, plan: RoundPlan, kept: Mapping[int, Kept]) -> CohortResult:
        accepted: dict[int, Kept] = {}
        refused: list[int] = []
        weights: list[float] = []
        sums = {"steps": 0.0, "loss": 0.0, "square": 0.0}
        bytes_up = 0

        def uploads() -> Iterator[Upload]:
            # One client's upload is alive at a time; `weights` grows just ahead of the mean that reads it.
            nonlocal bytes_up
            for work in plan.assignments:
                memory = kept.get(work.client) or self.method.init_kept(broadcast.params)
                result = self.train_client(broadcast, memory, work, lr=plan.lr)
                bytes_up += num_bytes(result.upload)
                if not result.is_finite:
                    refused.append(work.client)
                    continue
                accepted[work.client] = result.kept
                weights.append(work.weight)
                sums["steps"] += work.weight * work.num_steps
                sums["loss"] += work.weight * result.train_loss
                sums["square"] += work.weight * result.square_delta
                yield result.upload

        with torch.random.fork_rng(devices=[self.device] if self.device.type == "cuda" else []), self._kernels():
            mean = _average_or_none(uploads(), weights)
        total = sum(weights)
        return CohortResult(
            mean=mean,
            kept=accepted if self.method.keeps_memory else {},
            accepted=tuple(accepted),
            refused=tuple(refused),
            weight=total,
            num_steps=sums["steps"] / total if total else 0.0,
            train_loss=sums["loss"] / total if total else math.nan,
            mean_square_delta=sums["square"] / total if total else math.nan,
            bytes_down=num_bytes(broadcast) * plan.num_asked,
            bytes_up=bytes_up,
        )

    def _kernels(self) -> AbstractContextManager[None]:
        return fast_cpu_kernels(self.device, self.flat.vector.numel())

    def train_client(self, broadcast: Broadcast, kept: Kept, work: Assignment, *, lr: float) -> ClientResult:
        """One client's round, as the pseudo-code has it."""
        module = self.flat.module
        self.flat.train()
        torch.manual_seed(work.seed)
        losses = torch.zeros((), device=self.device, dtype=torch.float64)
        local = self.method.begin(broadcast, kept, lr=lr)
        for batch, words in zip(work.batches, work.words, strict=True):
            self.flat.load(local.params)
            x, y = self.samples.batch(batch, words)
            loss = self.loss(module(x), y)
            losses += loss.detach()
            local = self.method.step(local, self.flat.gradient_of(loss))
        upload, new_kept = self.method.finish(local, work.num_steps)
        square = torch.linalg.vector_norm(upload.delta, dtype=torch.float64) ** 2
        return ClientResult(upload, new_kept, float(losses) / work.num_steps, float(square))


def _average_or_none(uploads: Iterator[Upload], weights: list[float]) -> Upload | None:
    """The mean, or None of no uploads."""
    first = next(uploads, None)
    if first is None:
        return None

    def all_uploads() -> Iterator[Upload]:
        yield first
        yield from uploads

    return average(all_uploads(), weights)
