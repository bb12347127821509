"""Evaluation on a GPU as a CUDA graph: what `fedlada.engines.evaluation.evaluate` does, without the host in between."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from fedlada.data.samples import ArraySamples
from fedlada.engines.evaluation import Loss, are_classes
from fedlada.engines.stacked.capture import captured


class GraphedEvaluation:
    """Loss and accuracy of a module, whose parameters may change in place, on samples that lie on its device."""

    def __init__(self, module: nn.Module, samples: ArraySamples, loss: Loss, batch_size: int) -> None:
        self.module, self.samples, self.loss = module, samples, loss
        device = samples.x.device
        self.rows = torch.zeros(min(batch_size, len(samples)), device=device, dtype=torch.int64)
        self.total = torch.zeros((), device=device, dtype=torch.float64)
        self.correct = torch.zeros((), device=device, dtype=torch.int64)
        self.is_classification = False
        self.graph: torch.cuda.CUDAGraph | None = None

    def __call__(self) -> dict[str, float]:
        """Measure the module as it is now."""
        was_training = self.module.training
        self.module.eval()
        with torch.no_grad():
            self._run()
        self.module.train(was_training)
        result = {"loss": float(self.total) / len(self.samples)}
        if self.is_classification:
            result["accuracy"] = int(self.correct) / len(self.samples)
        return result

    def _run(self) -> None:
        if self.graph is None:
            self.graph = captured(lambda: self._add(self.rows), lambda: self._add(self.rows))
        self.total.zero_()
        self.correct.zero_()
        size = len(self.rows)
        for start in range(0, len(self.samples) - size + 1, size):
            torch.arange(start, start + size, out=self.rows)
            self.graph.replay()
        rest = len(self.samples) % size
        if rest:
            end = len(self.samples)
            self._add(torch.arange(end - rest, end, device=self.rows.device))

    def _add(self, rows: Tensor) -> None:
        x, y = self.samples.take(rows)
        output = self.module(x)
        self.total += self.loss(output, y).double() * len(rows)
        self.is_classification = are_classes(output, y)
        if self.is_classification:
            self.correct += (output.argmax(dim=1) == y).sum()
