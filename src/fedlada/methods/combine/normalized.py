"""FedNova's normalised mean: a client counts by its weight, however many steps it took."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

from torch import Tensor

from fedlada.methods.combine.combiner import Combiner
from fedlada.methods.combine.mean import average
from fedlada.methods.state import Upload


@dataclass(frozen=True, kw_only=True)
class Normalized(Combiner):
    """The mean K_i times the mean of delta_i / K_i; the other vectors are means. `StepCount` sends K_i."""

    streams: ClassVar[bool] = True

    def combine(self, uploads: Iterable[Upload], weights: Sequence[float] | None = None) -> Upload:
        mean = average((replace(one, delta=one.delta / _steps(one)) for one in uploads), weights)
        return replace(mean, delta=_steps(mean) * mean.delta)


def _steps(upload: Upload) -> Tensor:
    for extra in upload.extra:
        if "steps" in extra:
            return extra["steps"]
    raise ValueError("Normalized needs each client's number of steps: put StepCount() into the method's chain")
