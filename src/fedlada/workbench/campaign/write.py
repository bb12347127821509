"""A campaign's folder: tables as Markdown, CSV, LaTeX and JSON, charts as pictures, and one page of it all."""

from __future__ import annotations

import re
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from fedlada.plots.chart import Chart
from fedlada.plots.draw import save_chart
from fedlada.runs.archived import archived_notes
from fedlada.runs.clients import read_clients, read_names
from fedlada.runs.config import read_config
from fedlada.runs.files import write_text
from fedlada.training.history import History
from fedlada.workbench.campaign.request import DIVERGED, DONE, UNFINISHED, Outcome
from fedlada.workbench.campaign.run import Work
from fedlada.workbench.report.listing import KnownRun, Listing, write_listing
from fedlada.workbench.report.page import write_page
from fedlada.workbench.report.records import RunRecord, StoredFiles, decisive, longest, named, told_apart
from fedlada.workbench.report.stored import write_charts, write_command, write_tables
from fedlada.workbench.report.table import Table


def write_folder(
    folder: Path,
    title: str,
    *,
    tables: Sequence[Table],
    charts: Sequence[Chart],
    outcomes: Sequence[Outcome],
    notes: Sequence[str],
    command: str,
    pictures: bool = True,
) -> None:
    """Write everything; a reason for missing pictures goes to standard error."""
    folder.mkdir(parents=True, exist_ok=True)
    notes = [*notes, *archived_notes(outcome.folder for outcome in outcomes)]
    markdown = f"# {title}\n\n" + "\n".join(table.to_markdown() for table in tables)
    markdown += "\n" * bool(notes) + "".join(f"- {note}\n" for note in notes)
    write_text(folder / "table.md", markdown)
    write_text(folder / "table.csv", _csv(tables))
    write_text(folder / "table.tex", "\n".join(table.to_latex() for table in tables))
    write_tables(folder, tables)
    write_charts(folder, charts)
    write_command(folder, command)
    _list_runs(folder, title, outcomes, notes)
    write_page(
        folder / "report.html",
        title=title,
        runs=records(outcomes),
        tables=tables,
        charts=charts,
        notes=notes,
        command=command,
    )
    try:
        for number, chart in enumerate(charts if pictures else (), start=1):
            save_chart(chart, folder / f"figure-{number}")
        for old in folder.glob("figure-*.*"):  # an earlier command may have made more of them
            named = re.fullmatch(r"figure-(\d+)\.(png|svg|pdf)", old.name)
            if named and int(named[1]) > len(charts):
                old.unlink()
    except ModuleNotFoundError as error:
        print(f"fedlada: no pictures: {error}", file=sys.stderr)


def announce(folder: Path, title: str, outcomes: Sequence[Outcome]) -> None:
    """List the runs before they begin, so that they can be watched from this folder wherever they lie."""
    if not all(outcome.is_settled for outcome in outcomes):
        _list_runs(
            folder,
            title,
            outcomes,
            ["These runs are in progress, or were interrupted: the same command then resumes them."],
        )


def _list_runs(folder: Path, title: str, outcomes: Sequence[Outcome], notes: Sequence[str]) -> None:
    write_listing(folder, Listing(title, tuple(run for run, _ in _each_once(outcomes)), tuple(notes)))


def records(outcomes: Sequence[Outcome]) -> list[RunRecord]:
    """Each run that has begun, as a page shows it."""
    stored = [
        StoredFiles(
            run,
            {**read_config(run.folder), "rounds": run.rounds},
            history.rows,
            read_clients(run.folder),
            read_names(run.folder),
        )
        for run, history in _each_once(outcomes)
        if len(history)
    ]
    return named(stored)


def _each_once(outcomes: Sequence[Outcome]) -> list[tuple[KnownRun, History]]:
    """Each run by its name, as long as the longest request for it."""
    runs = longest(outcomes, lambda one: one.folder, lambda one: (len(one.history), _rounds_asked(one)))
    known = (KnownRun(one.folder, group, _rounds_asked(one)) for one, group in zip(runs, _groups(runs), strict=True))
    return [(run, one.history) for run, one in zip(known, runs, strict=True)]


def _rounds_asked(outcome: Outcome) -> int:
    """The number of rounds that this request needs: it may end before the goal's last round."""
    return len(outcome.history) if outcome.status == DONE else outcome.request.goal.rounds


def _groups(outcomes: Sequence[Outcome]) -> list[str]:
    """A group for each configuration: two targets may call different runs, or the same ones differently, by a name."""
    configs = [outcome.request.experiment.to_json() for outcome in outcomes]
    first: dict[Any, str] = {}
    for outcome, config in zip(outcomes, configs, strict=True):
        first.setdefault(decisive(config), outcome.request.name)
    return told_apart([first[decisive(config)] for config in configs], configs)


def still_open(outcomes: Sequence[Outcome], work: Work) -> list[str]:
    """Sentences about runs that are not done, and what to do about them."""
    by_run = {outcome.folder: outcome for outcome in outcomes if outcome.status == DIVERGED}
    sentences = [f"{outcome.request.label} diverged: {outcome.why}." for outcome in by_run.values()]
    unfinished = {outcome.folder: outcome for outcome in outcomes if outcome.status == UNFINISHED}
    sentences += [f"{one.request.label} failed: {one.why}." for one in unfinished.values() if one.why]
    waiting = [one for one in unfinished.values() if not one.why]
    if waiting:
        num_runs = len({outcome.folder for outcome in outcomes})
        way = "the same command resumes them"
        if work.shard.of > 1:
            way = "the others belong to other shards, and --merge combines them"
        if work.only_show:
            way = "without --only-show they are run"
        said = f"{len(waiting)} of {num_runs} runs are not finished: {way}. Cells that need them say so."
        sentences.append(said)
    return sentences


def _csv(tables: Sequence[Table]) -> str:
    """One table as it is; several below each other, each with its title on a line of its own."""
    if len(tables) == 1:
        return tables[0].to_csv()
    quoted = ('"' + table.title.replace('"', '""') + '"' for table in tables)
    return "\n".join(f"{title}\n{table.to_csv()}" for title, table in zip(quoted, tables, strict=True))
