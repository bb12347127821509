"""Plausibility bounds on numbers that nodes report."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping

from fedlada.flower import wire
from fedlada.flower.exchange import log
from fedlada.methods.state import Upload
from fedlada.methods.validation import positive

SIZE_BOUND = 10.0
"""Cap on a node's reported samples, and on its loss in an evaluation, as a multiple of the median."""


def check_bound(times: float | None) -> float | None:
    """Refuse an invalid bound."""
    if times is not None:
        positive("size_bound", times)
        if times < 1:
            raise ValueError(f"size_bound must be at least 1, got {times}")
    return times


def check_steps(upload: Upload, num_steps: int) -> None:
    """Refuse another number of steps in the upload (`StepCount`) than the client's samples make.

    A lossy codec may round it by less than a hundredth.
    """
    for extra in upload.extra:
        if "steps" in extra and not math.isclose(float(extra["steps"][0]), num_steps, rel_tol=0.01):
            raise wire.WrongMessage(
                f"its upload says {float(extra['steps'][0]):g} steps, and its samples make {num_steps}"
            )


def bounded(said: Mapping[int, float], times: float | None) -> dict[int, float]:
    """Each client's number, capped in magnitude at a multiple of the median of those that are not zero.

    The median is the lower of two middle values, so that one of two nodes cannot raise it. Losses of zero are possible,
    and if most nodes have one, it must not become the loss of all.
    """
    sizes = [abs(value) for value in said.values() if value]
    if times is None or not sizes:
        return dict(said)
    bound = times * statistics.median_low(sizes)
    return {client: max(-bound, min(bound, value)) for client, value in said.items()}


def name_bounded(what: str, said: Mapping[int, float], counted: Mapping[int, float]) -> list[int]:
    """The clients whose numbers were capped, each with a log line."""
    found = [client for client in said if counted[client] != said[client]]
    for client in found:
        log.warning("client %d says %s %.4g, counted as %.4g", client, what, said[client], counted[client])
    return found
