"""The runs that most tables and figures share: each method on each data set as the paper's experiments have it."""

from __future__ import annotations

from collections.abc import Sequence

from fedlada.paper.published import TITLES
from fedlada.paper.setting import Setting, name_of
from fedlada.workbench.campaign.goal import Goal
from fedlada.workbench.campaign.request import Request


def main_lines(setting: Setting, paper: str, methods: Sequence[str], goal: Goal) -> dict[str, list[Request]]:
    """Each method's run for each seed, by the method's name."""
    return {
        name_of(method): setting.requests(main_group(setting, paper, method), paper, method, goal)
        for method in setting.methods(*methods)
    }


def main_group(setting: Setting, paper: str, method: str) -> str:
    """The name of such runs in results."""
    return f"{name_of(method)} on {setting.title(paper)}"


def stands_for(setting: Setting, paper: str) -> str:
    """Which data were used, in a few words for a title."""
    own = setting.title(paper)
    return own if own == TITLES[paper] else f"{own} in the place of {TITLES[paper]}"
