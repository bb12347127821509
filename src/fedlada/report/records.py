"""Runs as a page shows them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from fedlada.history import Row


@dataclass(frozen=True)
class RunRecord:
    """One run as the page shows it."""

    label: str
    """As in "fedlada, seed 0"."""
    group: str
    """Runs of one group are averaged, with a band: "fedlada"."""
    config: Mapping[str, Any]
    rows: Sequence[Row]
    command: str
    """The exact command that makes it."""
    labels_per_client: Sequence[Sequence[int]] | None = None
    """counts[client][class], where known."""
