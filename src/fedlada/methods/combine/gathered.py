"""All uploads of a cohort at once, for combiners that compare them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

import torch
from torch import Tensor

from fedlada.methods.state import Upload, map_tensors, named_tensors

NUMBERS = 2**25
"""Compared at a time, of all uploads together: a comparison needs several copies of them."""


def gathered(uploads: Iterable[Upload], weights: Sequence[float] | None, who: str) -> list[Upload]:
    """All uploads; refuses unequal weights, which the combiner `who` does not support."""
    found = list(uploads)
    if not found:
        raise ValueError(f"{who} needs at least one upload")
    if weights is not None and len(set(weights)) > 1:
        raise ValueError(f"{who} weights every client equally: use weights='uniform'")
    return found


def by_column(uploads: Sequence[Upload], function: Callable[[Tensor], Tensor]) -> Upload:
    """Apply `function`, from `[C, N]` to `[N]`, to each vector of the uploads, one block of parameters at a time."""
    places = [dict(named_tensors(upload)) for upload in uploads]

    def combined(name: str) -> Tensor:
        vectors = [place[name] for place in places]
        columns = max(1, NUMBERS // len(vectors))
        starts = range(0, vectors[0].numel(), columns)
        return torch.cat([function(torch.stack([one[at : at + columns] for one in vectors])) for at in starts])

    results = {name: combined(name) for name in places[0]}
    order = iter(results.values())
    return map_tensors(lambda _: next(order), uploads[0])
