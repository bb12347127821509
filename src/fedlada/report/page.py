"""One self-contained HTML page for one run, a comparison or a reproduction."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from fedlada.report.chart import Chart
from fedlada.report.records import RunRecord
from fedlada.report.table import Table

__all__ = ["RunRecord", "write_page"]


def write_page(
    path: Path,
    *,
    title: str,
    runs: Sequence[RunRecord],
    tables: Sequence[Table] = (),
    charts: Sequence[Chart] = (),
    notes: Sequence[str] = (),
    command: str = "",
) -> None:
    """Write the page; nothing on it is fetched from anywhere."""
    raise NotImplementedError
