"""`fedlada.engines.evaluation.evaluate` on a GPU as a CUDA graph, which does not wait for the host."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from fedlada.data.samples import ArraySamples
from fedlada.engines.attention import masks_as_given
from fedlada.engines.evaluation import Loss, Totals
from fedlada.engines.stacked.capture import captured
from fedlada.models.call import call


class GraphedEvaluation:
    """Loss and accuracy of a module, whose parameters may change in place, on samples that lie on its device."""

    def __init__(self, module: nn.Module, samples: ArraySamples, loss: Loss, batch_size: int) -> None:
        self.module, self.samples = module, samples
        device = samples.y.device
        self.rows = torch.zeros(min(batch_size, len(samples)), device=device, dtype=torch.int64)
        self.totals = Totals(loss, device)
        self.graph: torch.cuda.CUDAGraph | None = None

    def __call__(self) -> dict[str, float]:
        """Measure the module as it is now."""
        was_training = self.module.training
        self.module.eval()
        with torch.no_grad(), masks_as_given():
            self._run()
        self.module.train(was_training)
        return self.totals.means()

    def _run(self) -> None:
        if self.graph is None:
            self.graph = captured(lambda: self._add(self.rows), lambda: self._add(self.rows))
        self.totals.clear()
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
        self.totals.add(call(self.module, x), y, len(rows))
