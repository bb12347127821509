"""Plots, drawn with matplotlib."""

from __future__ import annotations

import io
import textwrap
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import numpy as np

from fedlada.federation.randomness import Ints
from fedlada.methods.extras import missing
from fedlada.plots.chart import Chart, Series
from fedlada.plots.curves import Runs, curves, refuse_unmeasured, seeds_by_name

if TYPE_CHECKING:
    from matplotlib.figure import Figure as Figure  # re-exported
    from matplotlib.layout_engine import LayoutEngine

FORMATS = ("png", "svg", "pdf")
ARROW = {"arrowstyle": "-|>", "shrinkA": 0, "shrinkB": 0}
# Okabe and Ito's colour-blind-safe palette.
COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#6b4fa8", "#3d434a")
MARKERS = ("o", "s", "^", "D", "v", "P", "p", "*")
PAPER: dict[Any, Any] = {
    "font.family": "serif",
    "font.serif": ["STIXGeneral", "DejaVu Serif"],
    "mathtext.fontset": "stix",
    "font.size": 11,
    # Text stays editable and searchable.
    "pdf.fonttype": 42,
    "svg.fonttype": "none",
    # The same data give the same file.
    "svg.hashsalt": "fedlada",
}
"""Matplotlib settings of a figure for a paper."""

LETTERS_PER_INCH = 9
"""Characters per line of a title, so that it is no wider than the figure."""


def new_figure(width: float = 7.0, height: float = 4.2, columns: int = 1) -> tuple[Figure, Any]:
    """A figure that needs no display, and its axes: one, or several side by side."""
    figure: Figure = _matplotlib().figure.Figure(figsize=(width, height), layout="constrained")
    every = figure.subplots(1, columns, squeeze=False)[0]
    for axes in every:
        axes.spines[["top", "right"]].set_visible(False)
        axes.grid(alpha=0.25)
        axes.set_axisbelow(True)
    vars(figure)["_repr_png_"] = partial(_png, figure)  # a notebook shows it even without pyplot
    return figure, every[0] if columns == 1 else every


def _png(figure: Figure) -> bytes:
    file = io.BytesIO()
    figure.savefig(file, format="png", dpi=100)
    return file.getvalue()


def _matplotlib() -> Any:
    try:
        import matplotlib.figure
    except ImportError:
        raise missing("pictures need matplotlib", "plot") from None
    return matplotlib


def draw_chart(chart: Chart, *beside: Chart) -> Figure:
    """A chart as a figure in the style of a paper; further charts of the same series share its legend and y axis."""
    charts = (chart, *beside)
    with _matplotlib().rc_context(PAPER):
        figure, axes = new_figure(width=5.6 if not beside else 4.6 * len(charts), height=3.9, columns=len(charts))
        every = axes if beside else [axes]
        for own, one in zip(every, charts, strict=True):
            _draw_on(own, one)
        for own in every[1:]:
            own.set_ylim(every[0].get_ylim())
            own.set_ylabel("")
        if any(series.name for series in chart.series):
            for text in every[0].legend(loc="best", frameon=False).get_texts():
                text.set_parse_math(False)
    return figure


def _draw_on(axes: Any, chart: Chart) -> None:
    bars = [one for one in chart.series if one.style == "bars"]
    for number, series in enumerate(chart.series):
        _draw(axes, series, number, bars)
    if chart.log_x:
        axes.set_xscale("log")
    if chart.log_y:
        axes.set_yscale("log")
    for target in chart.targets:
        axes.axhline(target, color="0.4", linestyle="--", linewidth=1)
        axes.annotate(f"target {target:g}", (1, target), xycoords=("axes fraction", "data"), ha="right", va="top")
    _leave_room(axes, chart)
    # Names are shown literally: a dollar sign does not start mathematics.
    axes.set_xlabel(chart.x_label, parse_math=False)
    axes.set_ylabel(chart.y_label, parse_math=False)
    axes.set_title(chart.title, parse_math=False)


def save_chart(
    chart: Chart, path_without_suffix: Path, formats: Sequence[str] = FORMATS, beside: Sequence[Chart] = ()
) -> list[Path]:
    """Write a chart, and those drawn next to it, in each format; returns the paths."""
    figure = draw_chart(chart, *beside)
    undated = {"svg": {"Date": None}, "pdf": {"CreationDate": None}}  # the same data give the same file
    paths = [path_without_suffix.with_name(f"{path_without_suffix.name}.{suffix}") for suffix in formats]
    with _matplotlib().rc_context(PAPER):
        cast("LayoutEngine", figure.get_layout_engine()).execute(figure)
        figure.set_layout_engine(None)  # the layout is found: not again for each format
        for path, suffix in zip(paths, formats, strict=True):
            try:
                figure.savefig(path, dpi=200, metadata=undated.get(suffix))
            except OSError as error:
                path.unlink(missing_ok=True)  # remove a partly written file
                raise OSError(f"{path} cannot be written: {error.strerror or error}") from None
    return paths


def plot_histories(
    histories: Mapping[str, Runs],
    *,
    metric: str | None = None,
    target: float | None = None,
    title: str = "",
    band: str = "range",
) -> Figure:
    """Each method's mean over its seeds against rounds, with a band from the lowest to the highest seed.

    `histories` has a list of histories or results by each method's name, or a single one. `band="std"` is one standard
    deviation to either side of the mean instead, `band="ci"` its 95 % confidence interval by Student's t (needs scipy).
    """
    groups = seeds_by_name(histories)
    rows = [row for seeds in groups.values() for history in seeds for row in history]
    if metric is not None:
        refuse_unmeasured(metric, rows)
    known = (
        name
        for name in (f"{whose}_{what}" for what in ("accuracy", "loss") for whose in ("test", "validation", "client"))
        if any(row.get(name) is not None for row in rows)
    )
    chosen = metric or next(known, "train_loss")
    targets = () if target is None else (target,)
    return draw_chart(curves(groups, chosen, title=title, targets=targets, band=band))


def _draw(axes: Any, series: Series, number: int, bars: list[Series]) -> None:
    x, y = np.asarray(series.x, dtype=float), np.asarray(series.y, dtype=float)
    colour = COLOURS[number % 8]
    # matplotlib hides names that start with an underscore
    name = f" {series.name}" if series.name.startswith("_") else series.name
    look = {"color": colour, "label": name, "marker": MARKERS[(number + number // 8) % 8], "markersize": 4.5}
    if series.style == "bars":
        return _draw_bars(axes, series, bars, colour, name)
    if series.style == "line":
        every = max(1, len(x) // 10)
        # Markers are offset between lines, so that they seldom overlap.
        axes.plot(x, y, linewidth=1.6, markevery=(every * (number % 8) // 8, every), **look)
    else:
        axes.plot(x, y, linestyle="", markevery=[0] if series.style == "arrows" and len(x) else None, **look)
    if series.style == "arrows":
        for x0, y0, x1, y1 in zip(x, y, x[1:], y[1:], strict=False):
            axes.annotate("", (x1, y1), (x0, y0), arrowprops={**ARROW, "color": colour})
    if series.low:
        axes.fill_between(x, series.low, series.high, color=colour, alpha=0.15, lw=0)
    return None


def _draw_bars(axes: Any, series: Series, bars: list[Series], colour: str, name: str) -> None:
    """Draw grouped bars, one group member per series."""
    gaps = np.diff(np.unique(np.concatenate([one.x for one in bars])))
    width = 0.8 * (float(gaps.min()) if gaps.size else 1.0) / len(bars)
    x, y = np.asarray(series.x, dtype=float) + width * (bars.index(series) - (len(bars) - 1) / 2), np.asarray(series.y)
    axes.bar(x, y, width, color=colour, label=name)
    if series.low:
        spread = [y - np.asarray(series.low), np.asarray(series.high) - y]
        axes.errorbar(x, y, spread, linestyle="", color="0.25", capsize=2)


def _leave_room(axes: Any, chart: Chart) -> None:
    """With a target line, start the y axis above the first rounds, so that the curves can be distinguished."""
    values = [value for series in chart.series for value in series.y if np.isfinite(value)]
    if not chart.targets or not values or chart.log_y or any(series.style == "bars" for series in chart.series):
        return
    bottom, top = min(float(np.quantile(values, 0.1)), *chart.targets), max(*values, *chart.targets)
    air = 0.08 * (top - bottom) or 0.05
    axes.set_ylim(bottom - air, top + air)


def plot_partition(clients: Sequence[Ints], labels: np.ndarray[Any, Any], *, title: str = "") -> Figure:
    """Samples of each class on each client: one stacked bar per client."""
    figure, axes = new_figure(width=max(7.0, min(20.0, 0.12 * len(clients))))
    classes = np.unique(labels)
    counts = np.array([[int((labels[own] == label).sum()) for label in classes] for own in clients])
    bottom = np.zeros(len(clients), dtype=np.int64)
    for column, label in enumerate(classes):
        axes.bar(range(len(clients)), counts[:, column], bottom=bottom, width=0.9, label=str(label))
        bottom += counts[:, column]
    axes.set_xlabel("client")
    axes.set_ylabel("samples")
    axes.set_title(textwrap.fill(title, int(LETTERS_PER_INCH * figure.get_figwidth())))
    axes.margins(y=0.08)
    if len(classes) <= 20:
        axes.legend(title="class", frameon=False, loc="center left", bbox_to_anchor=(1, 0.5))
    return figure
