"""Every cell of the paper's tables and figures beside ours: value, seeds, ratio and status."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache, partial

from archived_runs import accuracy, at, cell, lengths, mean_of, printed, printed_in_finals, reached, stored

from fedlada.paper.published import (
    AMENDED_WEIGHT,
    AT_1500,
    COMBINATIONS,
    COMBINATIONS_BASE,
    CONVERGED,
    COST_RATIOS,
    COST_TOTALS,
    DATASETS,
    LOCAL_INTERVAL,
    NAMES,
    SCALED_SCAFFOLD,
    SEVEN,
    SPEED_TEST,
    SPEED_TRAIN,
    STAGE_TARGETS,
    STAGES,
    TEST_TARGETS,
    TITLES,
    TRAIN_TARGET,
    VECTORS,
)
from fedlada.training.history import History
from fedlada.workbench.report.table import Table

COLUMNS = ("cell", "paper", "ours", "seeds", "ratio", "status")
ENOUGH, CLOSE = 3, 0.10
"""Seeds that settle a cell; how far a figure that agrees may be off."""
LAST = 1500
"""Rounds of the paper's runs."""
LENET_ROUNDS = 4000
SETTLED, PARTLY, NOT_RUN = "settled", "partly", "not run"


@dataclass(frozen=True)
class Cell:
    """One figure of the paper beside ours."""

    name: str
    paper: str
    ours: str
    seeds: int
    ratio: str
    status: str

    @property
    def row(self) -> tuple[str, ...]:
        return (self.name, self.paper, self.ours, str(self.seeds), self.ratio, self.status)


# The state of a cell --------------------------------------------------------------------------------------------------


@cache
def seconds_a_round(dataset: str) -> float:
    """Of the slowest method that was timed alone on an H200 in bf16, with an evaluation in every fifth round."""
    steps = stored("speed_h200_20261117.json")["steps"]
    own = [one for one in steps if one["shape"] == dataset and one["precision"] == "bf16"]
    return max(one["round_s"] + one["evaluation_s"] / 5 for one in own)


def minutes(dataset: str, own: Sequence[History], rounds: float, share: float = 1.0) -> str:
    """GPU time to have three seeds of so many rounds; a round costs a share of the usual one."""
    done = sorted((min(len(one), rounds) for one in own), reverse=True)[:ENOUGH]
    return f"{max(1.0, (ENOUGH * rounds - sum(done)) * share * seconds_a_round(dataset) / 60):.0f} min"


def unsettled(dataset: str, own: Sequence[History], rounds: float, why: str = "") -> str:
    state = f"{PARTLY}{why}" if own else NOT_RUN
    return f"{state}, {minutes(dataset, own, rounds)}"


def verdict(agrees: bool) -> str:
    return f"{SETTLED}, {'agrees' if agrees else 'differs'}"


def speed_cell(
    name: str, dataset: str, paper: float, own: Sequence[History], find: Callable[[History], int | None]
) -> Cell:
    """Rounds to a target: settled where three seeds arrived, or went as far as the paper's without arriving."""
    rounds = [find(one) for one in own]
    is_finite = math.isfinite(paper)
    far = paper if is_finite else LAST
    mean = mean_of(rounds)
    missed = [len(one) for one, arrived in zip(own, rounds, strict=True) if arrived is None]
    if mean is not None:
        ratio = f"{mean / paper:.2f}" if is_finite else "-"
        status = verdict(is_finite and abs(mean / paper - 1) <= CLOSE)
    elif missed and min(missed) >= far:
        bound = min(missed) / paper if is_finite else 0.0
        ratio = f"> {bound:.2f}" if is_finite else "-"
        status = verdict(not is_finite and len(missed) == len(own))
    else:
        ratio, status = "-", unsettled(dataset, own, 1.5 * far if is_finite else far)
    if status.startswith(SETTLED) and len(own) < ENOUGH:
        status = unsettled(dataset, own, far, f" ({status.removeprefix(f'{SETTLED}, ')})")
    shown = f"{paper:g}" if is_finite else "∞"
    return Cell(name, shown, cell(rounds, [len(one) for one in own]), len(own), ratio, status)


def level_cell(name: str, dataset: str, paper: float, own: Sequence[History], round: int) -> Cell:
    """Accuracy after so many rounds; ratio is the difference in points."""
    far = [one for one in own if at(one, round) is not None]
    if not far:
        last = max((len(one) for one in own), default=0)
        longest = [one for one in own if len(one) == last]
        ours = f"{accuracy(longest, last)} at {last}" if own else "-"
        return Cell(name, f"{paper:g}", ours, len(own), "-", unsettled(dataset, own, round))
    mean = mean_of([at(one, round) for one in far]) or math.nan
    status = verdict(abs(mean - paper) <= 1.0) if len(far) >= ENOUGH else unsettled(dataset, far, round)
    return Cell(name, f"{paper:g}", accuracy(far, round), len(far), f"{mean - paper:+.1f}", status)


def with_finals(dataset: str, method: str, rounds: float, made: Callable[[Sequence[History]], Cell]) -> Cell:
    """A cell that the earlier runs leave open takes the finals with the paper's values, if three are long enough."""
    found = made(printed(dataset, method))
    far = [one for one in printed_in_finals(dataset, method) if len(one) >= rounds]
    return found if found.status.startswith(SETTLED) or len(far) < ENOUGH else made(far)


# The tables -----------------------------------------------------------------------------------------------------------


def trained(history: History) -> int | None:
    return history.rounds_to(TRAIN_TARGET / 100, "full_train_accuracy")


def t1() -> Iterator[Cell]:
    for dataset in DATASETS:
        for method in SEVEN:
            own = printed(dataset, method)
            name = f"{TITLES[dataset]}, {NAMES[method]}"
            seen = [one for one in own if one.measured("full_train_accuracy")[0]]
            yield speed_cell(f"{name}, training", dataset, SPEED_TRAIN[method][dataset], seen, trained)
            find, paper = _touch(TEST_TARGETS[dataset]), SPEED_TEST[method][dataset]
            made = partial(speed_cell, f"{name}, test", dataset, paper, find=find)
            yield with_finals(dataset, method, paper if math.isfinite(paper) else LAST, made)


def _touch(target: float) -> Callable[[History], int | None]:
    return lambda history: reached(history, target)


def t2() -> Iterator[Cell]:
    for method, points in COMBINATIONS.items():
        own = printed("tinyimagenet", method)
        yield level_cell(f"TinyImageNet, {NAMES[method]}", "tinyimagenet", COMBINATIONS_BASE + points, own, LAST)


def t3() -> Iterator[Cell]:
    for epochs, (best, round) in LOCAL_INTERVAL.items():
        own = [one[:200] for one in printed("cifar100", "fedlada", local_epochs=epochs)[:1]]
        cost = minutes("tinyimagenet", [], LAST, epochs / 2)
        status = f"{PARTLY}, other data, {cost}"
        ours = f"{_best(own)} by 200, CIFAR-100"
        yield Cell(f"TinyImageNet, K = {epochs} epochs", f"{best:g} at {round}", ours, len(own), "-", status)


def t4() -> Iterator[Cell]:
    for alpha, value in AMENDED_WEIGHT.items():
        own = [one[:400] for one in printed("cifar100", "fedlada", {"alpha": alpha})[:1]]
        status = f"{PARTLY}, other data, {minutes('tinyimagenet', [], LAST)}"
        ours = f"{_best(own)} by 400, CIFAR-100"
        yield Cell(f"TinyImageNet, alpha {alpha:g}", f"{value:g}", ours, len(own), "-", status)


def _best(own: Sequence[History]) -> str:
    return cell([100 * (one.best() or 0.0) for one in own], [0] * len(own), 1)


def t5() -> Iterator[Cell]:
    for dataset in DATASETS:
        for method, values in AT_1500.items():
            name = f"{TITLES[dataset]}, {NAMES[method]}"
            made = partial(level_cell, f"{name}, at 1500", dataset, values[dataset], round=LAST)
            yield with_finals(dataset, method, LAST, made)
            level, round = CONVERGED[method][dataset]
            made = partial(level_cell, f"{name}, converged at {round}", dataset, level, round=round)
            yield with_finals(dataset, method, round, made)


def t6() -> Iterator[Cell]:
    for dataset in DATASETS:
        for method in SEVEN:
            for target, paper in zip(STAGE_TARGETS[dataset], STAGES[method][dataset], strict=True):
                name = f"{TITLES[dataset]}, {NAMES[method]}, {target:g} %"
                made = partial(speed_cell, name, dataset, paper, find=_touch(target))
                yield with_finals(dataset, method, paper if math.isfinite(paper) else LAST, made)


def t7() -> Iterator[Cell]:
    for scale, value in SCALED_SCAFFOLD.items():
        own = [one[:400] for one in printed("cifar10", "scaffold", {"correction": scale})[:1]]
        points = 100 * (own[0].best() or 0.0) - value
        status = unsettled("cifar10", own, LAST)
        yield Cell(
            f"CIFAR-10, scale {scale:g}", f"{value:g}", f"{_best(own)} by 400", len(own), f"{points:+.1f}", status
        )


def t8() -> Iterator[Cell]:
    """By the paper's count of vectors, relative to FedAvg."""
    for place, target in enumerate(STAGE_TARGETS["cifar10"]):
        base = _rounds("fedavg", target)
        for method in SEVEN:
            own, rounds, paper = printed("cifar10", method), _rounds(method, target), COST_RATIOS[method][place]
            total = COST_TOTALS[method][place]
            shown = "∞" if paper is None else f"{paper:g} ({total} Nd)"
            name = f"CIFAR-10, {NAMES[method]}, {target:g} %"
            if rounds is None or base is None:
                ours = "-" if rounds is None else f"({VECTORS[method] * rounds:.0f} Nd)"
                status = unsettled("cifar10", own, 1.5 * STAGES["fedavg"]["cifar10"][place])
                yield Cell(name, shown, ours, len(own), "-", status)
                continue
            ratio = VECTORS[method] * rounds / base
            by = "-" if paper is None else f"{ratio / paper:.2f}"
            status = verdict(paper is not None and abs(ratio / paper - 1) <= CLOSE)
            yield Cell(name, shown, f"{ratio:.2f} ({VECTORS[method] * rounds:.0f} Nd)", len(own), by, status)


def _rounds(method: str, target: float) -> float | None:
    return mean_of([reached(one, target) for one in printed("cifar10", method)])


# The figures ----------------------------------------------------------------------------------------------------------


def figure(name: str, shows: str, wanted: dict[str, list[History]], rounds: int, status: str) -> tuple[str, ...]:
    """How much of a figure was run: curves, seeds, and the rounds of the shortest curve."""
    there = {one: own for one, own in wanted.items() if own}
    seeds = min((len(own) for own in there.values()), default=0)
    shortest = min((max(len(one) for one in own) for own in there.values()), default=0)
    return name, shows, f"{len(there)} of {len(wanted)}", str(seeds), f"{shortest} of {rounds}", status


def _length(own: Sequence[History]) -> int:
    """How far three seeds went, or all that there are."""
    return min(sorted(map(len, own), reverse=True)[:ENOUGH], default=0)


def figures() -> Table:
    def by_method(dataset: str, methods: Sequence[str]) -> dict[str, list[History]]:
        return {one: max(printed(dataset, one), printed_in_finals(dataset, one), key=_length) for one in methods}

    def lenet(model: str) -> dict[str, list[History]]:
        fields = {"model": model, "concentration": 0.3}
        return {one: printed("cifar10", one, **fields) for one in ("fedavg", "fedadam", "localadam", "fedlada")}

    def costs(dataset: str, methods: Sequence[str]) -> str:
        runs = [one for method in methods for one in [printed(dataset, method)]]
        left = sum(max(0, LAST - max((len(one) for one in own), default=0)) for own in runs)
        return f"{left * seconds_a_round(dataset) / 60:.0f} min per seed"

    alphas = {str(alpha): printed("cifar100", "fedlada", {"alpha": alpha}) for alpha in AMENDED_WEIGHT}
    epochs = {str(one): printed("cifar100", "fedlada", local_epochs=one) for one in LOCAL_INTERVAL}
    clients = {str(one): printed("cifar10", "fedlada", cohort_size=one) for one in (5, 10, 20, 50)}
    three = ("fedavg", "fedadam", "localadam")
    rows = [figure("F1", "FedAvg, FedAdam, LocalAdam on CIFAR-100", by_method("cifar100", three), LAST,
                   f"{PARTLY}, {costs('cifar100', three)}")]  # fmt: skip
    for dataset in DATASETS:
        status = f"{PARTLY}, {costs(dataset, SEVEN)}"
        rows.append(figure("F2", f"seven methods on {TITLES[dataset]}", by_method(dataset, SEVEN), LAST, status))
    rows += [
        figure("F3", "K on TinyImageNet; ours on CIFAR-100", epochs, LAST, f"{PARTLY}, other data"),
        figure("F4", "clients per round on CIFAR-10", clients, LAST, PARTLY),
        figure("F5", "FedAdam(*) and FedCM on TinyImageNet", by_method("tinyimagenet", ("fedadam_amended", "fedcm")),
               LAST, f"{PARTLY}, {costs('tinyimagenet', ('fedadam_amended', 'fedcm'))}"),
        figure("F6", "LeNet with GeLU", lenet("lenet-gelu"), LENET_ROUNDS, PARTLY),
        figure("F6", "LeNet with SMU", lenet("lenet-smu"), LENET_ROUNDS, PARTLY),
        figure("F7", "alpha and drift on CIFAR-10; ours on CIFAR-100", alphas, LAST, f"{PARTLY}, other data"),
        ("F8", "a sketch without numbers", "computed", "-", "-", f"{SETTLED}, holds with the same server rate"),
    ]  # fmt: skip
    return Table("", ("figure", "it shows", "curves", "seeds", "rounds", "status"), tuple(rows))


# All of it ------------------------------------------------------------------------------------------------------------

EVERY: dict[str, Callable[[], Iterator[Cell]]] = {
    "T1": t1, "T2": t2, "T3": t3, "T4": t4, "T5": t5, "T6": t6, "T7": t7, "T8": t8,
}  # fmt: skip


@cache
def cells(table: str) -> tuple[Cell, ...]:
    return tuple(EVERY[table]())


def table_of(name: str) -> Table:
    return Table("", COLUMNS, tuple(one.row for one in cells(name)))


def counts() -> Table:
    """How many cells of each table have which status."""
    states = ("settled, agrees", "settled, differs", PARTLY, NOT_RUN)
    rows = []
    for name in EVERY:
        found = [sum(one.status.startswith(state) for one in cells(name)) for state in states]
        rows.append((name, *map(str, (len(cells(name)), *found))))
    total = [str(sum(int(row[place]) for row in rows)) for place in range(1, 6)]
    return Table("", ("table", "cells", *states), (*rows, ("all", *total)))


def told_of(dataset: str) -> Table:
    """T6's rows of a data set in short: rounds with the printed values beside the paper's."""
    rows = []
    for method in SEVEN:
        own = printed(dataset, method)
        texts = []
        for target, paper in zip(STAGE_TARGETS[dataset], STAGES[method][dataset], strict=True):
            by_mean = cell([reached(one, target, by_mean=True) for one in own], [len(one) for one in own])
            touch = cell([reached(one, target) for one in own], [len(one) for one in own])
            texts += [touch, by_mean, f"{paper:g}" if math.isfinite(paper) else "∞"]
        rows.append((NAMES[method], str(len(own)), lengths(own), *texts))
    heads = [head for one in STAGE_TARGETS[dataset] for head in (f"{one:g} %", f"{one:g} % (5)", "paper")]
    return Table("", ("method", "seeds", "rounds run", *heads), tuple(rows))
