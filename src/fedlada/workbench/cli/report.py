"""`fedlada report` and `fedlada watch`."""

from __future__ import annotations

import shlex
import signal
import sys
from collections.abc import Sequence
from pathlib import Path

import click

from fedlada.plots.curves import BANDS
from fedlada.plots.draw import FORMATS, save_chart
from fedlada.runs.files import CannotWrite
from fedlada.training.shown import plural
from fedlada.workbench.cli.output import make_folder
from fedlada.workbench.cli.values import NearestChoice, UserPath, Words
from fedlada.workbench.report.curves import all_curves
from fedlada.workbench.report.page import write_page
from fedlada.workbench.report.records import RunRecord, read_listings, read_runs
from fedlada.workbench.report.stored import read_charts, read_command, read_notes, read_tables
from fedlada.workbench.report.watch import HOST, LiveReport, serve


@click.command()
@click.argument("folders", nargs=-1, required=True, type=UserPath())
@click.option("--out", type=UserPath(), help="The HTML file; by default report.html in the given folder.")
@click.option("--title", help="The page's title.")
@click.option("--plots", type=UserPath(), help="Also save every curve and figure in this folder.")
@click.option(
    "--formats",
    type=Words(choices=FORMATS),
    default=",".join(FORMATS),
    show_default=True,
    help="Comma-separated image formats.",
)
@click.option(
    "--band",
    type=NearestChoice(BANDS),
    default="range",
    show_default=True,
    help="Band of a curve over its seeds, in pictures: lowest to highest, one standard deviation, or the mean's 95 % "
    "confidence interval (ci).",
)
def report(
    folders: tuple[Path, ...], out: Path | None, title: str | None, plots: Path | None, formats: list[str], band: str
) -> None:
    """Write an HTML report of runs, comparisons or reproductions.

    FOLDERS are run folders, contain runs at any depth, or list them as a reproduction's folder does. The page is
    self-contained: it needs no network and no other file.

    \b
    Example:
      fedlada run --rounds 20 --out runs/first
      fedlada report runs/first --out report.html
      fedlada report runs/first --plots pictures --formats png
    """
    left_out: list[str] = []
    runs = read_runs(folders, left_out.append)
    tables = [table for folder in folders for table in read_tables(folder)]
    charts = [chart for folder in folders for chart in read_charts(folder)]
    notes = list(dict.fromkeys(note for folder in folders for note in read_notes(folder)))
    path = out or (folders[0] / "report.html" if len(folders) == 1 else Path("report.html"))
    known = read_command(folders[0]) if len(folders) == 1 else ""
    command = known or shlex.join(["fedlada", "report", *map(str, folders), "--out", str(path)])
    make_folder(path.parent)
    if path.is_dir():
        raise ValueError(f"{path} is a folder: --out names the page, as in {path / 'report.html'}")
    name = title or title_of(folders, runs)
    try:
        write_page(path, title=name, runs=runs, tables=tables, charts=charts, notes=notes, command=command)
    except CannotWrite as error:
        raise ValueError(f"{path} cannot be written ({error.reason}): choose another place with --out") from None
    print(f"{plural(len(runs), 'run')} in {path}: open it in a browser")
    if plots is not None:
        make_folder(plots)
        figures = {f"figure-{number}": chart for number, chart in enumerate(charts, start=1)}
        try:
            for name, chart in {**figures, **all_curves(runs, band)}.items():
                save_chart(chart, plots / name, formats)
        except OSError as error:
            raise ValueError(
                f"the pictures cannot be written in {plots} ({error.strerror or error}): choose another folder with "
                "--plots"
            ) from None
        print(f"pictures ({', '.join(formats)}) in {plots}")
    for why in left_out:
        print(f"fedlada: {why}; it is left out", file=sys.stderr)
    if left_out:
        raise click.exceptions.Exit(1)


def title_of(folders: Sequence[Path], runs: Sequence[RunRecord] = ()) -> str:
    """The default title of a page: that of the campaign, the compared groups if few, or the folders."""
    listings = [listing for folder in folders for listing in read_listings(folder)]
    if len(listings) == len(folders) == 1:
        return listings[0].title
    groups = dict.fromkeys(run.group for run in runs)
    datasets = {str(run.config.get("dataset", "")) for run in runs}
    if 1 <= len(groups) <= 4 and len(datasets) == 1 and "" not in datasets:
        return f"{', '.join(groups)} on {datasets.pop()}"
    return ", ".join(folder.resolve().name for folder in folders)


@click.command()
@click.argument("folder", type=UserPath())
@click.option(
    "--port",
    type=click.IntRange(0, 65535),
    default=0,
    show_default=True,
    help="Port on 127.0.0.1; 0 for any free port.",
)
def watch(folder: Path, port: int) -> None:
    """Serve a live report of a run, or of a folder of runs; Ctrl-C ends it.

    The page is served on this machine only.

    \b
    Example, in a second terminal:
      fedlada watch runs/first
    """
    if not folder.is_dir():
        raise ValueError(f"there is no folder {folder}: start the run first, or name the folder that will hold it")
    server = serve(LiveReport(folder, title_of([folder])), port)
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, _interrupt)
    try:
        with server:
            print(f"{folder} is shown at http://{HOST}:{server.server_address[1]}/ until you press Ctrl-C", flush=True)
            server.serve_forever(poll_interval=0.1)
    except KeyboardInterrupt:
        print("fedlada: stopped watching; the runs continue", file=sys.stderr)


def _interrupt(*_: object) -> None:
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)  # already ending: ignore further signals
    raise KeyboardInterrupt
