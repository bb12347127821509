"""The interface of an engine: run the local work of a cohort and aggregate it."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, contextmanager
from typing import TypeVar

import torch
from torch import Tensor, nn

from fedlada.data.samples import Samples
from fedlada.engines.cpu_kernels import fast_cpu_kernels
from fedlada.engines.evaluation import AS_USUAL, EvaluationOptions, Loss, Metric
from fedlada.engines.post import Post
from fedlada.engines.quiet import quiet_recurrent
from fedlada.engines.tally import Answers, CohortResult
from fedlada.federation.plan import RoundPlan
from fedlada.methods.method import FederatedMethod
from fedlada.methods.state import Broadcast, Kept, Upload
from fedlada.models.flat import FlatModel

T = TypeVar("T")
RAN_BY = "ran_by"
"""Keys in a run's configuration for the engine and the reason for it. They do not distinguish runs."""


class Engine(ABC):
    """Owns the model, the data and the device; does not depend on the method it runs."""

    method: FederatedMethod
    loss: Loss
    device: torch.device
    flat: FlatModel
    template: nn.Module
    """The model as it was given."""
    kind: str
    """The engine's name: "sequential" or "stacked"."""
    why: str
    """The engine in words, with the reason for the choice."""

    @property
    def loss_name(self) -> str:
        """The loss by its name; empty where none is known, as on a server that evaluates nothing."""
        loss = getattr(self, "loss", None)
        return "" if loss is None else str(getattr(loss, "__qualname__", type(loss).__qualname__))

    while_waiting: Callable[[], None] | None = None
    """Work that an engine may do on the host while its device works."""

    def prepare(self, plan: RoundPlan) -> None:  # noqa: B027
        """Prepare a coming round in advance."""

    def agreed(self, decide: Callable[[], T]) -> T:
        """One decision for all processes of the run."""
        return decide()

    @abstractmethod
    def initial_params(self) -> Tensor:
        """x^0 `[P]`, from the model as it was given."""

    @abstractmethod
    def answers(self, broadcast: Broadcast, plan: RoundPlan, kept: Mapping[int, Kept]) -> Answers:
        """The local work of the plan's clients, in order; `kept` holds the client states so far.

        Close what is not read to its end: generators and settings of torch are put back only then.
        """

    def outward(self, upload: Upload) -> Upload:
        """An upload, or a mean of uploads, in the model's order of the parameters."""
        return upload

    def run_cohort(self, broadcast: Broadcast, kept: Mapping[int, Kept], post: Post) -> CohortResult:
        """The local work of all clients of a round, aggregated; all messages go through `post`."""
        received, tally = post.down(broadcast), post.tally()
        with closing(self.answers(received, post.plan, post.memories(kept))) as answers:
            mean = tally.combined(post.up(answers, self.outward, kept), post.combiner)
        if mean is not None:
            mean = post.completed(self.outward(mean) if post.is_exact else mean, broadcast)
        post.check()
        return tally.result(mean, post.ledger, received, post.trained)

    @abstractmethod
    def data_digest(self) -> str:
        """A cheap fingerprint of the training data."""

    @abstractmethod
    def check_test(self, samples: Samples, what: str = "test") -> None:
        """Refuse test samples that do not fit the model."""

    @abstractmethod
    def evaluate(
        self,
        params: Tensor,
        samples: Samples,
        metrics: Mapping[str, Metric],
        options: EvaluationOptions = AS_USUAL,
    ) -> dict[str, float]:
        """Loss, accuracy and the given metrics of the model with these parameters."""

    @contextmanager
    def loaded(self, params: Tensor) -> Iterator[nn.Module]:
        """The engine's own model with these parameters, in evaluation mode."""
        self.flat.load(params)
        module = self.flat.module
        with fast_cpu_kernels(self.device, self.flat.vector.numel()), quiet_recurrent(module):
            module.eval()
            try:
                yield module
            finally:
                self.flat.train()

    @abstractmethod
    def model(self, params: Tensor) -> nn.Module:
        """A copy of the model that was given, with these parameters."""
