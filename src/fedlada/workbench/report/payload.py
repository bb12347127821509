"""Runs as the plain data that a page draws: measured columns, who took part, what the clients hold."""

from __future__ import annotations

import hashlib
import math
from collections import Counter
from collections.abc import Sequence
from itertools import accumulate
from typing import Any

import numpy as np

from fedlada.plots.curves import is_number
from fedlada.training.history import Row
from fedlada.training.shown import EVALUATED
from fedlada.training.target import ACCURACY, Target, judged_by, lower_is_better
from fedlada.workbench.report.records import OWN_DATA, RunRecord, flattened, target_of

MAX_ROWS = 45_000
"""Rounds on one page, all runs together: about three megabytes."""
SHORT_RUN = 300
"""Runs of up to this many rounds are always shown in full."""
MAX_BARS = 1000
"""With more clients than this, several share a bar."""
NOT_MEASURED = {"round", "clients", "lost", "refused", "idle", "bytes_by_vector"}

Plain = dict[str, Any]


def rows_per_run(num_runs: int) -> int:
    """The number of rounds of each run that fit."""
    return max(SHORT_RUN, MAX_ROWS // max(1, num_runs))


def run_payload(run: RunRecord, max_rows: int) -> Plain:
    """One run: sums are taken over all rounds, then the rounds are thinned out."""
    chosen = kept_rounds(run.rows, max_rows)
    up, down, seconds = (
        list(accumulate(_number(row.get(name)) or 0.0 for row in run.rows))
        for name in ("bytes_up", "bytes_down", "seconds")
    )
    names = dict.fromkeys(name for row in run.rows for name in row if name not in NOT_MEASURED)
    columns = {name: [_rounded(_number(run.rows[index].get(name))) for index in chosen] for name in names}
    return {
        "label": run.label,
        "group": run.group,
        "folder": run.folder,
        "dataset": str(run.config.get("dataset", OWN_DATA)),
        "x": {
            "round": [run.rows[index]["round"] for index in chosen],
            "megabytes": [_rounded((up[index] + down[index]) / 1e6) for index in chosen],
            "megabytes_up": [_rounded(up[index] / 1e6) for index in chosen],
            "seconds": [_rounded(seconds[index]) for index in chosen],
        },
        # A column that never changes, as bytes seldom do, is one number.
        "columns": [
            [name, values[0] if len(set(values)) == 1 else values]
            for name, values in columns.items()
            if any(value is not None for value in values)
        ],
        "summary": _summary(run, up, down, seconds),
        "clients": _clients(run),
        "vectors": _vectors(run.rows),
        "config": flattened(run.config),
        "command": run.command,
    }


def kept_rounds(rows: Sequence[Row], max_rows: int) -> list[int]:
    """Which rows a page shows: all of a short run, else evenly spaced ones, the measured ones first."""
    if len(rows) <= max_rows:
        return list(range(len(rows)))
    evaluated = [index for index, row in enumerate(rows) if any(name.startswith(EVALUATED) for name in row)]
    # Rounds are chosen by their place alone, at distances of 1, 2, 4, ...: runs of any lengths have the coarser grid in
    # common and can still be averaged.
    kept = {0, len(rows) - 1, *_spaced(evaluated, max_rows)}
    kept.update(_spaced(range(len(rows)), max_rows - len(kept)))
    return sorted(kept)


def _spaced(values: Sequence[int], wanted: int) -> Sequence[int]:
    return values[:: 2 ** math.ceil(math.log2(max(1.0, len(values) / wanted)))] if wanted > 0 and values else ()


def _summary(run: RunRecord, up: list[float], down: list[float], seconds: list[float]) -> Plain:
    numbers = {name for row in run.rows for name, value in row.items() if _number(value) is not None}
    judge = judged_by(numbers)
    found = _values(run, judge)
    best = (min if lower_is_better(judge) else max)((value for _, value in found), default=None)
    target = target_of(run.config, run.rows)
    planned = run.config.get("rounds")
    return {
        "done": len(run.rows),
        "planned": planned if isinstance(planned, int) else None,
        "seed": str(run.config.get("seed", "")),
        "judge": judge,
        "last": found[-1][1] if found else None,
        "best": best,
        "best_round": next((round for round, value in found if value == best), None),
        "target": None if target is None else target.value,
        "target_metric": ACCURACY if target is None else target.column,
        "rounds_to_target": None if target is None else _round_of(target, run),
        "epsilon": _rounded(_number(run.rows[-1].get("epsilon"))) if run.rows else None,
        "megabytes": _rounded((up[-1] + down[-1]) / 1e6) if up else 0.0,
        "seconds": _rounded(seconds[-1]) if seconds else 0.0,
    }


def _values(run: RunRecord, metric: str) -> list[tuple[int, float]]:
    """The rounds in which a metric was measured, with its values."""
    return [(row["round"], value) for row in run.rows if (value := _number(row.get(metric))) is not None]


def _round_of(target: Target, run: RunRecord) -> int | None:
    return next((round for round, value in _values(run, target.column) if target.is_reached_by(value)), None)


def _clients(run: RunRecord) -> Plain:
    """How often each client took part, was lost, refused or idle, and its samples by class."""
    counts = run.labels_per_client
    cohorts = {
        kind: [client for row in run.rows for client in _whole_numbers(row.get(kind))]
        for kind in ("clients", "lost", "refused", "idle")
    }
    stored = run.config.get("num_clients")
    largest = max((client for drawn in cohorts.values() for client in drawn), default=-1)
    num_clients = max(largest + 1, len(counts or ()), stored if isinstance(stored, int) else 0)
    if largest < 0 and run.rows and not counts:
        num_clients = 0  # participation was not stored, which is not the same as none
    width = max(1, math.ceil(num_clients / MAX_BARS))
    result: Plain = {"number": num_clients, "width": width, "labels": None}
    if run.names.clients and width == 1:
        result["names"] = list(run.names.clients)
    if run.names.classes:
        result["classes"] = list(run.names.classes)
    for kind, drawn in cohorts.items():
        bars = [0] * math.ceil(num_clients / width)
        for client in drawn:
            bars[client // width] += 1
        result["drawn" if kind == "clients" else kind] = bars if any(bars) or kind == "clients" else []
    if counts:
        result["labels"] = [
            [sum(column) for column in zip(*counts[start : start + width], strict=True)]
            for start in range(0, len(counts), width)
        ]
        result["seen"] = _seen(counts, cohorts["clients"])
    return result


def _seen(counts: Sequence[Sequence[int]], drawn: list[int]) -> list[int]:
    """Samples of each class that the drawn clients held, each time they were drawn."""
    often = Counter(drawn)
    times = np.array([often[client] for client in range(len(counts))], dtype=np.int64)
    total: list[int] = (times @ np.asarray(counts, dtype=np.int64)).tolist()
    return total


def _vectors(rows: Sequence[Row]) -> list[list[Any]]:
    """Total bytes of each vector, if the run stores them."""
    total: dict[str, float] = {}
    for row in rows:
        by_vector = row.get("bytes_by_vector")
        for name, value in by_vector.items() if isinstance(by_vector, dict) else ():
            total[str(name)] = total.get(str(name), 0.0) + (_number(value) or 0.0)
    return [[name, value] for name, value in total.items()]


def _whole_numbers(values: Any) -> list[int]:
    """Client numbers of a row; a file can hold anything."""
    if not isinstance(values, list):
        return []
    return [value for value in values if isinstance(value, int) and 0 <= value < 10**7]


def _number(value: Any) -> float | None:
    return float(value) if is_number(value) else None


def _rounded(value: float | None) -> float | int | None:
    """Six digits: more would not be visible."""
    if value is None:
        return None
    short = float(f"{value:.6g}")
    return int(short) if short.is_integer() and abs(short) < 1e15 else short


def share_labels(runs: Sequence[Plain]) -> list[Any]:
    """Store equal partitions once: runs of one seed have the same; each run keeps its number among them."""
    known: dict[str, int] = {}
    shared: list[Any] = []
    for run in runs:
        labels = run["clients"]["labels"]
        if labels is None:
            continue
        key = hashlib.sha256(repr(labels).encode()).hexdigest()
        if key not in known:
            known[key] = len(shared)
            shared.append(labels)
        run["clients"]["labels"] = known[key]
    return shared
