"""The tables of Reddi et al. (2021), made of the runs of `fedlada reproduce FEDOPT --scale full`."""

from __future__ import annotations

import statistics

import archived_runs

from fedlada.paper.fedopt import EVERY, LAST, ROUNDS, THEIRS, requests
from fedlada.paper.published import FEDOPT
from fedlada.paper.setting import Setting, name_of
from fedlada.workbench.campaign.archived_run import ArchivedRun
from fedlada.workbench.report.table import Table

ARCHIVE = "fedopt_h200_202611.json.gz"
SAME = (*THEIRS, "partition", "concentration", "fine_concentration", "dataset", "method", "lr", "seed")


def server_table(dataset: str) -> Table:
    """Accuracy beside the published one, a row for each server optimizer."""
    setting = Setting.named("full", preset="paper", seeds=(0,), data_dir="data", chosen_datasets=(dataset,))
    rows = []
    for own in (one.experiment for one in requests(setting)):
        fields = {name: getattr(own, name) for name in SAME}
        run = archived_runs.ended(ARCHIVE, own.hyper, ROUNDS, **fields)
        published = FEDOPT[dataset][own.method]
        cells = _cells(run, published) if run else ("not run", "", "")
        rates = (f"{own.lr:.2g}", f"{own.hyper['server_lr']:.2g}", f"{own.hyper.get('tau', '')}")
        rows.append((name_of(own.method), *rates, f"{published:.1f}", *cells))
    rates = ("client rate", "server rate", "tau")
    return Table("", ("method", *rates, "published", "ours", "difference", "our best"), tuple(rows))


def _cells(run: ArchivedRun, published: float) -> tuple[str, str, str]:
    if run.diverged is not None:
        return f"diverged in round {run.diverged[0] + 1}", "", ""
    values = [100 * one for one in run.measured["test_accuracy"].values()]
    ours = statistics.fmean(values[-LAST // EVERY :])
    return f"{ours:.1f}", f"{ours - published:+.1f}", f"{max(values):.1f}"
