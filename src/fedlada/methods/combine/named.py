"""Combiners by the names that the command line takes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from fedlada.methods.combine.combiner import Combiner
from fedlada.methods.combine.geometric_median import GeometricMedian
from fedlada.methods.combine.krum import Krum
from fedlada.methods.combine.mean import Mean
from fedlada.methods.combine.norm_bound import NormBound
from fedlada.methods.combine.order_statistics import Median, TrimmedMean
from fedlada.methods.combine.private import Private
from fedlada.methods.validation import one_of

COMBINERS: dict[str, Callable[[float | None], Combiner]] = {
    "mean": lambda _: Mean(),
    "norm-bound": lambda value: NormBound(max_norm=value),
    "trimmed-mean": lambda value: TrimmedMean() if value is None else TrimmedMean(share=value),
    "median": lambda _: Median(),
    "krum": lambda value: Krum() if value is None else _krum(value),
    "geometric-median": lambda _: GeometricMedian(),
}
"""Factories by name; each takes one number or None."""
PRIVATE = "private"
WITHOUT_NUMBER = ("mean", "median", "geometric-median")


def as_combiner(given: Combiner | str) -> Combiner:
    """A combiner, or one by its name: "median", "norm-bound", "norm-bound:10", "trimmed-mean:0.2", "krum:2".

    >>> as_combiner("trimmed-mean:0.2")
    TrimmedMean(share=0.2)
    """
    if isinstance(given, Combiner):
        return given
    name, _, number = str(given).partition(":")
    if is_private(name):
        raise ValueError(
            "combiner private needs its noise: Private(clip, noise_multiplier=...) or Private(clip, epsilon=..., "
            "delta=...) in Python, --noise-multiplier or --target-epsilon on the command line"
        )
    if name not in COMBINERS and number and number[0].isalpha():
        raise ValueError(
            f"combiner {given!r} is none of {', '.join((*COMBINERS, PRIVATE))}: one of your own belongs to the method, "
            "FederatedMethod(..., combiner=...)"
        )
    one_of("combiner", name, (*COMBINERS, PRIVATE))
    if number and name in WITHOUT_NUMBER:
        raise ValueError(f"combiner {name} takes no number, got {given!r}")
    try:
        value = float(number) if number else None
    except ValueError:
        raise ValueError(f"combiner must be a name or name:number, such as norm-bound:10, got {given!r}") from None
    return COMBINERS[name](value)


def _krum(num_bad: float) -> Krum:
    if not num_bad.is_integer():
        raise ValueError(f"combiner krum takes a whole number of malicious clients, got {num_bad:g}")
    return Krum(num_bad=int(num_bad))


def is_private(given: str) -> bool:
    """Whether a combiner's name asks for privacy."""
    return given.partition(":")[0] == PRIVATE


def as_private(given: str, **noise: Any) -> Private:
    """`Private` from its name, its clip and the scales of vectors: "private:0.4", "private:0.4:v=100".

    >>> as_private("private:0.4:v=100", noise_multiplier=1.0).scales
    {'v': 100.0}
    """
    _, _, values = given.partition(":")
    clip, _, scaled = values.partition(":")
    try:
        pairs = [one.split("=") for one in scaled.split(",")] if scaled else []
        number, scales = float(clip), {name: float(scale) for name, scale in pairs}
    except ValueError:
        raise ValueError(f"combiner must be private:CLIP or private:CLIP:VECTOR=SCALE, got {given!r}") from None
    return Private(number, scales=scales, **noise)
