"""The pictures of the pages on results: one colour a method in all of them, curves to a common end."""

from __future__ import annotations

import hashlib
import io
import json
import math
import re
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from pathlib import Path
from typing import Any

import archived_runs
import finals
import search
from archived_runs import EARLIER, earlier, printed, reached, smooth, with_values
from result_tables import FASHION, FIVE, fashion_runs, final_runs, strength

from fedlada.paper.published import DATASETS, NAMES, SEVEN, STAGE_TARGETS, STAGES, TITLES
from fedlada.plots.chart import Chart, Series
from fedlada.plots.draw import PAPER, new_figure
from fedlada.training.history import History

COLOURS = {
    "FedAvg": "#3d434a",
    "FedProx": "#cc79a7",
    "SCAFFOLD": "#009e73",
    "FedCM": "#0072b2",
    "FedAdam": "#e69f00",
    "FedAdam(*)": "#56b4e9",
    "LocalAdam": "#6b4fa8",
    "FedLADA": "#d55e00",
}
"""One colour a method, of Okabe and Ito's."""
OTHERS = ("#3d434a", "#0072b2", "#009e73", "#d55e00", "#cc79a7", "#e69f00")
"""For curves of one method."""
LOOK = {**PAPER, "font.family": "sans-serif", "font.sans-serif": ["DejaVu Sans"], "font.size": 9}
"""A wide font: where a reader has another, names still fit."""
ACCURACY = "test accuracy, %"
MARKERS = {"paper": "x", "late": "s", "bound": ">"}


@dataclass(frozen=True)
class Picture:
    """Charts side by side under a file's name, with what they show in words."""

    name: str
    about: str
    charts: tuple[Chart, ...]
    rows: tuple[str, ...] = ()
    """Names of the places on the y axis, where these are no numbers."""

    @property
    def digest(self) -> str:
        """The same for the same data, whatever draws them."""
        data = [self.about, self.rows, [chart.to_json() for chart in self.charts]]
        text = json.dumps(json.loads(json.dumps(data), parse_float=lambda one: f"{float(one):.6g}"))
        return hashlib.sha256(text.encode()).hexdigest()[:16]


# Data -----------------------------------------------------------------------------------------------------------------


def over_seeds(name: str, own: Sequence[History], end: int, *, against: str = "rounds") -> Series:
    """The mean of A over seeds, with a band from the lowest to the highest, to a common end."""
    curves = [dict(zip(*smooth(one), strict=True)) for one in own]
    rounds = [round for round in sorted(set.intersection(*map(set, curves))) if round <= end]
    values = [[100 * curve[round] for curve in curves] for round in rounds]
    sent = list(accumulate((row["bytes_up"] + row["bytes_down"]) / 1e9 for row in own[0]))
    x = tuple(float(round) if against == "rounds" else sent[round - 1] for round in rounds)
    y = tuple(statistics.fmean(each) for each in values)
    band = (tuple(map(min, values)), tuple(map(max, values))) if len(own) > 1 else ((), ())
    return Series(name, x, y, *band)


def common_end(groups: Mapping[str, Sequence[History]]) -> int:
    return min(len(one) for own in groups.values() for one in own)


def curves(title: str, groups: Mapping[str, Sequence[History]], *, against: str = "rounds") -> Chart:
    last = common_end(groups)
    series = tuple(over_seeds(name, own, last, against=against) for name, own in groups.items())
    label = "round" if against == "rounds" else "gigabytes, up and down"
    return Chart(title, label, ACCURACY, series)


def pictured() -> dict[str, Sequence[History]]:
    """The finals of the paper's eight methods, which have five seeds each."""
    return {method: own for method, own in final_runs().items() if method in search.SPACES}


def finals_curves() -> Picture:
    groups = {NAMES[method]: own for method, own in pictured().items()}
    chart = curves("CIFAR-100, five seeds", groups)
    return Picture("finals-cifar100", "Test accuracy of eight methods on CIFAR-100 to round 600, five seeds", (chart,))


def finals_bytes() -> Picture:
    groups = {NAMES[method]: own for method, own in pictured().items()}
    chart = curves("CIFAR-100, five seeds, float32", groups, against="gigabytes")
    return Picture("finals-cifar100-bytes", "Test accuracy of eight methods on CIFAR-100 against gigabytes", (chart,))


def finals_rounds() -> Picture:
    """One dot a seed, the paper's figure as a cross, a triangle at the end for a seed that did not arrive."""
    charts = []
    names = [NAMES[method] for method in pictured()]
    for place, target in enumerate(finals.OWN.targets[:2]):
        series, papers = [], []
        for y, (method, own) in enumerate(pictured().items()):
            rounds = [reached(one, 100 * target, by_mean=True) for one in own]
            there = tuple(float(one) for one in rounds if one is not None)
            series.append(Series(NAMES[method], there, (float(y),) * len(there), style="points"))
            if None in rounds:
                series.append(
                    Series(f"{NAMES[method]}, bound", (float(finals.OWN.rounds),), (float(y),), style="points")
                )
            if method in STAGES:
                papers.append((STAGES[method]["cifar100"][place], float(y)))
        series.append(Series("paper", *map(tuple, zip(*papers, strict=True)), style="points"))
        charts.append(Chart(f"{100 * target:g} %", "rounds", "", tuple(series)))
    about = "Rounds to 40 and 45 % on CIFAR-100, a dot a seed, the paper's figures as crosses"
    return Picture("finals-cifar100-rounds", about, tuple(charts), tuple(names))


def ratios() -> Picture:
    """T6 with printed values: our rounds by the paper's."""
    charts = []
    for dataset in DATASETS:
        series = []
        for y, method in enumerate(SEVEN):
            for place, target in enumerate(STAGE_TARGETS[dataset]):
                own, paper = printed(dataset, method), STAGES[method][dataset][place]
                rounds = [reached(one, target) for one in own]
                if not own or not math.isfinite(paper):
                    continue
                missed = [len(one) for one, found in zip(own, rounds, strict=True) if found is None]
                known = [one for one in rounds if one is not None]
                value = min(missed) / paper if missed else statistics.fmean(known) / paper
                kind = ", bound" if missed else ", late" if place else ""
                series.append(Series(f"{NAMES[method]}{kind}", (value,), (float(y),), style="points"))
        charts.append(Chart(TITLES[dataset], "our rounds / the paper's", "", tuple(series), log_x=True))
    about = "Rounds of T6 with the paper's values, ours by the paper's; a triangle is a lower bound"
    return Picture("paper-ratios", about, tuple(charts), tuple(NAMES[method] for method in SEVEN))


def of_dataset(dataset: str) -> Picture:
    """The printed values and those of the earlier search, each to its common end."""
    first = {NAMES[method]: own for method in SEVEN if (own := printed(dataset, method))}
    second = {NAMES[method]: earlier(dataset, method) for method in FIVE}
    charts = []
    for title, groups in (("the paper's values", first), ("earlier, unequal search", second)):
        charts.append(curves(title, {name: own[:1] for name, own in groups.items()}))
    about = f"Test accuracy on {TITLES[dataset]} with the paper's values and with those of the earlier search"
    return Picture(dataset, f"{about}, seed 0", tuple(charts))


def trials() -> Picture:
    """The expected best of k trials drawn from the twelve, by held-out A(100)."""
    series = []
    for method in search.SPACES:
        scores = sorted(100 * score for one in search.outcomes(method) if (score := one.mean(100)) is not None)
        series.append(Series(NAMES[method], *_expected_best(scores)))
    chart = Chart("held-out data, CIFAR-100", "trials", "expected best A(100), %", tuple(series))
    return Picture("search-trials", "Expected best held-out accuracy against the number of trials", (chart,))


def _expected_best(scores: Sequence[float]) -> tuple[tuple[float, ...], tuple[float, ...]]:
    total, best = len(scores), []
    for k in range(1, total + 1):
        weights = [math.comb(place, k - 1) / math.comb(total, k) for place in range(total)]
        best.append(sum(weight * score for weight, score in zip(weights, scores, strict=True)))
    return tuple(float(k) for k in range(1, total + 1)), tuple(best)


def decay() -> Picture:
    """Held-out accuracy against rate x decay / alpha: the trials, and the runs of the earlier search."""
    series = []
    for method in ("fedcm", "fedlada"):
        points = []
        for one in search.outcomes(method):
            score = one.mean(100)
            if one.trial.experiment().hyper.get("decoupled", True) and score is not None:
                points.append((strength(one.trial), 100 * score))
        series.append(Series(NAMES[method], *map(tuple, zip(*sorted(points), strict=True)), style="points"))
        series.append(Series(f"{NAMES[method]}, late", *_earlier_points(method), style="points"))
    chart = Chart(
        "held-out data, CIFAR-100, round 100", "rate x decay / alpha", "accuracy, %", tuple(series), log_x=True
    )
    about = "Held-out accuracy against rate x decay / alpha; circles are the protocol's trials, squares earlier runs"
    return Picture("decay", about, (chart,))


def _strength(hyper: Mapping[str, Any]) -> float:
    return float(hyper["weight_decay"] / hyper["alpha"] * hyper.get("server_lr", 1.0))


def _earlier_points(method: str) -> tuple[tuple[float, ...], tuple[float, ...]]:
    points = []
    for run in archived_runs.runs("runs_h200_202611.json").runs:
        config = run.config
        if config["dataset"] != "cifar100" or config["method"] != method or not config["validation"]:
            continue
        values, strength = run.measured["validation_accuracy"], _strength(config["hyper"])
        if config["hyper"].get("decoupled", True) and 100 in values and strength > 0:
            points.append((config["lr"] * strength, 100 * values[100]))
    x, y = zip(*sorted(points), strict=True)
    return tuple(x), tuple(y)


def paper_varies() -> Picture:
    """Local epochs, clients a round, alpha: FedLADA with printed values, seed 0."""
    epochs = {f"{one} epochs": printed("cifar100", "fedlada", local_epochs=one)[:1] for one in (2, 4, 10, 20)}
    clients = {f"{one} clients": printed("cifar10", "fedlada", cohort_size=one)[:1] for one in (5, 10, 20, 50)}
    alphas = {
        f"alpha {one:g}": printed("cifar100", "fedlada", {"alpha": one})[:1] for one in (0.01, 0.05, 0.1, 0.2, 0.5, 1.0)
    }
    charts = (curves("T3, CIFAR-100", epochs), curves("F4, CIFAR-10", clients), curves("T4, CIFAR-100", alphas))
    return Picture("paper-varies", "FedLADA with other local epochs, clients a round and alpha, one seed", charts)


def late_decay() -> Picture:
    """TinyImageNet: FedLADA with two strengths of decay beside FedCM and SCAFFOLD."""
    lr, hyper = EARLIER["tinyimagenet"]["fedlada"]
    groups = {
        "SCAFFOLD": earlier("tinyimagenet", "scaffold"),
        "FedCM, paper's values": printed("tinyimagenet", "fedcm"),
        "FedLADA, decay 0.05": earlier("tinyimagenet", "fedlada"),
        "FedLADA, decay 0.1": with_values("tinyimagenet", "fedlada", lr, {**hyper, "weight_decay": 0.1}),
    }
    chart = curves("TinyImageNet, one seed", groups)
    return Picture("tinyimagenet-decay", "FedLADA on TinyImageNet with two strengths of decay, one seed", (chart,))


def fashion() -> Picture:
    groups = {NAMES[method]: fashion_runs(method) for method in FASHION}
    rounds = curves("Fashion-MNIST, three seeds", groups)
    sent = curves("Fashion-MNIST, three seeds, float32", groups, against="gigabytes")
    return Picture("fashion-mnist", "Test accuracy on Fashion-MNIST against rounds and gigabytes", (rounds, sent))


def every() -> list[Picture]:
    own = [of_dataset(dataset) for dataset in DATASETS]
    finals_own = [finals_curves(), finals_rounds(), finals_bytes()]
    return [*finals_own, ratios(), *own, late_decay(), trials(), decay(), paper_varies(), fashion()]


# Drawing --------------------------------------------------------------------------------------------------------------


def draw(picture: Picture, path: Path) -> None:
    """An SVG whose last line has the digest of its data."""
    import matplotlib

    with matplotlib.rc_context(LOOK):
        width = 5.8 if len(picture.charts) == 1 else 4.1 * len(picture.charts)
        figure, axes = new_figure(width=width, height=3.7, columns=len(picture.charts))
        every = [axes] if len(picture.charts) == 1 else list(axes)
        for own, chart in zip(every, picture.charts, strict=True):
            _draw_chart(own, chart, picture.rows)
        if picture.rows:
            for own in every[1:]:
                own.set_yticklabels([])
        out = io.StringIO()
        figure.savefig(out, format="svg", metadata={"Date": None, "Creator": None})
    text = re.sub(r' (?:d|x|y)="[^"]*"', _shortened, out.getvalue())
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"{text.rstrip()}\n<!-- data {picture.digest} -->\n", encoding="utf-8")


def _shortened(attribute: re.Match[str]) -> str:
    """A tenth of a point is enough."""
    return re.sub(r"(\d+\.\d)\d+", r"\1", attribute[0])


def digest_in(path: Path) -> str:
    """The digest of the data that a file was drawn from, or nothing."""
    found = re.search(r"<!-- data (\w+) -->\s*$", path.read_text(encoding="utf-8")) if path.exists() else None
    return found[1] if found else ""


def _draw_chart(axes: Any, chart: Chart, rows: Sequence[str]) -> None:
    for number, series in enumerate(chart.series):
        _draw_series(axes, series, number)
    if chart.log_x:
        axes.set_xscale("log")
    if rows:
        axes.set_yticks(range(len(rows)), rows)
        axes.set_ylim(len(rows) - 0.5, -0.5)
    if chart.log_x and rows:
        _ticks_of_ratios(axes)
    if chart.y_label == ACCURACY:
        axes.set_ylim(bottom=sorted(value for one in chart.series for value in one.y)[_count(chart) // 10])
    axes.set_title(chart.title)
    axes.set_xlabel(chart.x_label)
    axes.set_ylabel(chart.y_label)
    if not rows:
        axes.legend(frameon=False, fontsize=8)


def _count(chart: Chart) -> int:
    return sum(len(one.y) for one in chart.series)


def _ticks_of_ratios(axes: Any) -> None:
    from matplotlib.ticker import FixedLocator, NullLocator, ScalarFormatter

    axes.axvline(1.0, color="0.4", linewidth=1, linestyle="--")
    axes.xaxis.set_major_locator(FixedLocator([0.7, 1, 1.5, 2, 3]))
    axes.xaxis.set_major_formatter(ScalarFormatter())
    axes.xaxis.set_minor_locator(NullLocator())
    axes.set_xlim(0.6, 3.6)


def _draw_series(axes: Any, series: Series, number: int) -> None:
    name, _, kind = series.name.partition(", ")
    colour = "black" if name == "paper" else COLOURS.get(name, OTHERS[number % len(OTHERS)])
    if series.style == "points":
        look = {"marker": MARKERS.get(kind or name, "o"), "markersize": 5, "alpha": 0.85}
        label = {"": name, "late": f"{name}, earlier runs"}.get(kind, series.name)
        axes.plot(series.x, series.y, linestyle="", color=colour, label=label, **look)
        return
    dashes = "--" if kind in ("decay 0.05",) else "-"
    axes.plot(series.x, series.y, linewidth=1.5, color=colour, label=series.name, linestyle=dashes)
    if series.low:
        axes.fill_between(series.x, series.low, series.high, color=colour, alpha=0.15, linewidth=0)
