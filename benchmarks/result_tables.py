"""The tables of the pages on results, each made of the archives."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any

import archived_runs
import finals
import search
from archived_runs import (
    EARLIER,
    EIGHTH,
    LEAN,
    MEAN64,
    accuracy,
    at,
    best,
    cell,
    earlier,
    lengths,
    printed,
    reached,
    rounds_to,
    stored,
    with_values,
)

from fedlada.methods.recipes import hyper_parameters
from fedlada.paper.published import NAMES, STAGE_TARGETS, TEST_TARGETS, TITLES
from fedlada.training.history import History
from fedlada.workbench.campaign.archived_run import ArchivedRun
from fedlada.workbench.report.table import Table, spread
from messages import megabytes

FIVE = ("fedavg", "scaffold", "fedcm", "fedadam", "fedlada")
"""The methods that were searched before the protocol."""


# The finals -----------------------------------------------------------------------------------------------------------


@cache
def final_runs() -> Mapping[str, Sequence[History]]:
    """The finals on CIFAR-100, three or five seeds a method, to their last round."""
    chosen = finals.winners()
    find = finals.in_archive(finals.KEPT["cifar100"].archive, chosen)
    runs = {method: [find(method, seed) for seed in finals.SEEDS] for method in chosen}
    return finals.as_far_as(runs, finals.OWN)


def summary() -> Table:
    """The one table: accuracy early and late, and FedLADA's distance with its interval."""
    rows = []
    minus = {row[0]: (row[1], row[-1]) for row in finals.differences(final_runs()).rows}
    shown = finals.OWN.shown
    for method, own in final_runs().items():
        name = NAMES[method]
        levels = [
            spread([one for run in own if (one := at(run, round)) is not None], ".1f") for round in finals.OWN.shown
        ]
        rows.append((name, str(len(own)), *levels, *minus.get(name, ("", ""))))
    ends = (shown[0], shown[-1])
    levels = (f"A({one})" for one in shown)
    columns = ("method", "n", *levels, *(f"FedLADA minus method, A({one})" for one in ends))
    return Table("", columns, tuple(rows))


def final_bytes() -> Table:
    """Gigabytes up and down of the finals, in float32."""
    rows = []
    for method, own in final_runs().items():
        each = (own[0][0]["bytes_up"] + own[0][0]["bytes_down"]) / 1e9
        cells = [_gigabytes(own, 100 * target) for target in finals.OWN.targets[:2]]
        rows.append((NAMES[method], str(len(own)), f"{each:.2f}", *cells))
    return Table("", ("method", "seeds", "GB per round", "GB to 40 %", "GB to 45 %"), tuple(rows))


def _gigabytes(own: Sequence[History], target: float) -> str:
    """By the mean of five evaluations; a run that did not arrive is shown with the GB that it sent."""
    sent = []
    for one in own:
        arrived = reached(one, target, by_mean=True)
        sent.append(None if arrived is None else _sent(one[:arrived]))
    return cell(sent, [round(_sent(one)) for one in own])


def _sent(history: History) -> float:
    return sum(row["bytes_up"] + row["bytes_down"] for row in history) / 1e9


# Before the protocol --------------------------------------------------------------------------------------------------


def text_of(lr: float, hyper: Mapping[str, Any]) -> str:
    shown = {"lr": lr, **{name: value for name, value in hyper.items() if name not in ("clip_norm", "decoupled")}}
    return ", ".join(
        f"{name} {value:g}" if isinstance(value, float) else f"{name} {value}" for name, value in shown.items()
    )


def earlier_rows(dataset: str) -> dict[str, tuple[str, list[History]]]:
    """Values and runs by name; variants of FedLADA have rows of their own."""
    rows = {NAMES[one]: (text_of(*EARLIER[dataset][one]), earlier(dataset, one)) for one in FIVE}
    if dataset == "cifar10":
        lr, hyper = EIGHTH
        for name, changes in {"eighth root": {}, "eighth root, v not sent": {"second_moment": "reset"}}.items():
            own = with_values(dataset, "fedlada", lr, {**hyper, **changes})
            rows[f"FedLADA, {name}"] = (text_of(lr, {**hyper, **changes}), own)
    if dataset == "tinyimagenet":
        lr, hyper = EARLIER[dataset]["fedlada"]
        strong = {**hyper, "weight_decay": 0.1}
        rows["FedLADA, twice the decay"] = (text_of(lr, strong), with_values(dataset, "fedlada", lr, strong))
    return rows


def earlier_table(dataset: str, rounds: Sequence[int]) -> Table:
    targets = (*STAGE_TARGETS[dataset], TEST_TARGETS[dataset])
    rows = []
    for name, (_, own) in earlier_rows(dataset).items():
        speeds = [text for one in targets for text in (rounds_to(own, one), rounds_to(own, one, by_mean=True))]
        levels = [accuracy(own, round) for round in rounds]
        rows.append((name, str(len(own)), lengths(own), *levels, *speeds))
    heads = [head for one in targets for head in (f"{one:g} %", f"{one:g} % (5)")]
    columns = ("method", "seeds", "rounds run", *(f"A({one})" for one in rounds), *heads)
    return Table("", columns, tuple(rows))


def earlier_values(dataset: str) -> Table:
    """All with clipping at norm 10; FedLADA's decay is decoupled."""
    rows = tuple((name, values) for name, (values, _) in earlier_rows(dataset).items())
    return Table("", ("method", "values"), rows)


def effort() -> Table:
    """Runs and rounds on held-out data before the protocol."""
    rows = []
    every = archived_runs.runs("runs_h200_202611.json").runs
    for dataset in ("cifar100", "cifar10", "tinyimagenet"):
        own = [run for run in every if run.config["dataset"] == dataset and run.config["validation"]]
        cells = []
        for method in ("fedlada", "fedcm", "scaffold", "fedadam", "fedavg", "fedprox", "localadam"):
            mine = [run.num_rounds for run in own if run.config["method"] == method]
            cells.append(f"{len(mine)} / {sum(mine)}")
        rows.append((TITLES[dataset], *cells))
    columns = ("data set", "FedLADA", "FedCM", "SCAFFOLD", "FedAdam", "FedAvg", "FedProx", "LocalAdam")
    return Table("", columns, tuple(rows))


# Sensitivity ----------------------------------------------------------------------------------------------------------


def coins() -> Table:
    """Held-out A(100) of the protocol's trials by the two coins of the adaptive methods."""
    rows = []
    for method in ("localadam", "fedlada"):
        hyper = [(one.trial.experiment().hyper, one.mean(100)) for one in search.outcomes(method)]
        for name, value, said in (
            ("beta1", 0.0, "beta1 0"),
            ("beta1", 0.9, "beta1 0.9"),
            ("decoupled", True, "decoupled decay"),
            ("decoupled", False, "L2 in the gradient"),
        ):
            own = [100 * score for values, score in hyper if values[name] == value and score is not None]
            numbers = (f"{one:.1f}" for one in (min(own), statistics.median(own), max(own)))
            rows.append((NAMES[method], said, str(len(own)), *numbers))
    return Table("", ("method", "trials with", "trials", "min", "median", "max"), tuple(rows))


def strength(trial: search.Trial) -> float:
    """Rate x decay / alpha: the share of the weights that decay takes in a step, once the direction has settled."""
    experiment = trial.experiment()
    hyper = experiment.hyper
    return float(experiment.lr * hyper["weight_decay"] / hyper["alpha"] * hyper.get("server_lr", 1.0))


def strengths() -> Table:
    """Over the trials whose decay stands outside the moments."""
    rows = []
    for method in ("fedcm", "fedlada"):
        own = [one.trial for one in search.outcomes(method) if one.trial.experiment().hyper.get("decoupled", True)]
        values = sorted(map(strength, own))
        lr, hyper = EARLIER["cifar100"][method]
        earlier_one = lr * hyper["weight_decay"] / hyper["alpha"]
        numbers = (values[0], statistics.median(values), values[-1], strength(own[0]), earlier_one)
        rows.append((NAMES[method], str(len(own)), *(f"{one:.1e}" for one in numbers)))
    columns = ("method", "trials", "min", "median", "max", "paper's values", "earlier search")
    return Table("", columns, tuple(rows))


def one_alone() -> Table:
    """FedLADA on CIFAR-100, one setting changed at a time around the earlier values, on held-out data."""
    lr, hyper = EARLIER["cifar100"]["fedlada"]
    usual = {"lr": lr, "lr_decay": 0.998, "warmup": 0, "debias": False, "messages": "float32", "seed": 0}
    base = {**hyper_parameters("fedlada"), **hyper, **usual}
    found: dict[tuple[str, str], float] = {}
    for run in archived_runs.runs("runs_h200_202611.json").runs:
        if run.config["dataset"] != "cifar100" or run.config["method"] != "fedlada" or not run.config["validation"]:
            continue
        changed = {name: value for name, value in _flat(run, base).items() if base.get(name) != value}
        score = _score(run)
        if len(changed) <= 1 and score is not None:
            found[next(((name, str(value)) for name, value in changed.items()), ("", ""))] = score
    own = found.pop(("", ""))
    rows = [
        (name, f"{base[name]:g}" if isinstance(base[name], float) else str(base[name]), value, f"{score - own:+.1f}")
        for (name, value), score in sorted(found.items(), key=lambda one: (one[0][0], _number(one[0][1])))
    ]
    return Table("", ("setting", "from", "to", "points"), tuple(rows), (f"Points around a score of {own:.1f} %.",))


def _flat(run: ArchivedRun, base: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in {**run.config, **run.config["hyper"]}.items() if name in base}


def _score(run: ArchivedRun) -> float | None:
    values = run.measured["validation_accuracy"]
    rounds = (50, 100, 150)
    return 100 * statistics.fmean(values[one] for one in rounds) if all(one in values for one in rounds) else None


def _number(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        return 0.0


def varied() -> Table:
    """Settings that the paper varies, with its printed values, seed 0."""
    groups = [
        ("T3, CIFAR-100", f"{one} local epochs", 200, printed("cifar100", "fedlada", local_epochs=one))
        for one in (2, 4, 10, 20)
    ]
    groups += [
        ("T4, CIFAR-100", f"alpha {one:g}", 400, printed("cifar100", "fedlada", {"alpha": one}))
        for one in (0.01, 0.05, 0.1, 0.2, 0.5, 1.0)
    ]
    groups += [
        ("F4, CIFAR-10", f"{one} clients per round", 250, printed("cifar10", "fedlada", cohort_size=one))
        for one in (5, 10, 20, 50)
    ]
    for model in ("lenet-gelu", "lenet-smu"):
        for method in ("fedavg", "fedadam", "localadam", "fedlada"):
            own = printed("cifar10", method, model=model, concentration=0.3)
            groups.append((f"F6, {model}", NAMES[method], 1000, own))
    rows = []
    for what, name, rounds, own in groups:
        first = own[0][:rounds]
        drift = first.measured("drift")[1]
        loss = first.measured("train_loss")[1]
        cells = (f"{best(first):.1f}", f"{at(first, rounds):.1f}", f"{loss[-1]:.3f}", f"{drift[-1]:.2f}")
        rows.append((what, name, str(rounds), *cells))
    return Table("", ("target", "setting", "rounds", "best A", "A at the end", "training loss", "drift"), tuple(rows))


def placement() -> Table:
    """Where the decay of adaptive clients acts, with the printed values on CIFAR-100."""
    rows = []
    for method in ("localadam", "fedlada"):
        for decoupled in (True, False):
            own = printed("cifar100", method, {"decoupled": decoupled})
            where = "decoupled" if decoupled else "L2 in the gradient"
            speeds = [rounds_to(own, one) for one in STAGE_TARGETS["cifar100"]]
            rows.append((NAMES[method], where, str(len(own)), lengths(own), accuracy(own, 300), *speeds))
    columns = ("method", "decay", "seeds", "rounds run", "A(300)", "40 %", "45 %")
    return Table("", columns, tuple(rows))


# Bytes ----------------------------------------------------------------------------------------------------------------


def coded(dataset: str) -> Table:
    """The earlier values in float32 and compressed, seed 0, by first crossing."""
    rows = []
    for method in FIVE:
        lr, hyper = EARLIER[dataset][method] if (dataset, method) != ("cifar10", "fedlada") else EIGHTH
        for code, name in (("float32", "float32"), (LEAN, "lean"), (MEAN64, "lean:v=mean64")):
            own = with_values(dataset, method, lr, hyper, messages=code)[:1]
            if own:
                each = _sent(own[0]) / len(own[0])
                cells = [one for target in STAGE_TARGETS[dataset] for one in _rounds_and_sent(own[0], target)]
                rows.append((NAMES[method], name, str(len(own[0])), f"{each:.2f}", *cells))
    heads = [head for one in STAGE_TARGETS[dataset] for head in (f"rounds to {one:g} %", "GB")]
    return Table("", ("method", "messages", "rounds run", "GB per round", *heads), tuple(rows))


def _rounds_and_sent(history: History, target: float) -> tuple[str, str]:
    arrived = reached(history, target)
    if arrived is None:
        return cell([None], [len(history)]), "-"
    return str(arrived), f"{_sent(history[:arrived]):.1f}"


def quantized(dataset: str, stage: str, targets: Sequence[float]) -> Table:
    """FedLADA with several compression settings, and FedAvg, from the first measurements of messages."""
    groups: dict[tuple[str, str], list[dict[str, Any]]] = {}
    for run in stored("messages_h200_202611.json"):
        if run["stage"] == stage and run["dataset"] == dataset:
            groups.setdefault((run["method"], run["messages"]), []).append(run)
    rows = []
    for (method, code), own in groups.items():
        each = statistics.fmean(megabytes(one, len(one["accuracy"])) / len(one["accuracy"]) for one in own)
        cells = []
        for target in targets:
            rounds = [_first(one["accuracy"], target) for one in own]
            sent = [None if end is None else megabytes(one, end) for one, end in zip(own, rounds, strict=True)]
            cells += [cell(rounds, [len(one["accuracy"]) for one in own], 1)]
            cells += [spread(known, ".0f") if len(known := [x for x in sent if x is not None]) == len(sent) else "-"]
        rows.append((NAMES[method], SHORT.get(code, code), str(len(own)), f"{each:.2f}", *cells, _highest(own)))
    heads = [head for one in targets for head in (f"rounds to {100 * one:g} %", "MB")]
    by_size = sorted(rows, key=lambda row: (row[0], -float(row[3])))
    return Table("", ("method", "messages", "seeds", "MB per round", *heads, "best"), tuple(by_size))


SHORT = {
    "params=int8:direction=int4:v=log8+every5:delta=int4": "lean",
    "params=int8:direction=int4:v=log8:delta=int4": "lean:v=log8",
}
"""Compression settings that have a name."""


def _first(values: Sequence[float], target: float) -> int | None:
    return next((number for number, value in enumerate(values, 1) if value >= target), None)


def _highest(own: Sequence[Mapping[str, Any]]) -> str:
    return spread([100 * max(one["accuracy"]) for one in own], ".1f")


# Fashion-MNIST --------------------------------------------------------------------------------------------------------

FASHION: dict[str, tuple[float, dict[str, Any]]] = {
    "fedavg": (0.15, {"weight_decay": 0.0}),
    "fedadam": (0.1, {"server_lr": 0.01, "tau": 1e-3, "weight_decay": 1e-4}),
    "fedcm": (0.5, {"alpha": 0.2, "weight_decay": 1e-4}),
    "fedlada": (5e-3, {"weight_decay": 0.0, "v_init": 1e-6, "alpha": 0.3, "beta1": 0.0}),
}


def fashion_runs(method: str, code: str = "float32") -> list[History]:
    lr, hyper = FASHION[method]
    every = archived_runs.runs(*archived_runs.CPU).runs
    found = {}
    for run in every:
        fields = {"dataset": "fashion-mnist", "model": "mlp", "method": method, "validation": 0.0, "lr": lr}
        if all(run.config[name] == value for name, value in {**fields, "messages": code}.items()) and all(
            run.config["hyper"][name] == value for name, value in hyper.items()
        ):
            found[run.config["seed"]] = History(run.rows())
    return [found[seed] for seed in sorted(found)]


def fashion() -> Table:
    rows = []
    for method in FASHION:
        for code, name in (("float32", "float32"), (LEAN, "lean"), (MEAN64, "lean:v=mean64")):
            own = fashion_runs(method, code)
            if own:
                each = statistics.fmean(1e3 * _sent(one) / len(one) for one in own)
                ends = [len(one) for one in own]
                speeds = [cell([one.rounds_to(target) for one in own], ends, 1) for target in (0.75, 0.80, 0.83)]
                highest = spread([100 * (one.best() or 0.0) for one in own], ".1f")
                rows.append((NAMES[method], name, str(len(own)), f"{each:.2f}", *speeds, highest))
    columns = ("method", "messages", "seeds", "MB per round", "75 %", "80 %", "83 %", "best")
    return Table("", columns, tuple(rows))


# Checks ---------------------------------------------------------------------------------------------------------------


def authors() -> Table:
    """Test accuracy after 20 rounds of CIFAR-100 in the authors' simulator and here, one partition."""
    runs = stored("authors_accuracy_h200_202611.json")["runs"]
    rows = []
    for method in ("FedAvg", "FedCM"):
        for simulator in ("theirs", "ours"):
            own = [one["accuracy"] for one in runs if one["method"] == method and one["simulator"] == simulator]
            cells = [spread([100 * one[round] for one in own], ".1f") for round in ("5", "10", "15", "20")]
            rows.append((method, simulator, str(len(own)), *cells))
    return Table("", ("method", "simulator", "seeds", "round 5", "10", "15", "20"), tuple(rows))


def pools() -> Table:
    """Pools that are refilled, as in the authors' simulator, or not: CIFAR-100 with printed values."""
    rows = []
    for method in ("fedavg", "fedcm"):
        for refill in (True, False):
            own = [one[:150] for one in printed("cifar100", method, refill=refill)]
            levels = [accuracy(own, round) for round in (100, 150)]
            rows.append((NAMES[method], "yes" if refill else "no", str(len(own)), *levels))
    return Table("", ("method", "refilled", "seeds", "A(100)", "A(150)"), tuple(rows))


def precisions() -> Table:
    """bf16 beside TF32 with the same seed on CIFAR-10."""
    runs = stored("look_precision_h200_20261116.json")
    rows = [
        (NAMES[one["method"]], one["precision"], "1", *(f"{100 * value:.1f}" for value in one["accuracy"][4::5]))
        for one in sorted(runs, key=lambda one: (one["method"], one["precision"]))
    ]
    return Table("", ("method", "precision", "seeds", "halfway", "at the end"), tuple(rows))


def repeated() -> Table:
    """Runs that two archives have, made on different days."""
    first, second = (archived_runs.runs(name).runs for name in archived_runs.GPU)
    keys = {finals.identity(run.config): run for run in first}
    both = [(keys[key], run) for run in second if (key := finals.identity(run.config)) in keys]
    common = [
        (a.measured["test_accuracy"][round], b.measured["test_accuracy"][round])
        for a, b in both
        for round in a.measured["test_accuracy"].keys() & b.measured["test_accuracy"].keys()
    ]
    equal = sum(a == b for a, b in common)
    return Table(
        "", ("runs in both archives", "common evaluations", "equal"), ((str(len(both)), str(len(common)), str(equal)),)
    )
