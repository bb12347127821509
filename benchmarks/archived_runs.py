"""The committed runs, found by their settings, and the cells that tables make of them."""

from __future__ import annotations

import json
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from fedlada.methods.recipes import hyper_parameters
from fedlada.paper.choices import values_of
from fedlada.training import suggested
from fedlada.training.history import History
from fedlada.workbench.campaign.archive import read_archive
from fedlada.workbench.campaign.archived_run import ArchivedRun
from fedlada.workbench.campaign.request import moving_average
from fedlada.workbench.presets import SETTINGS
from fedlada.workbench.report.table import spread

RESULTS = Path(__file__).parent / "results"
GPU = ("runs_h200_202611.json", "readings_h200_202611.json")
CPU = ("runs_arm_202611.json",)
FINALS = ("finals_h200_202611.json", "finals_cifar10_h200_202611.json")
EVALUATED, SMOOTH = 5, 5
"""Every fifth round counts; A(r) is the mean of the five evaluations that end in round r."""
LEAN = "params=int8:direction=int4:v=log8+every5:delta=int4:control=int8:control_change=int4"
MEAN64 = "params=int8:direction=int4:delta=int4:control=int8:control_change=int4:v=mean64"

ADAPTIVE: dict[str, Any] = {"clip_norm": 10.0, "decoupled": True, "alpha": 0.1, "beta1": 0.0}
EARLIER: dict[str, dict[str, tuple[float, dict[str, Any]]]] = {}
for (dataset, method), values in suggested.EARLIER.items():
    EARLIER.setdefault(dataset, {})[method] = values
EARLIER["cifar10"]["fedlada"] = (1e-3, {**ADAPTIVE, "weight_decay": 0.2, "v_init": 1e-7, "alpha": 0.2})
"""Values of the searches before the protocol: the rate and the hyperparameters, FedLADA with the paper's root."""
EIGHTH: tuple[float, dict[str, Any]] = (0.03, {**ADAPTIVE, "weight_decay": 3e-3, "v_init": 1e-8, "power": 0.125})
"""A variant of FedLADA on CIFAR-10 that divides by the eighth root of the second moment."""


@dataclass(frozen=True, eq=False)
class Runs:
    """Archived runs of several files."""

    runs: Sequence[ArchivedRun]

    def where(self, hyper: Mapping[str, Any], **fields: Any) -> dict[int, History]:
        """By seed, the longest run whose settings are these, with every fifth evaluation."""
        found: dict[int, ArchivedRun] = {}
        for run in self.runs:
            seed = run.config["seed"]
            is_longer = seed not in found or run.num_rounds > found[seed].num_rounds
            if is_longer and _is(run.config, fields) and _is(run.config["hyper"], hyper):
                found[seed] = run
        return {seed: _history(found[seed]) for seed in sorted(found)}


@cache
def runs(*names: str) -> Runs:
    """The runs of these archives, the GPU's without any."""
    return Runs([run for name in names or GPU for run in _archive(name)])


def ended(archive: str, hyper: Mapping[str, Any], rounds: int, **fields: Any) -> ArchivedRun | None:
    """The run with these settings, if it went so far or diverged."""
    for run in runs(archive).runs:
        is_it = _is(run.config, fields) and _is(run.config["hyper"], hyper)
        if is_it and (run.num_rounds >= rounds or run.diverged is not None):
            return run
    return None


@cache
def _archive(name: str) -> Sequence[ArchivedRun]:
    return read_archive(RESULTS / name).runs


def printed(dataset: str, method: str, hyper: Mapping[str, Any] | None = None, **fields: Any) -> list[History]:
    """Runs with the paper's printed values, but for the given ones; one a seed, on the test data."""
    values = values_of("paper", dataset, dataset, method)
    rate = {"lr": values.lr, "lr_decay": values.lr_decay}
    return _on_test_data(dataset, method, {**values.hyper, **(hyper or {})}, {**rate, **fields})


def printed_in_finals(dataset: str, method: str) -> list[History]:
    """The finals of the protocol that have the paper's values, one a seed."""
    values = values_of("paper", dataset, dataset, method)
    hyper = {**hyper_parameters(method), **values.hyper}
    found = runs(*FINALS).where(hyper, dataset=dataset, method=method, lr=values.lr, lr_decay=values.lr_decay)
    return list(found.values())


def earlier(dataset: str, method: str, **fields: Any) -> list[History]:
    """Runs with the values of the searches before the protocol."""
    lr, hyper = EARLIER[dataset][method]
    return with_values(dataset, method, lr, hyper, **fields)


def with_values(dataset: str, method: str, lr: float, hyper: Mapping[str, Any], **fields: Any) -> list[History]:
    wanted = {**values_of("paper", dataset, dataset, method).hyper, **hyper}
    return _on_test_data(dataset, method, wanted, {"lr": lr, **fields})


def _on_test_data(dataset: str, method: str, hyper: Mapping[str, Any], fields: Mapping[str, Any]) -> list[History]:
    return list(_found(dataset, method, tuple(hyper.items()), tuple(fields.items())))


@cache
def _found(dataset: str, method: str, hyper: Sequence[Any], fields: Sequence[Any]) -> tuple[History, ...]:
    usual = {"validation": 0.0, "refill": True, "messages": "float32", "precision": "auto", "cohorts": "fixed"}
    wanted = {**SETTINGS[dataset], **usual, "debias": False, **dict(fields)}
    every = {**hyper_parameters(method), **dict(hyper)}
    return tuple(runs().where(every, dataset=dataset, method=method, **wanted).values())


def _is(stored: Mapping[str, Any], wanted: Mapping[str, Any]) -> bool:
    """Whether the settings that were stored are these; newer ones are at their defaults."""
    return all(name not in stored or stored[name] == value for name, value in wanted.items())


@cache
def _history(run: ArchivedRun) -> History:
    if all(round % EVALUATED == 0 for round in run.measured.get("test_accuracy", ())):
        return History(run.rows())
    return History([row if row["round"] % EVALUATED == 0 else _unevaluated(row) for row in run.rows()])


def _unevaluated(row: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in row.items() if not name.endswith(("_accuracy", "_loss"))}


def stored(name: str) -> Any:
    """What a file of results holds."""
    return json.loads((RESULTS / name).read_text(encoding="utf-8"))


@cache
def speed_of_methods() -> dict[str, dict[str, float]]:
    """By method, a local step of ten clients and a round of 50 such steps, measured alone on an H200 in bf16."""
    return {one["method"]: one for one in stored("speed_h200_20261119_4.json")["methods"]}


# Figures --------------------------------------------------------------------------------------------------------------


@cache
def measured(history: History, metric: str = "test_accuracy") -> tuple[list[int], list[float]]:
    return history.measured(metric)


@cache
def smooth(history: History, metric: str = "test_accuracy") -> tuple[list[int], list[float]]:
    """The mean of the five evaluations that end in each round."""
    rounds, values = measured(history, metric)
    return rounds[SMOOTH - 1 :], moving_average(values, SMOOTH)


def at(history: History, round: int) -> float | None:
    """A(round) in percent."""
    value = dict(zip(*smooth(history), strict=True)).get(round)
    return None if value is None else 100 * value


def best(history: History) -> float | None:
    """The highest A in percent."""
    return max((100 * one for one in smooth(history)[1]), default=None)


def reached(history: History, target: float, *, by_mean: bool = False) -> int | None:
    """The round in which a target in percent is first crossed, by one evaluation or by the mean of five."""
    rounds, values = smooth(history) if by_mean else measured(history)
    return next((round for round, value in zip(rounds, values, strict=True) if 100 * value >= target), None)


# Cells ----------------------------------------------------------------------------------------------------------------


def cell(values: Sequence[float | None], ends: Sequence[int], digits: int = 0) -> str:
    """Mean and standard deviation; "> 600 (1 of 3)" where one of three runs arrived and the others ended at 600."""
    known = [one for one in values if one is not None]
    if not values:
        return "-"
    if len(known) == len(values):
        return str(known[0]) if len(known) == 1 and isinstance(known[0], int) else spread(known, f".{digits}f")
    end = min(end for value, end in zip(values, ends, strict=True) if value is None)
    return f"> {end} ({len(known)} of {len(values)})" if len(values) > 1 else f"> {end}"


def rounds_to(own: Sequence[History], target: float, *, by_mean: bool = False, digits: int = 0) -> str:
    return cell([reached(one, target, by_mean=by_mean) for one in own], [len(one) for one in own], digits)


def accuracy(own: Sequence[History], round: int) -> str:
    """A(round) where every run went so far."""
    values = [at(one, round) for one in own]
    known = [one for one in values if one is not None]
    return spread(known, ".1f") if known and len(known) == len(values) else "-"


def mean_of(values: Sequence[float | None]) -> float | None:
    known = [one for one in values if one is not None]
    return statistics.fmean(known) if known and len(known) == len(values) else None


def lengths(own: Sequence[History]) -> str:
    """How far the runs went, the shortest and the longest."""
    each = sorted(len(one) for one in own)
    return "-" if not each else str(each[0]) if each[0] == each[-1] else f"{each[0]} to {each[-1]}"
