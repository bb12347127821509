"""Combiners by the names that the command line knows."""

from __future__ import annotations

from collections.abc import Callable

from fedlada.methods.combine.combiner import Combiner
from fedlada.methods.combine.geometric_median import GeometricMedian
from fedlada.methods.combine.krum import Krum
from fedlada.methods.combine.mean import Mean
from fedlada.methods.combine.norm_bound import NormBound
from fedlada.methods.combine.order_statistics import Median, TrimmedMean
from fedlada.methods.validation import one_of

COMBINERS: dict[str, Callable[[float | None], Combiner]] = {
    "mean": lambda _: Mean(),
    "norm-bound": lambda value: NormBound(max_norm=value),
    "trimmed-mean": lambda value: TrimmedMean() if value is None else TrimmedMean(share=value),
    "median": lambda _: Median(),
    "krum": lambda value: Krum() if value is None else Krum(num_bad=int(value)),
    "geometric-median": lambda _: GeometricMedian(),
}
"""Each from its one number, or None."""
WITHOUT_NUMBER = ("mean", "median", "geometric-median")


def as_combiner(given: Combiner | str) -> Combiner:
    """A combiner, or one by its name: "median", "norm-bound", "norm-bound:10", "trimmed-mean:0.2", "krum:2".

    >>> as_combiner("trimmed-mean:0.2")
    TrimmedMean(share=0.2)
    """
    if isinstance(given, Combiner):
        return given
    name, _, number = str(given).partition(":")
    one_of("combiner", name, tuple(COMBINERS))
    if number and name in WITHOUT_NUMBER:
        raise ValueError(f"combiner {name} takes no number, got {given!r}")
    try:
        value = float(number) if number else None
    except ValueError:
        raise ValueError(f"combiner must be a name or name:number, as norm-bound:10, got {given!r}") from None
    return COMBINERS[name](value)
