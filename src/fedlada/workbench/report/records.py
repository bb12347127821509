"""Runs as a page shows them: found in folders, named by the settings that distinguish them."""

from __future__ import annotations

import json
import os
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, TypeVar

from fedlada.data.sources import CONTENT_BY_NAME
from fedlada.messages import PRESETS
from fedlada.methods.recipes import RECIPES
from fedlada.runs.clients import Names, read_clients, read_names
from fedlada.runs.config import FREE_TO_CHANGE, TRAINED_ON, read_config
from fedlada.runs.metrics import read_rows
from fedlada.training.history import Row
from fedlada.training.target import Target, accuracy_of, declared
from fedlada.workbench.report.command import run_command
from fedlada.workbench.report.listing import LISTING, KnownRun, Listing, read_listing

Some = TypeVar("Some")
NO_NAMES = Names()


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
    """`counts[client][class]`, where known."""
    folder: str = ""
    names: Names = NO_NAMES

    def __post_init__(self) -> None:
        if self.labels_per_client and len({len(counts) for counts in self.labels_per_client}) > 1:
            raise ValueError(f"labels_per_client of {self.label!r} must count the same classes for every client")


@dataclass(frozen=True)
class StoredFiles:
    """The contents of a run's folder, before it has a name among others."""

    run: KnownRun
    config: dict[str, Any]
    rows: list[Row]
    labels_per_client: list[list[int]] | None
    names: Names = NO_NAMES


def read_runs(folders: Iterable[Path], left_out: Callable[[str], None] | None = None) -> list[RunRecord]:
    """Every run in these folders, at any depth, or listed in them; a folder without any is an error.

    `left_out` is called for each unreadable run; without it the first one is an error.
    """
    found: list[KnownRun] = []
    for folder in folders:
        if not folder.is_dir():
            raise ValueError(f"there is no folder {folder}")
        inside = find_runs(folder)
        if not inside and not read_listings(folder):
            raise ValueError(f"{folder} holds no run: no folder in it has a config.json")
        found += inside
    whole, damaged = [], []
    for run in _each_once(found):
        try:
            whole.append(read_files(run))
        except ValueError as error:
            damaged.append(error)
    for why in damaged:
        if left_out is None or not whole:
            raise why
        left_out(str(why))
    return named(whole)


def find_runs(folder: Path) -> list[KnownRun]:
    """The runs in a folder, itself included; below a list of runs, those that it lists."""
    found: list[KnownRun] = []
    for place, is_run in walk(folder, stop_at=LISTING):
        if is_run:
            found.append(KnownRun(place))
        elif (listing := read_listing(place)) is not None:
            found += [run for run in listing.runs if (run.folder / "config.json").exists()]
    return _each_once(found)


def read_listings(folder: Path) -> list[Listing]:
    """The lists of runs in a folder, the outermost alone."""
    places = (place for place, is_run in walk(folder, stop_at=LISTING) if not is_run)
    return [listing for place in places if (listing := read_listing(place)) is not None]


def _each_once(runs: Sequence[KnownRun]) -> list[KnownRun]:
    """A run in several lists is as long as in the longest of them."""
    return longest(runs, lambda run: run.folder.resolve(), lambda run: -1 if run.rounds is None else run.rounds)


def longest(runs: Iterable[Some], which: Callable[[Some], Path], length: Callable[[Some], Any]) -> list[Some]:
    """The longest version of each run, or the first of those, in the order found."""
    best: dict[Path, Some] = {}
    for run in runs:
        known = best.setdefault(which(run), run)
        if length(known) < length(run):
            best[which(run)] = run
    return list(best.values())


def walk(folder: Path, *, stop_at: str) -> Iterator[tuple[Path, bool]]:
    """Every folder in a folder, itself first, and whether it is a run's; none below a run's or one with that file."""
    for name, folders, files in os.walk(folder):
        place = Path(name)
        is_run = "config.json" in files and _is_run(place)
        is_last = is_run or stop_at in files
        folders[:] = [] if is_last else sorted(one for one in folders if not one.startswith("."))
        yield place, is_run


def _is_run(folder: Path) -> bool:
    """Other programs have a config.json too: a run's names its method."""
    try:
        return "method" in read_config(folder)
    except ValueError:
        return os.path.exists(folder / "metrics.jsonl")  # a run with a damaged configuration: reading it reports that


def read_files(run: KnownRun) -> StoredFiles:
    """A run's folder as it is now, also while the run goes on; of a listed run the rounds that are asked for."""
    config, rows = read_config(run.folder), read_rows(run.folder / "metrics.jsonl")
    if run.rounds is not None:
        config, rows = {**config, "rounds": run.rounds}, rows[: run.rounds]
    return StoredFiles(run, config, rows, read_clients(run.folder), read_names(run.folder))


def named(runs: Sequence[StoredFiles]) -> list[RunRecord]:
    """Give each run its group and a label of its own."""
    known = [_name(one.config) if one.run.group is None else one.run.group for one in runs]
    groups = told_apart(known, [one.config for one in runs])
    labels = [f"{group}, seed {one.config.get('seed', '?')}" for group, one in zip(groups, runs, strict=True)]
    often = Counter(labels)
    return [
        RunRecord(
            label=label if often[label] == 1 else f"{label}, {one.run.folder}",
            group=group,
            config=one.config,
            rows=one.rows,
            command=run_command(one.config, one.run.folder),
            labels_per_client=one.labels_per_client,
            folder=str(one.run.folder),
            names=one.names,
        )
        for label, group, one in zip(labels, groups, runs, strict=True)
    ]


def _name(config: Mapping[str, Any]) -> str:
    """The name given by its author, or its method with the combiner and attack chosen by the user."""
    # A part that was given in Python is stored with all its values: its name will do.
    combiner, attack = (str(config.get(name) or "").partition("(")[0] for name in ("combiner", "attack"))
    method = str(config.get("method", "run"))
    chosen = [f"combiner {combiner}"] if combiner not in ("", "mean", "Mean", _own_combiner(method)) else []
    chosen += [f"attack {attack}"] if attack else []
    return str(config.get("name") or ", ".join([method, *chosen]))


@cache
def _own_combiner(method: str) -> str:
    """The combiner that a built-in method has by itself."""
    return type(RECIPES[method]().combiner).__name__ if method in RECIPES else ""


FIRST_TO_NAME = (
    "dataset",
    "model",
    "partition",
    "concentration",
    "cohort_size",
    "local_epochs",
    "local_steps",
    "alpha",
)
"""Fields that usually name experiments; others are used only if these do not distinguish two groups."""
SAME_GROUP = {*FREE_TO_CHANGE, "seed", "clients"}
"""Fields that may differ between runs that are averaged."""


def told_apart(names: Sequence[str], configs: Sequence[Mapping[str, Any]]) -> list[str]:
    """These names; if one stands for different configurations, with the fields that distinguish them."""
    names, flat = list(names), [dict(decisive(config)) for config in configs]
    order = {name: number for number, name in enumerate(FIRST_TO_NAME)}
    fields = sorted({name for one in flat for name in one}, key=lambda name: (order.get(name, len(order)), name))
    for field in fields:
        values = defaultdict(set)
        for name, one in zip(names, flat, strict=True):
            values[name].add(one.get(field))
        names = [
            f"{name}, {_short(field, one.get(field))}" if len(values[name]) > 1 else name
            for name, one in zip(names, flat, strict=True)
        ]
    return names


def decisive(config: Mapping[str, Any]) -> tuple[tuple[str, str], ...]:
    """All that must be equal in runs that are averaged."""
    # A named data set is the same in every folder; a user's files may differ from folder to folder.
    apart = () if config.get("dataset") in CONTENT_BY_NAME else ("data_dir",)
    return tuple(sorted((name, text) for name, text in flattened(config) if name not in SAME_GROUP or name in apart))


def flattened(config: Mapping[str, Any]) -> list[tuple[str, str]]:
    """A configuration as names and texts; hyperparameters are fields like the others."""
    plain = {name: value for name, value in config.items() if name != TRAINED_ON}  # differs from seed to seed
    hyper = plain.pop("hyper") if isinstance(plain.get("hyper"), dict) else {}
    return [
        (str(name), value if isinstance(value, str) else json.dumps(value, default=str))
        for name, value in {**plain, **hyper}.items()
    ]


def target_of(config: Mapping[str, Any], rows: Sequence[Row]) -> Target | None:
    """The target of a configuration, which can hold anything; a number is of the accuracy that these rows have."""
    value = config.get("target")
    try:
        target = Target.parse(value) if isinstance(value, (str, int, float)) else None
    except ValueError:
        return None
    if target is not None and not isinstance(value, str):
        measured = {name for row in rows for name in row if row[name] is not None}
        return Target(accuracy_of(measured), target.value)
    return None if target is None or declared(target.metric)[0] is None else target


OWN_DATA = "own data"
"""In the place of a data set's name, for runs from Python."""


def _short(field: str, value: str | None) -> str:
    if value is None:
        return OWN_DATA if field == "dataset" else f"{field.replace('_', ' ')} not set"
    if len(value) == 64 and set(value) <= set("0123456789abcdef"):
        value = value[:8]  # a digest: a few digits distinguish it from others
    value = next((name for name, rules in PRESETS.items() if field == "messages" and rules == value), value)
    return value if field in ("dataset", "model") else f"{field.replace('_', ' ')} {value}"
