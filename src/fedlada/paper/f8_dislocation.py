"""F8: the "matching dislocation" of an adaptive server with amended clients, computed on two clients."""

from __future__ import annotations

from fedlada.paper.dislocation import matching_dislocation
from fedlada.paper.setting import Setting
from fedlada.paper.target import Results, Shown, Target
from fedlada.workbench.campaign.request import Request


def requests(setting: Setting) -> list[Request]:
    """None: the problem is solved on the spot."""
    return []


def show(setting: Setting, results: Results) -> Shown:
    """The computed picture and its numbers."""
    table, chart = matching_dislocation()
    return Shown((table,), (chart,))


TARGET = Target(name="F8", title="Matching dislocation", requests=requests, show=show)
