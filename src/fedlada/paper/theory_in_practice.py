"""The theorem's claims by experiment: speed-up in clients and steps, the best alpha, consistency."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

from fedlada import __version__
from fedlada.paper.setting import Setting
from fedlada.paper.target import Results, Shown, Target
from fedlada.paper.theory import study
from fedlada.plots.chart import Chart
from fedlada.runs.files import write_json
from fedlada.workbench.report.table import Table


def _show(setting: Setting, results: Results) -> Shown:
    """The study's tables and charts; computed once for a scale, its seeds and a version of the library."""
    key = json.dumps([setting.scale.name, setting.seeds, __version__])
    name = f"study-{hashlib.sha256(key.encode()).hexdigest()[:20]}.json"
    path = None if setting.folder is None else setting.folder / name
    known = None if path is None else _read(path)
    if known is not None:
        return known
    tables, charts = study(setting.scale.name, setting.seeds, setting.tell)
    shown = Shown(tuple(tables), tuple(charts))
    if path is not None:
        path.parent.mkdir(parents=True, exist_ok=True)
        plain = {"tables": [one.to_json() for one in shown.tables], "charts": [one.to_json() for one in shown.charts]}
        write_json(path, plain)
    return shown


def _read(path: Path) -> Shown | None:
    """The kept study; nothing where it cannot be read, for it can be computed again."""
    try:
        kept = json.loads(path.read_bytes())
        tables, charts = map(Table.from_json, kept["tables"]), map(Chart.from_json, kept["charts"])
        return Shown(tuple(tables), tuple(charts))
    except (OSError, ValueError, KeyError, TypeError):
        return None


THEORY = Target(
    name="theory",
    title="Theory in practice",
    show=_show,
    smoke_seeds=2,
    quick_seeds=8,
    full_seeds=8,
    is_of_the_paper=False,
)
