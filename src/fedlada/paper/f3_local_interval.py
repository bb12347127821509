"""F3: the curves of T3."""

from __future__ import annotations

from fedlada.paper.published import LOCAL_INTERVAL
from fedlada.paper.setting import Setting
from fedlada.paper.t3_local_interval import PAPER, figure, group_of, requests
from fedlada.paper.target import Results, Shown, Target, final_table


def show(setting: Setting, results: Results) -> Shown:
    """FedLADA for each number of local epochs."""
    lines = {group_of(epochs): results[group_of(epochs)] for epochs in LOCAL_INTERVAL}
    return Shown((final_table("F3: FedLADA by local epochs", setting, lines),), figure(setting, results).charts)


TARGET = Target(
    name="F3", title="FedLADA by local epochs", papers=(PAPER,), requests=requests, show=show, quick_seeds=1
)
