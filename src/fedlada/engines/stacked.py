"""All clients of a cohort at once: one pass for all gradients, one for all updates."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import torch
from torch import Tensor, nn

from fedlada.data.samples import Samples
from fedlada.engines.engine import CohortResult, Engine
from fedlada.engines.stacking.choice import choose_network
from fedlada.engines.stacking.networks import NotStackable
from fedlada.engines.stacking.precision import resolve_precision
from fedlada.engines.stacking.stack import Stack
from fedlada.engines.tally import Tally
from fedlada.evaluation import Loss, Metric, evaluate
from fedlada.flat import FlatModel, model_with
from fedlada.method import FederatedMethod
from fedlada.plan import Assignment, RoundPlan
from fedlada.probe import check_fit
from fedlada.state import Broadcast, Kept, Upload, map_tensors, named_tensors, num_bytes


class StackedEngine(Engine):
    """Holds the state of many clients as `[C, P]` and takes every local step for all of them together.

    Raises `NotStackable` where model, loss or data cannot be stacked.
    """

    def __init__(
        self,
        model: nn.Module,
        method: FederatedMethod,
        samples: Samples,
        loss: Loss | None,
        *,
        device: torch.device,
        dtype: torch.dtype | None = None,
        precision: str = "auto",
        compiles: bool = False,
        max_places: int | None = None,
    ) -> None:
        self.method = method
        self.samples = samples
        self.device = device
        self.template = model
        self.flat = FlatModel(model, device, dtype)
        self.loss = check_fit(self.flat, samples, loss, "training")
        self.compute, kernels = resolve_precision(precision, self.flat.vector)
        self.network, self.takes_short_batches = choose_network(
            self.flat, self.samples, self.loss, self.compute, kernels
        )
        self.compiles = compiles
        self.max_places = max_places
        self.batch_size = 0
        self.stacks: dict[tuple[int, int], Stack] = {}

    def initial_params(self) -> Tensor:
        return self.flat.vector.clone()

    def data_digest(self) -> str:
        return self.samples.digest()

    def check_test(self, samples: Samples) -> None:
        check_fit(self.flat, samples, self.loss, "test")

    def evaluate(self, params: Tensor, samples: Samples, metrics: Mapping[str, Metric]) -> dict[str, float]:
        self.flat.load(params)
        return evaluate(self.flat.module, samples, self.loss, metrics=metrics)

    def model(self, params: Tensor) -> nn.Module:
        return model_with(self.template, params)

    def run_cohort(self, broadcast: Broadcast, plan: RoundPlan, kept: Mapping[int, Kept]) -> CohortResult:
        tally = Tally()

        def uploads() -> Iterator[Upload]:
            places = min(self.max_places or len(plan.assignments), len(plan.assignments))
            for start in range(0, len(plan.assignments), places or 1):
                work = plan.assignments[start : start + places]
                memories = [kept.get(one.client) or self.method.init_kept(broadcast.params) for one in work]
                yield from self._run_stack(places, broadcast, work, memories, plan.lr, tally)

        mean = tally.mean(uploads())
        if mean is not None:
            mean = map_tensors(self.network.layout.outward, mean)
        return tally.result(
            mean, keeps_memory=self.method.keeps_memory, bytes_down=num_bytes(broadcast) * plan.num_asked
        )

    def _run_stack(
        self,
        places: int,
        broadcast: Broadcast,
        work: Sequence[Assignment],
        kept: Sequence[Kept],
        lr: float,
        tally: Tally,
    ) -> Iterator[Upload]:
        """The local work of some clients; yields the uploads of those whose answers are finite, in their order."""
        if not self.takes_short_batches and len({len(batch) for one in work for batch in one.batches}) > 1:
            raise NotStackable(
                "the loss is not a mean over samples, so clients with batches of different sizes cannot be stacked: "
                "take engine='sequential'"
            )
        stack = self._stack(places, work)
        stack.run(broadcast, kept, work, lr)
        upload, new_kept = stack.finish()
        tally.bytes_up += num_bytes(upload) // places * len(work)
        finite = _finite(upload, new_kept, places).tolist()
        squares = (torch.linalg.vector_norm(upload.delta, dim=1, dtype=torch.float64) ** 2).tolist()
        losses = stack.losses.tolist()
        for place, one in enumerate(work):
            if not finite[place]:
                tally.refused.append(one.client)
                continue
            own = Kept(())
            if self.method.keeps_memory:
                own = map_tensors(lambda rows: self.network.layout.outward(rows[place]).clone(), new_kept)  # noqa: B023
            tally.accept(one, own, losses[place] / one.num_steps, squares[place])
            yield map_tensors(lambda rows: rows[place], upload)  # noqa: B023

    def _stack(self, places: int, work: Sequence[Assignment]) -> Stack:
        """A stack of that many places with room for these batches; buffers are made once and kept."""
        self.batch_size = max(self.batch_size, *(len(batch) for one in work for batch in one.batches))
        key = (places, self.batch_size)
        if key not in self.stacks:
            self.stacks = {}  # another size: what the old one held is free first
            self.stacks[key] = Stack(
                self.network,
                self.method,
                self.samples,
                places=places,
                batch_size=self.batch_size,
                like=self.flat.vector,
                compute=self.compute,
                compiles=self.compiles,
            )
        return self.stacks[key]


def _finite(upload: Upload, kept: Kept, places: int) -> Tensor:
    """For each place, whether nothing that it gives back is NaN or infinite."""
    checks = [vector.isfinite().all(dim=-1) for state in (upload, kept) for _, vector in named_tensors(state)]
    return torch.stack([check.expand(places) for check in checks]).all(dim=0)
