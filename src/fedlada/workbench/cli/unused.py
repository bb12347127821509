"""Refuses flags that would change nothing."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from fedlada.methods.combine import is_private
from fedlada.training.resolve import resolve_device
from fedlada.workbench.experiment import Experiment
from fedlada.workbench.load import IN_PYTHON

PARTITIONS = {
    "concentration": ("dirichlet", "pachinko"),
    "fine_concentration": ("pachinko",),
    "refill": ("dirichlet",),
    "classes_per_client": ("pathological",),
}
"""The partitions that read a flag."""


def refuse_unused(flags: Mapping[str, Any], experiments: Iterable[Experiment]) -> None:
    """Refuse a flag that was given, so is neither None nor off, and that none of the experiments reads."""
    every = [one.resolved() for one in experiments]
    for name, readers in PARTITIONS.items():
        if flags.get(name) not in (None, False) and not any(one.partition in readers for one in every):
            raise ValueError(f"{name} has no effect on partition {every[0].partition}: leave it out")
    if flags.get("data_dir") is not None and all(one.dataset in IN_PYTHON for one in every):
        raise ValueError(f"data_dir has no effect on {every[0].dataset}, which need no files: leave it out")
    if flags.get("target_delta") is not None and not any(is_private(one.combiner) for one in every):
        raise ValueError("target_delta belongs to combiner private:CLIP: leave it out")
    for one in every if flags.get("precision") is not None else []:
        if one.precision in ("bf16", "tf32") and resolve_device(one.device).type == "cpu":
            raise ValueError(f"precision {one.precision} has no effect on a CPU: leave it out")
