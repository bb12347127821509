"""The command that makes a run, written from its configuration."""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Mapping
from dataclasses import asdict, fields
from functools import cache
from pathlib import Path
from typing import Any

from fedlada.data.own import is_own_data
from fedlada.data.sources import DATASETS
from fedlada.methods.factory import is_own
from fedlada.methods.recipes import RECIPES
from fedlada.runs.config import is_experiment
from fedlada.workbench.experiment import Experiment

WITHOUT_NO = ("trust", "each_alone")
"""Switches that have no --no-...: they are left out where they are off."""
NAMED_BY_OTHERS = {"format", "fedlada", "hyper", "method", "dataset"}


def run_command(config: Mapping[str, Any], folder: Path) -> str:
    """`fedlada run` with every flag that is not its default; empty for a run that was made from Python.

    The configuration is looked at, never built: one that cannot be built is shown too.
    """
    if not is_experiment(config):
        return ""
    method, dataset, hyper = config.get("method"), config["dataset"], config.get("hyper")
    is_known = isinstance(method, str) and (method in RECIPES or is_own(method))
    if not is_known or not (dataset in DATASETS or is_own_data(dataset)) or not isinstance(hyper, dict):
        return shlex.join(["fedlada", "run", "--config", str(folder / "config.json")])
    usual = _usual(
        "fedavg" if is_own(str(method)) else str(method), "own:data" if is_own_data(dataset) else str(dataset)
    )
    if is_own(str(method)):  # nothing is imported: every value is named
        usual = {**usual, "lr": None, "lr_decay": None, "hyper": {}}
    if dataset == "npz":  # the default depends on the file
        usual = {**usual, "partition": None}
    flags = {"method": method, "data" if is_own_data(dataset) else "dataset": dataset}
    for one in fields(Experiment):
        if one.name in NAMED_BY_OTHERS or one.name not in config:
            continue
        if config[one.name] != usual[one.name] and config[one.name] is not None:
            flags[one.name] = config[one.name]
    if "local_steps" in flags:
        flags.pop("local_epochs", None)
    flags |= {
        name: "none" if value is None else value for name, value in hyper.items() if usual["hyper"].get(name) != value
    }
    return command_line("run", flags.items())


@cache
def _usual(method: str, dataset: str) -> dict[str, Any]:
    """The fields that `fedlada run` uses where none are given."""
    return asdict(Experiment(method=method, dataset=dataset).resolved())


def command_line(command: str, flags: Iterable[tuple[str, Any]]) -> str:
    """A command of ours with its flags, as one would type it; those that are not given are None."""
    words = ["fedlada", command]
    for name, value in flags:
        flag = "--" + name.replace("_", "-")
        if value is None or (value is False and name in WITHOUT_NO):
            continue
        if isinstance(value, bool):
            words.append(flag if value else f"--no-{flag[2:]}")
        else:
            words += [flag, ",".join(map(str, value)) if isinstance(value, (list, tuple)) else str(value)]
    return shlex.join(words)
