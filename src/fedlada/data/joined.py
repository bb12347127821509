"""The samples of several collections as one."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils._pytree import tree_map

from fedlada.data.samples import Samples
from fedlada.federation.randomness import Ints, Words


class JoinedSamples(Samples):
    """Concatenated collections: the indices of the second continue those of the first."""

    def __init__(self, parts: Sequence[Samples]) -> None:
        self.parts = list(parts)
        self.starts = np.cumsum([0, *(len(part) for part in parts)])

    def __len__(self) -> int:
        return int(self.starts[-1])

    def batch(self, indices: Ints, words: Words | None = None) -> tuple[Any, Any]:
        owners = np.searchsorted(self.starts, indices, side="right") - 1
        # Runs of neighbours from one part, in the order that was asked for.
        cuts = [0, *(np.flatnonzero(np.diff(owners)) + 1).tolist(), len(indices)]
        read = [
            self.parts[owners[start]].batch(
                indices[start:end] - self.starts[owners[start]], None if words is None else words[start:end]
            )
            for start, end in pairwise(cuts)
        ]
        x, y = tree_map(_together, *read) if len(read) > 1 else read[0]
        return x, y

    def labels(self) -> np.ndarray[Any, Any]:
        return np.concatenate([part.labels() for part in self.parts])


def _together(*same: Any) -> Any:
    if not all(isinstance(one, Tensor) for one in same):
        raise ValueError(f"samples of type {type(same[0]).__name__} cannot be put into one batch: give arrays")
    return torch.cat(same)
