"""The theorem's claims by experiment: speed-up in clients and steps, the best alpha, consistency."""

from __future__ import annotations

from fedlada.campaign.request import Request
from fedlada.paper.setting import Setting
from fedlada.paper.target import Results, Shown, Target
from fedlada.paper.theory import study


def requests(setting: Setting) -> list[Request]:
    """None: its small problems are no runs of a data set."""
    return []


def show(setting: Setting, results: Results) -> Shown:
    """The study's tables and charts."""
    tables, charts = study(setting.scale.name, setting.seeds, setting.tell)
    return Shown(tuple(tables), tuple(charts))


TARGET = Target(
    name="theory",
    title="Theory in practice",
    requests=requests,
    show=show,
    smoke_seeds=2,
    quick_seeds=8,
    full_seeds=8,
)
