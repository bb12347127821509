"""Pictures (they need matplotlib)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from fedlada.history import History
from fedlada.randomness import Ints

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def new_figure(width: float = 7.0, height: float = 4.2) -> tuple[Figure, Any]:
    """A figure that no window system needs to know of, and its axes."""
    try:
        from matplotlib.figure import Figure
    except ImportError:
        raise ModuleNotFoundError("pictures need matplotlib: pip install 'fedlada[all]'") from None
    figure = Figure(figsize=(width, height), layout="constrained")
    axes = figure.subplots()
    axes.spines[["top", "right"]].set_visible(False)
    axes.grid(alpha=0.25)
    return figure, axes


def plot_histories(
    histories: Mapping[str, Sequence[History]],
    *,
    metric: str | None = None,
    target: float | None = None,
    title: str = "",
) -> Figure:
    """Each method's mean over its seeds against rounds, with a band from the lowest to the highest seed."""
    chosen = metric or _best_known(histories)
    figure, axes = new_figure()
    for name, seeds in histories.items():
        measured = [history.measured(chosen) for history in seeds]
        rounds = sorted(set.intersection(*(set(rounds) for rounds, _ in measured)))
        if not rounds:
            continue
        table = np.array([[dict(zip(*one, strict=True))[round] for round in rounds] for one in measured])
        (line,) = axes.plot(rounds, table.mean(axis=0), label=name, linewidth=1.6)
        if len(seeds) > 1:
            axes.fill_between(rounds, table.min(axis=0), table.max(axis=0), color=line.get_color(), alpha=0.15, lw=0)
    if target is not None:
        axes.axhline(target, color="0.4", linestyle="--", linewidth=1)
        axes.annotate(f"target {target:g}", (1, target), xycoords=("axes fraction", "data"), ha="right", va="top")
    if chosen == "test_accuracy" and target is not None:
        # The first rounds say little; leave the room to where the methods differ.
        values = [value for seeds in histories.values() for history in seeds for value in history.measured(chosen)[1]]
        if values:
            axes.set_ylim(min(float(np.quantile(values, 0.1)), target) - 0.05, 1.005)
    axes.set_xlabel("round")
    axes.set_ylabel(chosen.replace("_", " "))
    axes.set_title(title)
    if axes.get_legend_handles_labels()[0]:
        axes.legend(frameon=False)
    return figure


def plot_partition(clients: Sequence[Ints], labels: np.ndarray[Any, Any], *, title: str = "") -> Figure:
    """How many samples of each class each client has: one stacked bar a client."""
    figure, axes = new_figure(width=max(7.0, min(20.0, 0.12 * len(clients))))
    classes = np.unique(labels)
    counts = np.array([[int((labels[own] == label).sum()) for label in classes] for own in clients])
    bottom = np.zeros(len(clients), dtype=np.int64)
    for column, label in enumerate(classes):
        axes.bar(range(len(clients)), counts[:, column], bottom=bottom, width=0.9, label=str(label))
        bottom += counts[:, column]
    axes.set_xlabel("client")
    axes.set_ylabel("samples")
    axes.set_title(title)
    if len(classes) <= 20:
        axes.legend(title="class", frameon=False, loc="center left", bbox_to_anchor=(1, 0.5))
    return figure


def _best_known(histories: Mapping[str, Sequence[History]]) -> str:
    rows = [row for seeds in histories.values() for history in seeds for row in history]
    for name in ("test_accuracy", "test_loss"):
        if any(row.get(name) is not None for row in rows):
            return name
    return "train_loss"
