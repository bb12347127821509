"""Uploads of a whole cohort at once, for combiners that compare them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

import torch
from torch import Tensor

from fedlada.methods.state import Upload, map_tensors, named_tensors

COLUMNS = 2**22
"""Parameters that are compared at a time: comparing needs several copies of them."""


def gathered(uploads: Iterable[Upload], weights: Sequence[float] | None, who: str) -> list[Upload]:
    """Copies of all uploads; refused where clients have different weights, which `who` cannot honour."""
    found = [map_tensors(torch.clone, upload) for upload in uploads]
    if not found:
        raise ValueError(f"{who} needs at least one upload")
    if weights is not None and len(set(weights)) > 1:
        raise ValueError(f"{who} counts every client alike: take weights='uniform' with it")
    return found


def by_column(uploads: Sequence[Upload], function: Callable[[Tensor], Tensor]) -> Upload:
    """`function` of `[C, N]` to `[N]` on each vector of the uploads, some parameters at a time."""
    places = [dict(named_tensors(upload)) for upload in uploads]

    def combined(name: str) -> Tensor:
        vectors = [place[name] for place in places]
        starts = range(0, vectors[0].numel(), COLUMNS)
        return torch.cat([function(torch.stack([one[at : at + COLUMNS] for one in vectors])) for at in starts])

    results = {name: combined(name) for name in places[0]}
    order = iter(results.values())
    return map_tensors(lambda _: next(order), uploads[0])
