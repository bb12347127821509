"""The runs that most tables and figures share: each method on each data set as the paper's experiments have it."""

from __future__ import annotations

from collections.abc import Sequence

from fedlada.paper.setting import Setting, name_of
from fedlada.paper.target import Results
from fedlada.workbench.campaign.goal import Goal
from fedlada.workbench.campaign.request import Request


def main_runs(setting: Setting, paper: str, methods: Sequence[str], goal: Goal) -> list[Request]:
    """A method's run for each seed."""
    return [
        request
        for method in setting.methods(*methods)
        for request in setting.requests(main_group(setting, paper, method), paper, method, goal)
    ]


def main_group(setting: Setting, paper: str, method: str) -> str:
    """The name of such runs in results."""
    return f"{name_of(method)} on {setting.title(paper)}"


def by_method(setting: Setting, results: Results, paper: str, methods: Sequence[str]) -> Results:
    """The results on one data set by the methods' names."""
    return {name_of(method): results[main_group(setting, paper, method)] for method in setting.methods(*methods)}


def stands_for(setting: Setting, paper: str) -> str:
    """Which data were used, in a few words for a title."""
    from fedlada.paper.published import TITLES

    own = setting.title(paper)
    return own if own == TITLES[paper] else f"{own} in the place of {TITLES[paper]}"
