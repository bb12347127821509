"""What every engine does: run the local work of a cohort and average it."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from fedlada.data.samples import Samples
from fedlada.evaluation import Loss, Metric
from fedlada.method import FederatedMethod
from fedlada.plan import RoundPlan
from fedlada.state import Broadcast, Kept, Upload


@dataclass(frozen=True)
class CohortResult:
    """What a cohort gave back in a round. The simulation commits `kept` together with the aggregate, never before."""

    mean: Upload | None
    """The mean of the accepted uploads; None when there was none."""
    kept: Mapping[int, Kept]
    """The new private memories of the accepted clients."""
    accepted: tuple[int, ...]
    refused: tuple[int, ...]
    """Clients whose upload held a NaN or an infinity."""
    weight: float
    """The accepted clients' weight."""
    num_steps: float
    """Their weighted mean of K_i."""
    train_loss: float
    """Their weighted mean of the loss over all local steps."""
    mean_square_delta: float
    """Their weighted mean of ||delta_i||^2, from which drift follows without keeping the deltas."""
    bytes_down: int
    """The size of the broadcast, for each client that was asked."""
    bytes_up: int
    """The size of all uploads that arrived, refused ones too."""


class Engine(ABC):
    """Owns the model, the data and the device; never knows which method it runs."""

    method: FederatedMethod
    loss: Loss
    device: torch.device
    why: str
    """What runs the clients and why, in a few words, for the log."""

    while_waiting: Callable[[], None] | None = None
    """What an engine may do on the host while its device works."""

    def prepare(self, plan: RoundPlan) -> None:  # noqa: B027
        """Hear of a coming round: what can be laid out for it now is not waited for then."""

    @abstractmethod
    def initial_params(self) -> Tensor:
        """x^0 `[P]`, from the model as it was given."""

    @abstractmethod
    def run_cohort(self, broadcast: Broadcast, plan: RoundPlan, kept: Mapping[int, Kept]) -> CohortResult:
        """The local work of all of the plan's clients, averaged; `kept` holds the memories made so far."""

    @abstractmethod
    def data_digest(self) -> str:
        """What tells this training data from another, cheap to compute."""

    @abstractmethod
    def check_test(self, samples: Samples) -> None:
        """Refuse test samples that do not fit the model."""

    @abstractmethod
    def evaluate(self, params: Tensor, samples: Samples, metrics: Mapping[str, Metric]) -> dict[str, float]:
        """Loss, accuracy and the given metrics of the model with these parameters."""

    @abstractmethod
    def model(self, params: Tensor) -> nn.Module:
        """A copy of the model that was given, with these parameters."""
