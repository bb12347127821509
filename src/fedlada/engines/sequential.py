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
from fedlada.engines.tally import Tally
from fedlada.evaluation import Loss, Metric, evaluate
from fedlada.flat import FlatModel, model_with
from fedlada.method import FederatedMethod
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
        self.why = f"one client after another on {device.type}"

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
        tally = Tally()

        def uploads() -> Iterator[Upload]:
            # One client's upload is alive at a time.
            for work in plan.assignments:
                memory = kept.get(work.client) or self.method.init_kept(broadcast.params)
                result = self.train_client(broadcast, memory, work, lr=plan.lr)
                tally.bytes_up += num_bytes(result.upload)
                if not result.is_finite:
                    tally.refused.append(work.client)
                    continue
                tally.accept(work, result.kept, result.train_loss, result.square_delta)
                yield result.upload

        with torch.random.fork_rng(devices=[self.device] if self.device.type == "cuda" else []), self._kernels():
            mean = tally.mean(uploads())
        return tally.result(
            mean, keeps_memory=self.method.keeps_memory, bytes_down=num_bytes(broadcast) * plan.num_asked
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
